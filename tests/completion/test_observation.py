from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from hf_acpmbr.completion.observation import Balanced, Uniform
from hf_acpmbr.config import OBSERVATIONS
from hf_acpmbr.recipe import Budget

shapes = st.tuples(st.integers(1, 25), st.integers(1, 25))


@given(shapes, st.floats(0, 1), st.integers(0, 2**32))
def test_balanced_plans_are_even_in_rows_and_columns(shape, share, seed):
    budget = max(1, round(share * shape[0] * shape[1]))
    pairs = Balanced().mask(shape, budget, seed)
    assert len(pairs) == budget == len(set(pairs.flat.tolist()))
    assert np.ptp(np.bincount(pairs.rows, minlength=shape[0])) <= 1
    assert np.ptp(np.bincount(pairs.columns, minlength=shape[1])) <= 1


@given(shapes, st.floats(0, 1), st.integers(0, 2**32), st.sampled_from(["balanced", "uniform"]))
def test_a_plan_has_just_the_budget_and_depends_on_the_seed_alone(shape, share, seed, name):
    budget = max(1, round(share * shape[0] * shape[1]))
    observe = OBSERVATIONS.build(name).mask
    pairs = observe(shape, budget, seed)
    assert len(pairs) == budget
    np.testing.assert_array_equal(pairs.flat, observe(shape, budget, seed).flat)
    assert observe(shape, shape[0] * shape[1] + 5, seed).complete


@pytest.mark.parametrize("name", ["balanced", "uniform"])
@pytest.mark.parametrize(("shape", "budget"), [((6, 6), 9), ((7, 4), 9), ((3, 8), 20)])
def test_every_pair_is_equally_likely(name, shape, budget):
    runs = 1200
    times = np.zeros(shape[0] * shape[1])
    for seed in range(runs):
        times[OBSERVATIONS.build(name).mask(shape, budget, seed).flat] += 1
    # Entries of one plan exclude each other, so the statistic is below a chi-square's: the test is conservative.
    assert chisquare(times).pvalue > 1e-4


@pytest.mark.parametrize("shape", [(60, 60), (60, 50)])
def test_rows_of_a_balanced_plan_do_not_share_their_columns_more_than_by_chance(shape):
    """A band of shifted rows is even too, but information crosses it only slowly."""
    pairs = Balanced().mask(shape, 10 * shape[0], seed=1)
    mask = np.zeros(shape)
    mask[pairs.rows, pairs.columns] = 1
    overlap = (mask @ mask.T)[np.triu_indices(shape[0], 1)]
    assert overlap.max() <= 7, "a band has neighbours that share 9 of 10"


def test_uniform_leaves_rows_empty_where_balanced_does_not():
    shape, budget = (1024, 1024), 2048
    empty = {o.name: 1024 - len(np.unique(o.mask(shape, budget, 0).rows)) for o in (Uniform(), Balanced())}
    assert 90 < empty["uniform"] < 190, "about 1024·e⁻² rows"
    assert empty["balanced"] == 0


@pytest.mark.parametrize("name", ["balanced", "uniform"])
def test_memory_grows_with_the_budget_and_not_with_the_matrix(name):
    tracemalloc.start()
    pairs = OBSERVATIONS.build(name).mask((200_000, 200_000), 10_000, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(pairs) == 10_000
    assert peak < 20e6


@pytest.mark.parametrize(
    ("budget", "unique", "drawn", "expected"),
    [
        (Budget(reduction=32), (1024, 1024), None, 32768),
        (Budget(reduction=1024), (1024, 1024), None, 1024),
        (Budget(reduction=32), (100, 100), (1024, 1024), 10_000),
        (Budget(reduction=32), (500, 500), (1024, 1024), 32768),
        (Budget(reduction=1000), (5, 5), None, 1),
        (Budget(reduction=1), (5, 7), None, 35),
        (Budget(scores_per_row=32), (1024, 1024), None, 32768),
        (Budget(scores_per_row=32), (500, 500), (1024, 1024), 32768),
        (Budget(scores_per_row=1), (64, 64), None, 64),
        (Budget(scores_per_row=16), (8, 8), None, 64),
        (Budget(scores_per_row=0.5), (64, 64), None, 32),
        (Budget(scores_per_row=0.7), (30, 30), None, 21),  # 20.999999999999996 in floats
        (Budget(reduction=4.9), (49, 10), None, 100),
    ],
)
def test_budgets_count_what_was_drawn_and_never_exceed_the_unique_pairs(budget, unique, drawn, expected):
    assert budget.pairs(unique, drawn) == expected


def test_scores_per_row_are_a_rate():
    assert Budget(scores_per_row=32).rate(1024) == 32
    assert Budget(scores_per_row=32).rate(8) == 1
    assert str(Budget(reduction=32)) == "r32"
    assert str(Budget(scores_per_row=16)) == "16/row"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either reduction or scores_per_row"),
        ({"reduction": 2, "scores_per_row": 2}, "either reduction or scores_per_row"),
        ({"reduction": 0.5}, "at least 1"),
        ({"scores_per_row": 0}, "above 0"),
        ({"reduction": float("nan")}, "at least 1"),
    ],
)
def test_budgets_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Budget(**arguments)


def test_an_unknown_plan_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'random' is unknown: choose one of balanced, uniform"):
        OBSERVATIONS.build("random")
    with pytest.raises(ValueError, match="'adaptive' is unknown: choose one of balanced, uniform"):
        OBSERVATIONS.build("adaptive")
