"""The oracle that the default is compared with: its arithmetic, and that it knows more than the default."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.benchmarks.kinds import made_up_kind
from evaluation.benchmarks.oracle import Oracle, compare, least, weights_of_first


def test_weights_of_the_first_stand_for_all_without_bias():
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.full(12, 2.0))
    values = random.normal(size=12) + 20 * shares
    estimates = []
    for _ in range(20_000):
        arrivals = random.exponential(size=12) / shares
        order = np.argsort(arrivals)
        estimates.append(weights_of_first(shares[order], arrivals[order], 5) @ values[order[:5]])
    assert np.mean(estimates) == pytest.approx(shares @ values, rel=0.02)
    np.testing.assert_array_equal(weights_of_first(shares, arrivals, 12), shares)


def test_an_oracle_that_may_spend_everything_loses_nothing():
    case = made_up_kind("plain", 0, 40)
    for guide in (None, "good"):
        lost, calls = Oracle(case, guide).choose(1e12, 0)
        assert lost == 0
        assert calls <= 40 * 40 / case.counts.sum()


def test_a_good_guide_saves_calls_of_the_oracle():
    case = made_up_kind("noisy judge", 0, 80)
    assert least(Oracle(case, "good"), 10)[1] < least(Oracle(case, None), 10)[1]


def test_the_comparison_has_a_line_for_each_way(capsys):
    compare([made_up_kind("plain", seed, 40) for seed in range(2)], 1)
    text = capsys.readouterr().out
    assert "no guide" in text
    assert "good guide, free" in text
    assert "constant budget" in text
