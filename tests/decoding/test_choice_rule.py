"""What is chosen with `logprob_weight`: expected utility + weight · log-probability, by every decoder."""

from __future__ import annotations

import json
from unittest import mock

import numpy as np
import pytest

from hf_acpmbr import ACPMBR, Candidates, Recipe
from hf_acpmbr.config import DECODERS
from hf_acpmbr.scoring import MatrixUtility, decide_together

from ..contracts.test_decoders import CASES, start, the_class
from .worlds import World

WEIGHING = [name for name in CASES if name != "map"]
# Rank by expected utilities alone, so that the whole ranking can be recomputed from them.
PLAIN = ("mbr", "pmbr", "acpmbr", "acpmbr+transfer", "oracle", "n-by-s", "centroid", "model-based", "qe")


def weighed(name: str, world: World, weight: float, sign: float = 1.0, seed: int = 0):
    """The decision of one decoder with a weight."""
    with mock.patch.dict(CASES[name].options, {"logprob_weight": weight}):
        source = start(name, world, sign=sign, seed=seed)
    return decide_together([source])[0]


@pytest.mark.parametrize("name", WEIGHING)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_with_a_large_weight_the_most_probable_text_is_chosen(name: str, sign: float) -> None:
    for seed in range(3):
        world = World.make(seed)
        got = weighed(name, world, 1e3, sign)
        assert got.index == int(np.argmax(got.candidates.logprobs)), name
        assert np.abs(got.expected[np.isfinite(got.expected)]).max() < 100, "the weight is no part of it"


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_ranking_is_that_of_the_sum(name: str, sign: float) -> None:
    world = World.make(4)
    plain, got = weighed(name, world, 0.0, sign), weighed(name, world, 0.2, sign)
    np.testing.assert_allclose(got.expected, plain.expected)
    total = [sign * e + 0.2 * lp for e, lp in zip(got.expected, got.candidates.logprobs, strict=True)]
    assert got.ranking.tolist() == sorted(range(len(total)), key=lambda k: -total[k])
    assert got.calls == plain.calls


def test_rounds_stop_by_the_sum_and_report_expected_utilities_without_it() -> None:
    rng = np.random.default_rng(0)
    texts, quality = [f"t{k}" for k in range(60)], rng.normal(0, 0.1, 60)
    matrix = quality[:, None] + rng.normal(0, 0.05, (60, 60))
    logprobs = -rng.exponential(3.0, 60)
    pool = Candidates.from_texts(texts, logprobs=logprobs)
    target = MatrixUtility(matrix, texts)
    got = DECODERS.build("rounds", max_regret=0.001, logprob_weight=0.1).decode(pool, target=target)
    total = matrix.mean(axis=1) + 0.1 * logprobs
    assert got.calls["matrix"] < 3600
    assert total[got.index] >= total.max() - 0.01
    np.testing.assert_allclose(got.observed.values, matrix[got.observed.rows, got.observed.columns])
    assert np.corrcoef(got.expected, matrix.mean(axis=1))[0, 1] > 0.5


@pytest.mark.parametrize("name", sorted({the_class(name).name for name in WEIGHING}))
def test_without_log_probabilities_the_weight_is_refused(name: str) -> None:
    world, needs = World.make(0), the_class(name).needs
    given = world.candidates()
    unknown = np.full(len(given), -np.inf) if "logprobs" in needs else None
    given = Candidates(given.texts, given.counts, logprobs=unknown)
    references = given if "references" in needs else None
    target = world.target() if "target" in needs else None
    guides = world.guide() if "guide" in needs else ()
    with pytest.raises(ValueError, match="logprob_weight=1 needs a finite log-probability of every candidate"):
        DECODERS.build(name, logprob_weight=1).decode(given, references, target, guides)


def test_map_refuses_it_by_name() -> None:
    with pytest.raises(ValueError, match="map chooses by log-probability alone: leave logprob_weight out"):
        Recipe.named(decoder="map", logprob_weight=1)


def test_the_weight_is_a_keyword_and_shows_where_it_is_not_zero() -> None:
    recipe = Recipe.named("fast", target="chrf", logprob_weight=1.5)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert json.loads(recipe.to_json())["decoder"]["logprob_weight"] == 1.5
    assert "logprob_weight" not in Recipe.named("fast", target="chrf").to_json()
    pool = Candidates.from_texts(["a b", "a c", "b"], logprobs=[-9.0, -1.0, -5.0])
    line = ACPMBR(recipe=recipe).rerank(pool).full_signature
    assert "|logprob_weight:1.5|" in line
    assert line.replace("logprob_weight:1.5|", "") == ACPMBR(target="chrf", recipe="fast").rerank(pool).full_signature


def test_the_weight_counts_on_the_guide_s_scale_where_a_guide_chooses() -> None:
    world = World.make(5)
    decoder = DECODERS.build({"name": "coarse-to-fine", "keep": 4, "logprob_weight": 0.1})
    small, large = (
        decoder.decode(world.candidates(), target=world.target(), guides=world.guide(scale=scale))
        for scale in (1.0, 100.0)
    )
    assert small.shortlist.tolist() == large.shortlist.tolist()
    plain = DECODERS.build({"name": "coarse-to-fine", "keep": 4})
    without = plain.decode(world.candidates(), target=world.target(), guides=world.guide())
    assert small.shortlist.tolist() != without.shortlist.tolist(), "or the weight has no effect here"
