"""What every metric network keeps to: evaluation mode, batches that shrink when memory runs out, one scale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_acpmbr.metrics.network import NetworkUtility
from hf_acpmbr.scoring import Utility

from .cases import CASES, SOURCES, TEXTS, judge, untrained_judge, write_causal_model

NETWORKS = ("bleurt", "comet", "comet-rank", "unite", "xcomet", "metricx", "bertscore", "embedding", "judge")
PAIRS = np.divmod(np.arange(16), 4)
MOST_ROWS = 2


def made(name: str, folder: Path, **options: Any) -> NetworkUtility[torch.nn.Module]:
    pytest.importorskip(CASES[name].needs)
    utility = CASES[name].make(folder, **options)
    assert isinstance(utility, NetworkUtility)
    return utility


def matrix(utility: Utility) -> tuple[np.ndarray, int]:
    """Scores of a few pairs, and how often memory ran out."""
    source = SOURCES[0] if utility.needs_source or utility.takes_source else None
    scorer = utility.prepare(TEXTS[1:5], TEXTS[3:7], source)
    return scorer(*PAIRS), scorer.statistics.out_of_memory


@untrained_judge
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_score_in_evaluation_mode_and_without_gradients(name: str, tmp_path: Path) -> None:
    utility = made(name, tmp_path)
    for module in utility.network.modules():
        assert not module.training, f"{type(module).__name__} would drop units at random"
    assert not any(weight.requires_grad for weight in utility.network.parameters())


@untrained_judge
@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_that_does_not_fit_is_halved_and_the_scores_stay(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, never = matrix(made(name, tmp_path))
    assert never == 0
    utility = made(name, tmp_path)
    forward = utility.network.forward

    def small(*args: Any, **inputs: Any) -> Any:
        first = next(iter([*args, *inputs.values()]))
        rows = first["input_ids"] if isinstance(first, Mapping) else first
        if len(rows) > MOST_ROWS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return forward(*args, **inputs)

    monkeypatch.setattr(utility.network, "forward", small)
    scores, halved = matrix(utility)
    assert halved > 0
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert matrix(utility)[1] == 0, "the smaller budget is remembered"


@untrained_judge
def test_a_preference_is_a_share_of_a_win(tmp_path: Path) -> None:
    folder = str(write_causal_model(tmp_path / "judge"))
    options: dict[str, Any] = {"prompt": "see {first} on {second}", "chat": False, "question": "preference"}
    utility = judge(folder, answers={"cat": 1.0, "dog": 0.0, "red": 0.5}, **options)
    assert utility.scale == 1
    scores = utility.score(["a cat", "red", "on"], ["dog", "see", "on"])
    back = utility.score(["dog", "see", "on"], ["a cat", "red", "on"])
    assert (scores >= 0).all()
    assert (scores <= 1).all()
    np.testing.assert_allclose(scores + back, 1, atol=1e-6)
    assert sorted(judge(folder, question="preference").answers.values()) == [0, 1], "the default answers"
    with pytest.raises(ValueError, match="answers of a preference are from 0"):
        judge(folder, answers={"cat": 5.0, "dog": 1.0}, **options)
