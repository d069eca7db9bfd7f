"""What more draws could gain, against enumerations and plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from hf_acpmbr.decoding import draw_loss
from hf_acpmbr.decoding.draw_loss import Contenders

VALUES = st.lists(st.floats(-3, 3), min_size=1, max_size=8)


@given(VALUES, st.data())
def test_the_expected_maximum_is_the_mean_over_all_subsets(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    maxima = [max(subset) for subset in itertools.combinations(values, k)]
    falling = np.sort(values)[::-1]
    assert draw_loss.expected_maximum(falling, k) == pytest.approx(np.mean(maxima), abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(21, 100))
def test_what_is_not_drawn_yet_follows_the_formula_written_as_loops(values: list[float], most: int) -> None:
    counts = np.arange(1, len(values) + 1)
    drawn = sorted(itertools.chain.from_iterable([value] * count for value, count in zip(values, counts, strict=True)))
    n, rho = len(drawn), 0.6

    def best_of(k: int) -> float:
        # P(the maximum is the r-th smallest) counts the subsets whose largest place is r.
        k = max(k, 1)
        return sum(drawn[r] * math.comb(r, k - 1) for r in range(k - 1, n)) / math.comb(n, k)

    gains = [best_of(n >> j) - best_of(n >> (j + 1)) for j in range(3)]
    gain = sum(rho**j * each for j, each in enumerate(gains)) / 3
    doublings, total = math.log2(most / n), 0.0
    for j in range(1, int(doublings) + 2):
        total += rho**j * min(max(doublings - (j - 1), 0.0), 1.0)
    found = draw_loss.unseen_loss(np.array(values), counts, most)
    assert found == pytest.approx(gain * total, abs=1e-9)
    assert found >= -1e-12


def test_equal_candidates_have_nothing_to_gain() -> None:
    counts, scores = np.array([5, 3, 2]), np.full((3, 3), 0.7)
    every = np.arange(3)
    random = np.random.default_rng(0)
    assert draw_loss.unseen_loss(np.full(3, 0.7), counts, 100) == pytest.approx(0)
    block = Contenders(scores, every, every, counts, 100)
    assert block.reference_loss(np.full(3, 0.7), random) == pytest.approx(0)
    assert block.split_loss(random) == pytest.approx(0)


def test_an_own_draw_is_taken_out_of_a_mean() -> None:
    random = np.random.default_rng(0)
    counts, scores = np.array([1, 3, 2]), random.random((3, 3))
    n = int(counts.sum())
    means = scores @ counts / n
    found = Contenders(scores, np.arange(3), np.arange(3), counts, 100).without_own_draw(means, scores.diagonal())
    for i in range(3):
        others = [scores[i, j] for j in range(3) for _ in range(counts[j] - (i == j))]
        assert found[i] == pytest.approx(np.mean(others))


def test_the_references_noise_of_two_contenders_has_its_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_loss, "_WORLDS", 200_000)
    random = np.random.default_rng(1)
    counts, most = np.array([4, 4, 4, 4, 1, 1]), 60
    scores = random.random((2, 4))  # of candidates 4 and 5 against 0 to 3
    lead, n = 0.02, int(counts.sum())
    difference = scores[1] - scores[0]
    variance = float(np.mean((difference - difference.mean()) ** 2)) * (1 / n - 1 / most)
    deviation = math.sqrt(variance)
    expected = deviation * norm.pdf(lead / deviation) - lead * norm.cdf(-lead / deviation)
    block = Contenders(scores, np.array([4, 5]), np.arange(4), counts, most)
    found = block.reference_loss(np.array([0.5, 0.5 - lead]), np.random.default_rng(2))
    assert found == pytest.approx(expected, rel=0.03)


def test_the_careful_loss_is_the_mean_over_all_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_loss, "_SPLITS", 20_000)
    counts, scores = np.array([3, 2, 1]), np.array([[1.0, 0.2, 0.1], [0.3, 1.0, 0.6], [0.2, 0.7, 1.0]])
    draws, losses = [0, 0, 0, 1, 1, 2], []
    for half in itertools.combinations(range(6), 3):
        ours = [draws[k] for k in half]
        theirs = [draws[k] for k in range(6) if k not in half]
        chosen = max(sorted(set(ours)), key=lambda i: sum(scores[i, j] for j in ours))
        means = [np.mean([scores[i, j] for j in theirs]) for i in range(3)]
        losses.append(max(means) - means[chosen])
    every = np.arange(3)
    found = Contenders(scores, every, every, counts, 24).split_loss(np.random.default_rng(0))
    assert found == pytest.approx(math.sqrt(1 - 6 / 24) * np.mean(losses), rel=0.03)


@settings(max_examples=50)
@given(st.floats(1e-4, 1.0), st.integers(1, 900))
def test_the_next_number_of_draws_grows_and_stays_within_the_most(loss: float, drawn: int) -> None:
    following = draw_loss.next_draws(loss, 1e-4 * 0.99, drawn, 1024)
    assert following == 1024 or drawn * math.sqrt(2) <= following <= 0.8 * 1024
