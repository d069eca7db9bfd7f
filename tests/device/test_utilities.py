"""Networks of utilities on an accelerator: the scores of the CPU, two at once, and batches that halve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_acpmbr import ACPMBR
from hf_acpmbr.metrics.network import NetworkUtility
from hf_acpmbr.scoring import Scorer, Utility
from tests.metrics.cases import CASES, SOURCES, TEXTS

from .simulated import needs_hook, simulated_device

pytestmark = needs_hook
NETWORKS = (
    *("embedded", "bleurt", "comet", "comet-qe", "unite", "mt-ref", "xcomet"),
    *("metricx", "bertscore", "embedding"),
)
GRID = np.divmod(np.arange(36), 6)


def made(name: str, folder: Path, **options: Any) -> NetworkUtility[torch.nn.Module]:
    pytest.importorskip(CASES[name].needs)
    utility = CASES[name].make(folder, **options)
    assert isinstance(utility, NetworkUtility)
    return utility


def prepared(utility: Utility) -> Scorer:
    source = SOURCES[0] if utility.needs_source or utility.takes_source else None
    return utility.prepare(TEXTS[:6], TEXTS[2:8], source)


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_those_of_the_cpu(name: str, tmp_path: Path) -> None:
    expected = prepared(made(name, tmp_path, device="cpu"))(*GRID)
    with simulated_device(float64=False) as traffic:  # as MPS
        utility = made(name, tmp_path, device="sim:1")
        np.testing.assert_allclose(prepared(utility)(*GRID), expected, atol=1e-4)
        assert traffic.held[torch.device("sim:1")] > 0
        assert traffic.held[torch.device("sim:0")] == 0, "nothing is on the device that nobody named"


@pytest.mark.parametrize("name", ["comet", "embedding"])
def test_vectors_and_averaged_references_are_those_of_the_cpu(name: str, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(6), 2)

    def results(device: str) -> list[np.ndarray]:
        scorer = prepared(made(name, tmp_path, device=device))
        return [scorer.aggregate_scores(np.arange(6), weights), *scorer.vectors()]

    expected = results("cpu")
    with simulated_device(float64=False):
        for one, other in zip(results("sim:1"), expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision_is_taken_where_the_device_has_it(name: str, tmp_path: Path) -> None:
    expected = prepared(cpu := made(name, tmp_path, device="cpu"))(*GRID)
    halves = {torch.float16, torch.bfloat16}
    own = getattr(torch, cpu.half)
    with simulated_device(sorted(halves - {own}, key=str)):
        assert made(name, tmp_path).dtype == "float32", "the device has the other type only"
    with simulated_device([own]):
        utility = made(name, tmp_path)
        scores = prepared(utility)(*GRID)
        assert {weight.dtype for weight in utility.network.parameters()} == {own}
    assert np.corrcoef(scores, expected)[0, 1] > 0.95


@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_that_does_not_fit_into_memory_is_halved_until_it_does(name: str, tmp_path: Path) -> None:
    with simulated_device() as traffic:
        device = torch.device("sim:0")
        utility = made(name, tmp_path, device="sim", batch_tokens=32768)
        scorer, _ = prepared(utility), utility.network
        weights = traffic.held[device]
        expected = scorer(*GRID)
        room = (traffic.peak[device] - weights) // 3
    with simulated_device() as traffic:
        utility = made(name, tmp_path, device="sim", batch_tokens=32768)
        scorer, _ = prepared(utility), utility.network
        traffic.budget = traffic.held[device] + room
        scores = scorer(*GRID)
    assert traffic.refused > 0
    assert scorer.statistics.out_of_memory > 0
    assert utility.batch_tokens < 32768
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_memory_for_less_than_one_sequence_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with simulated_device() as traffic:
        scorer = prepared(utility := made("bleurt", tmp_path, device="sim"))
        _ = utility.network
        traffic.budget = traffic.held[torch.device("sim:0")] + 1000
        with pytest.raises(RuntimeError, match=r"one sequence of .* tokens does not fit into memory: use a smaller"):
            scorer(*GRID)


def test_a_guide_whose_memory_runs_out_changes_no_choice() -> None:
    pools = [TEXTS, TEXTS[3:], TEXTS[:5]]
    expected = ACPMBR(target="embedded", distilled="embedded-d1").rerank_many(pools)
    with simulated_device() as traffic:
        mbr = ACPMBR(target={"name": "embedded", "device": "sim:1"}, distilled={"name": "embedded-d1", "device": "sim"})
        _ = mbr.target.network, mbr.guides[0].network
        traffic.budget = max(traffic.held.values()) + 400_000
        decisions = mbr.rerank_many(pools)
    assert traffic.refused > 0
    assert [decision.text for decision in decisions] == [decision.text for decision in expected]
