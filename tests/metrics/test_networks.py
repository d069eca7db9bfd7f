"""What every metric network keeps to: evaluation mode, batches that shrink when memory runs out, one scale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_acpmbr.metrics.network import NetworkUtility
from hf_acpmbr.scoring import Kernel, Statistics, TextTable, Utility

from .cases import CASES, SOURCES, TEXTS

NETWORKS = ("bleurt", "comet", "unite", "xcomet", "metricx", "bertscore", "embedding")
PAIRS = np.divmod(np.arange(16), 4)
MOST_ROWS = 2


def made(name: str, folder: Path, **options: Any) -> NetworkUtility[torch.nn.Module]:
    pytest.importorskip(CASES[name].needs)
    utility = CASES[name].make(folder, **options)
    assert isinstance(utility, NetworkUtility)
    return utility


def batching(batch_tokens: int) -> NetworkUtility[torch.nn.Module]:
    class Nothing(NetworkUtility[torch.nn.Module]):
        def load(self) -> torch.nn.Module:
            return torch.nn.Identity()

        def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
            raise NotImplementedError

    return Nothing("nothing", device="cpu", batch_tokens=batch_tokens)


def matrix(utility: Utility) -> tuple[np.ndarray, int]:
    """Scores of a few pairs, and how often memory ran out."""
    source = SOURCES[0] if utility.needs_source or utility.takes_source else None
    scorer = utility.prepare(TEXTS[1:5], TEXTS[3:7], source)
    return scorer(*PAIRS), scorer.statistics.out_of_memory


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_score_in_evaluation_mode_and_without_gradients(name: str, tmp_path: Path) -> None:
    utility = made(name, tmp_path)
    for module in utility.network.modules():
        assert not module.training, f"{type(module).__name__} would drop units at random"
    assert not any(weight.requires_grad for weight in utility.network.parameters())


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


def test_batches_are_filled_by_tokens_longest_first() -> None:
    lengths = np.array([3, 10, 4, 9, 2, 5])
    seen: list[list[int]] = []
    statistics = Statistics()
    batching(20).encode(lengths, lambda batch: seen.append(batch.tolist()), lambda batch, out: None, statistics)
    assert seen == [[1, 3], [5, 2], [0, 4]], "a batch is full, or ends where sequences get much shorter"
    assert (statistics.tokens, statistics.padded_tokens, statistics.batches) == (33, 36, 3)
    assert statistics.padding == pytest.approx(3 / 36)


@pytest.mark.parametrize(("tokens", "sizes"), [(400, [5]), (383, [1, 4])])
def test_a_batch_ends_where_the_padding_saved_is_worth_another(tokens: int, sizes: list[int]) -> None:
    seen: list[int] = []
    lengths = np.array([10, 4, 3, 2, 1])  # four sequences that would have 24 tokens of padding less
    batching(tokens).encode(lengths, lambda batch: seen.append(batch.size), lambda batch, out: None, Statistics())
    assert seen == sizes


@pytest.mark.parametrize(("fitting", "halved"), [(2, 2), (1, 3)])
def test_out_of_memory_halves_and_remembers(fitting: int, halved: int) -> None:
    batches = batching(80)
    statistics = Statistics()
    done: list[int] = []

    def forward(batch: np.ndarray) -> np.ndarray:
        if batch.size > fitting:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch

    batches.encode(np.full(8, 10), forward, lambda batch, out: done.extend(out.tolist()), statistics)
    assert sorted(done) == list(range(8))
    assert statistics.out_of_memory == halved
    assert batches.batch_tokens == 10 * fitting
    batches.encode(np.full(8, 10), forward, lambda batch, out: None, statistics)
    assert statistics.out_of_memory == halved, "the smaller budget is remembered"


def test_one_sequence_that_does_not_fit_is_an_error_with_a_remedy() -> None:
    def forward(batch: np.ndarray) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes")

    with pytest.raises(RuntimeError, match="one sequence of 7 tokens does not fit"):
        batching(20).encode(np.array([7]), forward, lambda batch, out: None, Statistics())
    with pytest.raises(RuntimeError, match="other trouble"):
        batching(20).encode(np.array([7]), _fail, lambda batch, out: None, Statistics())


def _fail(batch: np.ndarray) -> None:
    raise RuntimeError("other trouble")
