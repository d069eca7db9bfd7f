"""What a pair and a text cost: each family by what it runs, counted in its network, and what the user declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_acpmbr.metrics.network import NetworkUtility
from hf_acpmbr.scoring import MatrixUtility, Utility, as_utility, load_utility
from hf_acpmbr.scoring.utility import SENTENCE_TOKENS

from .cases import CASES, length_difference
from .checkpoints import write_comet, write_metricx


def prices(utility: Utility) -> tuple[float | None, float | None]:
    return utility.price_per_pair, utility.price_per_text


def sizes(utility: Utility, *parts: str) -> list[int]:
    """Parameters of the whole network and of its parts."""
    assert isinstance(utility, NetworkUtility)
    named = list(utility.network.named_parameters())
    return [sum(w.numel() for name, w in named if name.startswith(part)) for part in ("", *parts)]


def made(name: str, folder: Path, **options: Any) -> Utility:
    pytest.importorskip(CASES[name].needs)
    return CASES[name].make(folder, **options)


@pytest.mark.parametrize("name", ["embedded", "bleurt", "metricx"])
def test_networks_that_read_both_texts_cost_their_parameters_per_pair(name: str, tmp_path: Path) -> None:
    utility = made(name, tmp_path)
    assert prices(utility) == (sizes(utility)[0], 0)


def test_names_whose_size_is_known_have_prices_without_weights() -> None:
    assert prices(load_utility("bleurt-20", device="cpu")) == (579e6, 0)
    assert prices(load_utility("metricx-24-qe", device="cpu")) == (1230e6, 0)
    assert load_utility("embedding-cosine", device="cpu").price_per_text == 118e6


def test_the_price_of_quality_estimation_is_that_of_a_hypothesis(tmp_path: Path) -> None:
    metricx = load_utility(str(write_metricx(tmp_path / "metricx")), reference_free=True, score_token=7)
    assert prices(metricx) == (sizes(metricx)[0], 0)
    kiwi = load_utility(
        str(write_comet(tmp_path / "kiwi", 1, class_identifier="unified_metric", input_segments=["mt", "src"]))
    )
    assert prices(kiwi) == (sizes(kiwi)[0], 0)
    vectors = made("comet-qe", tmp_path / "qe")
    whole, head = sizes(vectors, "estimator")
    width = vectors.network.regression[0].in_features // 4  # type: ignore[attr-defined]
    assert prices(vectors) == ((head + width) / SENTENCE_TOKENS, whole - head)


def test_comet_encodes_texts_and_runs_a_part_of_its_head_per_pair(tmp_path: Path) -> None:
    comet = made("comet", tmp_path)
    whole, head = sizes(comet, "estimator")
    first = comet.network.regression[0].weight  # type: ignore[attr-defined]
    width = first.shape[1] // 6
    # Of the blocks mt, ref, mt·ref, |mt−ref|, mt·src and |mt−src|, two belong to the pair.
    per_pair = head - 4 * width * first.shape[0] + width
    assert prices(comet) == (pytest.approx(per_pair / SENTENCE_TOKENS), whole - head)
    known = load_utility(comet.checkpoint, parameters=10**6)  # type: ignore[attr-defined]
    assert prices(known)[1] == 10**6 - head
    assert known._network is None, "a size that is known needs no weights"  # type: ignore[attr-defined]


def test_unified_metrics_with_source_and_reference_share_one_of_three_passes(tmp_path: Path) -> None:
    whole = sizes(unite := made("unite", tmp_path / "unite"))[0]
    assert prices(unite) == (2 * whole, whole)
    whole = sizes(pair := made("mt-ref", tmp_path / "pair"))[0]
    assert prices(pair) == (whole, 0)


@pytest.mark.parametrize("name", ["bertscore", "embedding"])
def test_encoders_cost_their_parameters_per_text_and_next_to_nothing_per_pair(name: str, tmp_path: Path) -> None:
    utility = made(name, tmp_path)
    assert utility.price_per_text == sizes(utility)[0]
    assert 0 < utility.price_per_pair < load_utility("bleurt-20-d3", device="cpu").price_per_pair / 100


def test_string_metrics_cost_less_than_the_smallest_network() -> None:
    smallest = load_utility("embedded-d2").price_per_pair
    for name in ("chrf", "chrf++", "bleu"):
        per_pair, per_text = prices(load_utility(name))
        assert 0 < per_pair < per_text < smallest
    assert prices(load_utility("chrf"))[0] < prices(load_utility("ter"))[0], "its search takes longer"


def test_what_nobody_knows_has_no_price_and_what_the_user_says_counts() -> None:
    assert prices(as_utility(length_difference)) == (None, None)
    assert prices(as_utility(length_difference, parameters=70)) == (70, 0)
    assert prices(as_utility(length_difference, price_per_pair=5, price_per_text=2)) == (5, 2)
    assert prices(as_utility(length_difference, parameters=70, price_per_text=9)) == (70, 9)
    assert prices(load_utility("chrf", price_per_pair=0))[0] == 0
    assert prices(load_utility("bleurt-20", device="cpu", price_per_pair=1.5)) == (1.5, 0)
    assert prices(MatrixUtility(np.eye(2))) == (None, None)
    stored = MatrixUtility.standing_for(load_utility("chrf"), np.eye(2), ["a", "b"])
    assert prices(stored) == prices(load_utility("chrf"))

    class Priced:
        higher_is_better, price_per_pair, price_per_text = True, 3.0, 4.0

        def score(self, hypotheses: list[str], references: list[str]) -> list[float]:
            return [0.0] * len(hypotheses)

    assert prices(as_utility(Priced())) == (3, 4)
    for bad in (-1, float("nan"), float("inf"), "cheap", True):
        with pytest.raises(ValueError, match="price_per_pair must be"):
            load_utility("chrf", price_per_pair=bad)
