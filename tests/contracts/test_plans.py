"""What every plan keeps, whatever it asks for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_acpmbr.protocols import Plan, Posterior, View
from hf_acpmbr.registry import OBSERVATIONS

every_plan = pytest.mark.parametrize("name", OBSERVATIONS)


def play(plan: Plan, matrix: np.ndarray) -> list[np.ndarray]:
    """Answer a plan with row means of what it has seen, until it asks for nothing more."""
    n = len(matrix)
    total, count = np.zeros(n), np.zeros(n)
    posterior, rounds = Posterior.flat(n), []
    while len(pairs := plan.next(posterior)):
        rounds.append(pairs.flat)
        np.add.at(total, pairs.rows, matrix[pairs.rows, pairs.columns])
        np.add.at(count, pairs.rows, 1)
        posterior = Posterior(np.where(count > 0, total / np.maximum(count, 1), 0.0), 0.5 / np.sqrt(count + 1))
    ranking = plan.ranking(posterior)
    assert sorted(ranking.tolist()) == list(range(n))
    return rounds


@every_plan
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(1, 25), st.integers(1, 400), st.integers(0, 99))
def test_never_more_than_the_budget_and_no_pair_twice(name, n, m, budget, seed):
    random = np.random.default_rng(seed)
    view = View((n, m), random.random(m) + 0.1, random.integers(1, 9, n))
    rounds = play(OBSERVATIONS.build(name).plan(view, min(budget, n * m), seed), random.random((n, m)))
    asked = np.concatenate(rounds)
    assert 1 <= len(asked) <= budget
    assert len(np.unique(asked)) == len(asked)
    assert asked.min() >= 0
    assert asked.max() < n * m


@every_plan
def test_a_plan_depends_on_the_seed_and_on_nothing_else(name):
    matrix = np.random.default_rng(0).random((30, 25))
    plans = [OBSERVATIONS.build(name).plan(View.plain((30, 25)), 150, seed) for seed in (5, 5, 6)]
    first, second, third = ([part.tolist() for part in play(plan, matrix)] for plan in plans)
    assert first == second != third


@every_plan
def test_in_rounds_is_said_truly(name):
    observation = OBSERVATIONS.build(name)
    plan = observation.plan(View.plain((40, 40)), 400, 0)
    rounds = play(plan, np.random.default_rng(1).random((40, 40)))
    assert (len(rounds) > 1) == observation.in_rounds
    assert len(plan.rounds) == (len(rounds) if observation.in_rounds else 0)
    assert (plan.status is not None) == observation.in_rounds
    assert not len(plan.next(Posterior.flat(40))), "it stays done"


@every_plan
def test_masks_for_guides_have_just_the_budget(name):
    observation = OBSERVATIONS.build(name)
    assert len(observation.mask((20, 30), 123, 4)) == 123
    assert observation.mask((5, 4), 20, 0).complete


@every_plan
def test_the_json_form_is_the_plan(name):
    observation = OBSERVATIONS.build(name)
    written = json.loads(json.dumps(observation.to_dict()))
    assert written["name"] == name
    assert OBSERVATIONS.build(written) == observation
    with pytest.raises(ValueError, match="'misspelt' is not a setting"):
        OBSERVATIONS.build({**written, "misspelt": 1})
