from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, EnsembleMBR

from .worlds import VectorUtility, World


def utilities(world):
    losses = VectorUtility(world.vectors, name="losses", sign=-1.0, tilt=0.9, scale=25.0)
    return world.target(scale=100.0), world.guide(), losses


def plain_means(world, utility):
    return [sum(utility.of_texts(h, r) for r in world.drawn) / len(world.drawn) for h in world.drawn]


@given(st.integers(0, 500))
def test_mean_equals_the_plain_weighted_sum(seed):
    world = World.make(seed, unique=7, draws=16)
    target, guide, losses = utilities(world)
    parts = [plain_means(world, utility) for utility in (target, guide, losses)]
    expected = [0.5 * a / 100 + 0.3 * b - 0.2 * c / 25 for a, b, c in zip(*parts, strict=True)]
    got = EnsembleMBR(weights=(5, 3, 2)).decode(world.drawn, target=target, guides=[guide, losses])
    assert got.text == world.drawn[int(np.argmax(expected))]
    by_text = dict(zip(world.drawn, expected, strict=True))
    np.testing.assert_allclose(got.expected, [by_text[text] for text in got.candidates.texts])
    assert got.higher_is_better


@given(st.integers(0, 500))
def test_rank_equals_average_ranks_over_all_draws(seed):
    world = World.make(seed, unique=7, draws=16)
    target, guide, losses = utilities(world)
    total = [0.0] * len(world.drawn)
    for utility in (target, guide, losses):
        means = [value if utility.higher_is_better else -value for value in plain_means(world, utility)]
        for i, a in enumerate(means):
            for b in means:
                total[i] += 1.0 if b < a - 1e-12 else 0.5 if abs(a - b) <= 1e-12 else 0.0
    got = EnsembleMBR(method="rank").decode(world.drawn, target=target, guides=[guide, losses])
    by_text = dict(zip(world.drawn, total, strict=True))
    expected = [by_text[text] / 3 / len(world.drawn) for text in got.candidates.texts]
    np.testing.assert_allclose(got.expected, expected)
    assert got.index == int(np.argmax(expected))


@pytest.mark.parametrize("method", ["mean", "rank"])
def test_one_utility_with_all_the_weight_decides(method):
    world = World.make(9)
    target, guide, _ = utilities(world)
    got = EnsembleMBR(method=method, weights=(0, 1)).decode(world.drawn, target=target, guides=guide)
    assert [r.text for r in got.nbest()] == [r.text for r in MBR().decode(world.drawn, target=guide).nbest()]


def test_each_utility_scores_every_unique_pair():
    world = World.make(9)
    target, guide, losses = utilities(world)
    got = EnsembleMBR().decode(world.drawn, target=target, guides=[guide, losses])
    assert got.calls == {"target": 144, "guide": 144, "losses": 144}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "median"}, "method must be one of mean, rank"),
        ({"weights": 0.5}, "weights must be a list"),
        ({"weights": [1, -1]}, r"weights\[1\] must be at least 0"),
        ({"weights": [0, 0]}, "not be all 0"),
        ({"weights": [1, float("nan")]}, r"weights\[1\] must be"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EnsembleMBR(**options)


def test_the_number_of_weights_must_fit():
    with pytest.raises(ValueError, match=r"weights has 3 numbers for 2 utilities \(the target and 1 guides\)"):
        EnsembleMBR(weights=[1, 1, 1]).decode(["a", "b"], target="chrf", guides="bleu")
