from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, HalvingMBR, NByS
from hf_acpmbr.decoding.halving import affordable
from hf_acpmbr.recipe import Budget
from hf_acpmbr.scoring import MatrixUtility

from .worlds import World, shuffled


def plain_halving(world, target, seed, budget):
    """Rounds over the expanded list; every survivor meets the same references, old ones keep counting."""
    references = shuffled(world.drawn, seed)
    by_count = sorted(world.texts, key=lambda text: -world.drawn.count(text))
    alive = by_count
    while sum(math.ceil(len(alive) / 2**r) for r in range(math.ceil(math.log2(len(alive))))) > budget:
        alive = alive[:-1]
    alive = [text for text in world.texts if text in alive]
    rounds = math.ceil(math.log2(len(alive)))
    scored, taken = set(), 0
    while len(alive) > 1:
        fresh = max(1, (budget - len(scored)) // (len(alive) * rounds))
        wanted = len(set(references[:taken])) + fresh
        while taken < len(references) and len(set(references[: taken + 1])) <= wanted:
            taken += 1
        seen = references[:taken]
        scored |= {(h, r) for h in alive for r in seen}
        means = {h: sum(target.of_texts(h, r) for r in seen) / taken for h in alive}
        keep = 1 if taken == len(references) else math.ceil(len(alive) / 2)
        best = sorted(alive, key=lambda h: -means[h])[:keep]
        alive = [h for h in alive if h in best]
        rounds -= 1
    return alive[0], len(scored)


@given(st.integers(0, 1000), st.sampled_from([2, 4, 8, 16, 30]))
def test_equals_the_plain_rounds(seed, reduction):
    world = World.make(seed, unique=11, draws=26)
    target = world.target()
    budget = int(26 * 26 / reduction)
    got = HalvingMBR(Budget(reduction=reduction)).decode(world.drawn, target=target, seed=seed)
    if budget >= 121:
        assert got.exact
        return
    best, calls = plain_halving(world, target, seed, budget)
    assert got.text == best
    assert got.calls == {"target": calls}
    assert calls <= budget


def test_the_rounds_halve():
    world = World.make(1, unique=100, draws=100)
    got = HalvingMBR(Budget(reduction=16)).decode(world.drawn, target=world.target())
    assert list(got.rounds)[:4] == [100, 50, 25, 13]
    assert list(got.rounds)[-1] == 1


def test_a_full_budget_is_exact_mbr():
    world = World.make(4)
    got = HalvingMBR(Budget(reduction=1)).decode(world.drawn, target=world.target())
    assert got.exact
    np.testing.assert_array_equal(got.expected, MBR().decode(world.drawn, target=world.target()).expected)


@pytest.mark.parametrize("reduction", [40, 60, 100, 400])
def test_tiny_budgets_are_kept_by_fewer_contenders(reduction):
    world = World.make(5, unique=20, draws=20)
    got = HalvingMBR(Budget(reduction=reduction)).decode(world.drawn, target=world.target())
    assert got.total_calls <= 400 // reduction
    assert np.isfinite(got.expected[got.index]) or got.total_calls == 0


def test_with_one_call_the_most_drawn_is_chosen():
    got = HalvingMBR(Budget(reduction=100)).decode({"a": 1, "b": 6, "c": 3}, target="chrf")
    assert got.text == "b"
    assert got.total_calls == 0
    assert np.isnan(got.expected).all()


@pytest.mark.parametrize(
    ("candidates", "budget", "expected"), [(8, 14, 8), (8, 13, 7), (5, 10, 5), (3, 1, 1), (1, 1, 1)]
)
def test_affordable(candidates, budget, expected):
    assert affordable(candidates, budget) == expected


def test_reference_effects_cancel():
    """Shared references: with row and column effects only, the first round already ranks the rows without error."""
    rng = np.random.default_rng(0)
    rows, columns = rng.normal(size=(64, 1)), 10 * rng.normal(size=(1, 64))
    texts = [str(i) for i in range(64)]
    for seed in range(5):
        got = HalvingMBR(Budget(reduction=32)).decode(texts, target=MatrixUtility(rows + columns), seed=seed)
        assert got.index == int(rows.argmax())


def test_less_regret_than_n_by_s_at_equal_cost():
    rng = np.random.default_rng(1)
    regret = {"halving": [], "n-by-s": []}
    for seed in range(30):
        matrix = rng.normal(size=(128, 1)) * 0.1 + 0.5 * rng.normal(size=(128, 128))
        texts, means = [str(i) for i in range(128)], matrix.mean(1)
        for decoder in (HalvingMBR(Budget(reduction=8)), NByS(num_references=16)):
            got = decoder.decode(texts, target=MatrixUtility(matrix), seed=seed)
            assert got.total_calls <= 128 * 16
            regret[decoder.name].append(means.max() - means[got.index])
    assert np.mean(regret["halving"]) < 0.7 * np.mean(regret["n-by-s"])


@pytest.mark.parametrize("value", [0.5, 0, -3, "2", math.inf, math.nan])
def test_a_wrong_reduction_is_refused(value):
    with pytest.raises(ValueError, match="reduction must be"):
        HalvingMBR(Budget(reduction=value))
