from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_acpmbr import Candidates
from hf_acpmbr.completion import AgreementALS
from hf_acpmbr.completion.transfer import Transfer
from hf_acpmbr.decoding import AgreementPMBR
from hf_acpmbr.observation import OBSERVATIONS, Adaptive, Budget, Uniform
from hf_acpmbr.observation.adaptive import confidence_in
from hf_acpmbr.protocols import Posterior, View
from hf_acpmbr.utilities import MatrixUtility


def play(plan, matrix, noise=0.0, seed=0):
    """Run a plan against a known matrix with row means of the seen entries as a crude posterior."""
    random = np.random.default_rng(seed)
    n = len(matrix)
    mean, deviation = matrix.mean(1) + random.normal(0, noise, n), np.full(n, 0.5)
    rounds, total, count = [], np.zeros(n), np.zeros(n)
    while len(pairs := plan.next(Posterior(mean, deviation))):
        rounds.append(pairs)
        np.add.at(total, pairs.rows, matrix[pairs.rows, pairs.columns])
        np.add.at(count, pairs.rows, 1)
        mean = np.where(count > 0, total / np.maximum(count, 1), mean - 0.2)
        deviation = 0.5 / np.sqrt(count + 1)
    return rounds


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 900), st.integers(0, 99))
def test_never_more_than_the_budget_and_no_pair_twice(n, m, budget, seed):
    random = np.random.default_rng(seed)
    budget = min(budget, n * m)
    plan = Adaptive(confidence=1).plan(View((n, m), random.integers(1, 9, m), random.integers(1, 9, n)), budget, seed)
    rounds = play(plan, random.random((n, m)), noise=0.1, seed=seed)
    flat = np.concatenate([pairs.flat for pairs in rounds])
    assert 1 <= len(flat) <= budget
    assert len(np.unique(flat)) == len(flat) == plan.spent
    for pairs, size in zip(rounds, plan.sizes, strict=True):
        assert len(np.unique(pairs.rows)) <= size <= n


def test_the_same_seed_asks_for_the_same_pairs():
    matrix = np.random.default_rng(0).random((30, 25))
    first, second, third = (
        play(Adaptive().plan(View((30, 25), np.ones(25), np.ones(30)), 120, seed), matrix) for seed in (5, 5, 6)
    )
    assert [p.flat.tolist() for p in first] == [p.flat.tolist() for p in second]
    assert [p.flat.tolist() for p in first] != [p.flat.tolist() for p in third]


def test_survivors_meet_the_same_pseudo_references_and_fewer_of_them_more():
    matrix = np.random.default_rng(1).random((64, 50))
    plan = Adaptive(confidence=1).plan(View((64, 50), np.ones(50), np.ones(64)), 400, 0)
    rounds = play(plan, matrix)
    assert plan.sizes[0] > 4 * plan.sizes[-1]
    seen = {row: set() for row in range(64)}
    for pairs in rounds:
        for row, column in zip(pairs.rows, pairs.columns, strict=True):
            seen[row].add(column)
        deepest = max(map(len, seen.values()))
        survivors = [row for row in np.unique(pairs.rows) if len(seen[row]) == deepest]
        assert all(seen[row] == seen[survivors[0]] for row in survivors)


def test_only_those_who_can_still_be_the_best_go_on():
    plan = Adaptive(confidence=1).plan(View((50, 40), np.ones(40), np.ones(50)), 500, 0)
    plan.next(Posterior(np.zeros(50), np.zeros(50)))
    mean = np.zeros(50)
    mean[:4] = [1.0, 0.95, 0.9, 0.85]
    rows = np.unique(plan.next(Posterior(mean, np.full(50, 0.1))).rows)
    assert set(rows) <= {0, 1, 2, 3}


def test_those_go_on_who_are_best_at_their_upper_end():
    plan = Adaptive(confidence=1).plan(View((50, 40), np.ones(40), np.ones(50)), 200, 0)
    asked = plan.next(Posterior(np.zeros(50), np.zeros(50))).rows
    mean, deviation = np.full(50, 0.5), np.full(50, 0.01)
    doubtful = np.setdiff1d(np.arange(50), asked)[-4:]
    mean[doubtful], deviation[doubtful] = 0.45, 0.4  # lower on average than all others, and may be much better
    rows = np.unique(plan.next(Posterior(mean, deviation)).rows)
    assert set(doubtful) <= set(rows)
    assert len(rows) < 40


def test_pseudo_references_come_by_weight():
    weights = np.array([50.0, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    first = [Adaptive().plan(View((5, 10), weights, np.ones(5)), 10, seed).order[0] for seed in range(200)]
    assert np.mean(np.array(first) == 0) == pytest.approx(50 / 59, abs=0.08)


def test_the_first_round_follows_the_guide_but_hears_the_prominent_too():
    guide, prominence = np.arange(100.0), np.arange(100.0)[::-1]
    plan = Adaptive().plan(View((100, 80), np.ones(80), prominence), 256, 0)
    rows = np.unique(plan.next(Posterior(guide, np.zeros(100))).rows)
    assert len(rows) == 17
    assert set(range(91, 100)) <= set(rows)
    assert set(range(5)) <= set(rows)


def test_confidence_is_the_union_bound_of_normal_posteriors():
    mean, deviation = np.array([1.0, 0.2, 0.5]), np.array([0.3, 0.4, 0.1])
    expected = 1 - sum(0.5 * math.erfc((1.0 - mean[i]) / math.sqrt(2 * (0.09 + deviation[i] ** 2))) for i in (1, 2))
    assert confidence_in(0, mean, deviation) == pytest.approx(expected)
    assert confidence_in(0, np.array([1.0, 1.0]), np.zeros(2)) == pytest.approx(0.5)
    assert confidence_in(0, np.array([1.0, 2.0]), np.zeros(2)) == 0.0
    assert confidence_in(0, np.array([1.0]), np.zeros(1)) == 1.0


def test_a_clear_leader_ends_it_early_but_not_after_a_single_round():
    plan = Adaptive(confidence=0.9).plan(View((20, 20), np.ones(20), np.ones(20)), 100, 0)
    assert len(plan.next(Posterior(np.arange(20.0), np.zeros(20))))
    assert len(plan.next(Posterior(np.arange(20.0), np.full(20, 0.01))))
    assert not len(plan.next(Posterior(np.arange(20.0), np.full(20, 0.01))))
    assert plan.stopped_early
    assert "stopped early" in plan.status
    assert not len(plan.next(Posterior(np.arange(20.0), np.full(20, 0.01))))


def test_being_sure_after_the_last_round_is_not_stopping_early():
    plan = Adaptive(confidence=0.9).plan(View((20, 20), np.ones(20), np.ones(20)), 100, 0)
    while len(plan.sizes) < 5:
        assert len(plan.next(Posterior(np.zeros(20), np.ones(20))))
    assert not len(plan.next(Posterior(np.arange(20.0), np.full(20, 0.01))))
    assert not plan.stopped_early
    assert "all rounds done" in plan.status


def test_who_is_sure_to_be_the_best_is_who_is_returned():
    mean, deviation = np.array([0.6, 0.4]), np.array([0.2, 0.01])
    plan = Adaptive(confidence=0.8).plan(View((2, 50), np.ones(50), np.ones(2)), 40, 0)
    plan.next(Posterior(mean, np.zeros(2)))
    plan.next(Posterior(mean, deviation))
    plan.next(Posterior(mean, deviation))
    assert plan.ranking(Posterior(mean, deviation))[0] == 1
    assert not plan.stopped_early


def test_who_was_hardly_tried_is_not_returned_over_who_was_tried_well():
    plan = Adaptive().plan(View((3, 3), np.ones(3), np.ones(3)), 4, 0)
    np.testing.assert_array_equal(
        plan.ranking(Posterior(np.array([0.5, 0.6, 0.4]), np.array([0.01, 0.2, 0.0]))), [0, 2, 1]
    )
    np.testing.assert_array_equal(plan.ranking(Posterior(np.array([0.5, 0.6, 0.4]), np.zeros(3))), [1, 0, 2])


def test_posteriors_that_were_too_sure_are_believed_less():
    """Two rounds whose candidates move by three times what the posterior allowed for, and one that keeps its word."""

    def after_two_rounds(moves):
        plan = Adaptive(confidence=1).plan(View((6, 40), np.ones(40), np.ones(6)), 60, 0)
        plan.next(Posterior(np.arange(6.0), np.zeros(6)))
        mean, deviation = np.arange(6.0), np.full(6, 0.5)
        asked = np.unique(plan.next(Posterior(mean, deviation)).rows)
        sign = np.where(np.arange(6) % 2, 1.0, -1.0)
        change, narrower = np.zeros(6), deviation.copy()
        change[asked], narrower[asked] = moves * sign[asked] * 0.4, 0.3  # 0.4² = 0.5² − 0.3²
        return plan._checked(mean + change, narrower) / narrower

    np.testing.assert_allclose(after_two_rounds(0.5), 1.0)
    widened = after_two_rounds(3.0)
    assert np.ptp(widened) == 0
    assert 2 < widened[0] < 4


def test_a_shift_of_all_candidates_alike_is_no_surprise():
    plan = Adaptive(confidence=1).plan(View((6, 40), np.ones(40), np.ones(6)), 60, 0)
    plan.next(Posterior(np.arange(6.0), np.zeros(6)))
    plan.next(Posterior(np.arange(6.0), np.full(6, 0.5)))
    np.testing.assert_allclose(plan._checked(np.arange(6.0) + 100, np.full(6, 0.3)), 0.3)


def test_rounds_need_a_completer_that_knows_how_sure_it_is():
    with pytest.raises(ValueError, match="needs a completer that knows how sure it is, got 'agreement-als'"):
        AgreementPMBR(AgreementALS(), Adaptive(), Budget(scores_per_row=1), (Budget(scores_per_row=4),))


@pytest.mark.parametrize("confidence", [0.0, 1.1, math.nan])
def test_impossible_confidence_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence must be above 0 and at most 1"):
        Adaptive(confidence=confidence)


# -- with the decoder


def world(n=60, seed=0):
    rng = np.random.default_rng(seed)
    quality, parts = rng.normal(size=n), rng.normal(size=(n, 3))
    target = 0.7 + 0.06 * quality[:, None] + 0.02 * rng.normal(size=n) + 0.02 * parts @ parts.T
    guide = target + 0.03 * rng.normal(size=(n, 1)) + 0.04 * rng.normal(size=(n, n))
    target += 0.02 * rng.normal(size=(n, n))
    candidates = Candidates(tuple(f"t{i}" for i in range(n)), rng.integers(1, 6, n))
    return target, guide, candidates


def decode(target, guide, candidates, confidence=1.0, seed=0, completer=None, sign=1.0):
    texts = candidates.texts
    decoder = AgreementPMBR(completer or Transfer(), Adaptive(confidence), Budget(reduction=64), (Budget(reduction=8),))
    utilities = (
        MatrixUtility(sign * matrix, texts, texts, name=name, higher_is_better=sign > 0)
        for name, matrix in (("target", target), ("guide", guide))
    )
    return decoder.decode(candidates, None, *utilities, seed=seed)


def regret(decision, target, candidates):
    expected = target @ candidates.weights
    return expected.max() - expected[decision.index]


def test_adaptive_rounds_beat_masks_of_the_same_size():
    ours, uniform = [], []
    for seed in range(2):
        target, guide, candidates = world(seed=seed)
        decision = decode(target, guide, candidates, seed=seed)
        budget = candidates.total**2 // 64
        assert decision.calls["target"] <= budget
        assert len(decision.observed) == decision.calls["target"]
        ours.append(regret(decision, target, candidates))
        texts = candidates.texts
        plain = AgreementPMBR(Transfer(), Uniform(), Budget(reduction=64), (Budget(reduction=8),))
        masked = plain.decode(
            candidates, None, MatrixUtility(target, texts, texts), MatrixUtility(guide, texts, texts), seed=seed
        )
        uniform.append(regret(masked, target, candidates))
    assert np.mean(ours) <= np.mean(uniform)


def test_decisions_repeat_and_errors_mirror_gains():
    target, guide, candidates = world(seed=1)
    first, second = (decode(target, guide, candidates) for _ in range(2))
    assert first.index == second.index
    np.testing.assert_array_equal(first.observed.pairs.flat, second.observed.pairs.flat)
    errors = decode(target, guide, candidates, sign=-1.0)
    assert errors.index == first.index
    np.testing.assert_allclose(errors.expected, -first.expected, atol=1e-6)


def test_the_decision_says_that_it_stopped_early():
    target, guide, candidates = world(seed=2)
    target[5] += 0.3
    guide[5] += 0.3
    decision = decode(target, guide, candidates, confidence=0.95)
    assert decision.index == 5
    assert "stopped early" in decision.status
    assert "observation:adaptive(confidence=0.95)" in decision.signature
    assert decision.calls["target"] < candidates.total**2 // 64


def test_a_completer_without_uncertainty_is_refused():
    with pytest.raises(ValueError, match="choose completer='transfer'"):
        decode(*world(), completer=AgreementALS())


def test_by_name():
    assert OBSERVATIONS.build("adaptive") == Adaptive()
    assert len(Adaptive().mask((30, 30), 60, 0)) == 60
