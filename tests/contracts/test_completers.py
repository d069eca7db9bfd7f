"""What every completer keeps, whatever its method."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from hf_acpmbr.config import COMPLETERS
from hf_acpmbr.matrix import ObservedScores, Pairs

every_completer = pytest.mark.parametrize("name", COMPLETERS)


def world(seed: int = 0, n: int = 40, m: int = 30):
    """A low-rank target, a guide that follows it, and what is seen of both."""
    random = np.random.default_rng(seed)
    target = 0.6 + 0.1 * random.normal(size=(n, 2)) @ random.normal(size=(2, m)) + 0.05 * random.normal(size=(n, 1))
    guide = 0.8 * target + 0.1 + 0.01 * random.normal(size=(n, m))
    seen = [ObservedScores.from_dense(x, random.random((n, m)) < share) for x, share in ((target, 0.4), (guide, 0.6))]
    return target, *seen


def guides_for(completer, guide):
    return [guide] if completer.takes_guides else []


@every_completer
def test_expected_is_the_mean_of_the_matrix(name):
    _, seen, guide = world()
    completer = COMPLETERS.build(name, rank=3)
    got = completer.solve(seen, guides_for(completer, guide), None, 0)
    weights = np.full(30, 1 / 30)
    np.testing.assert_allclose(got.expected(weights), got.matrix @ weights, atol=1e-9)


@every_completer
def test_unseen_entries_are_closer_than_the_mean_of_the_seen(name):
    target, seen, guide = world()
    completer = COMPLETERS.build(name, rank=3)
    matrix = completer.solve(seen, guides_for(completer, guide), None, 0).matrix
    hidden = np.isnan(seen.dense())
    error = np.square(matrix - target)[hidden].mean()
    assert error < 0.5 * np.square(seen.values.mean() - target)[hidden].mean()


@every_completer
def test_the_seed_of_the_run_holds_unless_the_completer_has_its_own(name):
    _, seen, guide = world()
    own, runs = COMPLETERS.build(name, rank=3, seed=4, max_sweeps=2, tolerance=1.0), []
    unset = COMPLETERS.build(name, rank=3, max_sweeps=2, tolerance=1.0)
    for completer, seed in ((own, 1), (own, 2), (unset, 4), (unset, 4), (unset, 5)):
        runs.append(completer.solve(seen, guides_for(completer, guide), None, seed).matrix)
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])
    np.testing.assert_array_equal(runs[2], runs[3])
    if name != "transfer":  # which starts from the guide, and from random factors only where there is none
        assert np.abs(runs[3] - runs[4]).max() > 0


@every_completer
def test_what_it_says_of_itself_is_true(name):
    _, seen, guide = world()
    completer = COMPLETERS.build(name)
    assert completer.name == name
    if completer.takes_guides:
        completer.check_guides(1)
        alone = completer.solve(seen, [], None, 0).matrix
        helped = completer.solve(seen, [guide], None, 0).matrix
        assert np.abs(alone - helped).max() > 1e-6
    else:
        with pytest.raises(ValueError, match=f"{name} uses no guide"):
            completer.check_guides(1)


@every_completer
def test_the_json_form_is_the_completer(name):
    completer = COMPLETERS.build(name, rank=5)
    written = json.loads(json.dumps(completer.to_dict()))
    assert written["name"] == name
    assert COMPLETERS.build(written) == completer
    assert str(completer) != str(COMPLETERS.build(name))


@every_completer
def test_a_rank_beyond_the_matrix_costs_nothing_and_one_row_is_enough(name):
    completer = COMPLETERS.build(name, rank=50)
    one = ObservedScores.from_dense(np.array([[0.5, 0.7]]), np.array([[True, False]]))
    assert np.isfinite(completer.solve(one, [], None, 0).matrix).all()


@pytest.mark.parametrize("name", COMPLETERS)
def test_the_seed_of_a_completer_goes_before_that_of_the_run(name):
    rng = np.random.default_rng(0)
    places = np.sort(rng.choice(240, 60, replace=False))
    scores = ObservedScores(Pairs.from_flat(places, (20, 12)), rng.normal(size=60))
    guides = [scores] * COMPLETERS.get(name).takes_guides

    def solved(own, run):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return COMPLETERS.build(name, rank=3, max_sweeps=1, seed=own).solve(scores, guides, None, run).matrix

    np.testing.assert_array_equal(solved(0, 7), solved(None, 0))
    np.testing.assert_array_equal(solved(None, 7), solved(7, 0))
    assert np.abs(solved(0, 7) - solved(None, 7)).max() > 1e-6
