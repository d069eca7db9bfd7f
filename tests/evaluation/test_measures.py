from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import sem

from evaluation.benchmarks.measures import full_matrix, mean_and_error, regret, squared_error
from evaluation.wmt.phases.base import Source
from evaluation.wmt.phases.decisions import Judges, decide, matrix_error
from evaluation.wmt.rows import table_rows
from evaluation.wmt.settings import EvaluationSettings
from hf_acpmbr import Candidates, load_utility
from hf_acpmbr.scoring import MatrixUtility

from .test_settings import GOOD

TEXTS = ("a b c", "a b d", "e f", "a")


def test_a_full_matrix_is_every_pair_in_its_place():
    chrf = load_utility("chrf")
    matrix = full_matrix(chrf, TEXTS, TEXTS[:2])
    assert matrix.shape == (4, 2)
    assert matrix[2, 1] == pytest.approx(chrf.score([TEXTS[2]], [TEXTS[1]])[0])
    assert full_matrix(chrf, TEXTS).shape == (4, 4)


def test_regret_is_on_one_scale_in_both_directions():
    expected = np.array([0.5, 0.75, 0.25])
    assert regret(expected, 1) == 0
    assert regret(expected, 0) == pytest.approx(25)
    assert regret(100 * expected, 0, scale=100) == pytest.approx(25)
    assert regret(expected, 0, higher_is_better=False) == pytest.approx(25)
    assert regret(expected, 2, higher_is_better=False) == 0
    assert regret(expected, 0, higher_is_better=False) == pytest.approx(25)
    assert regret(expected, 1, higher_is_better=False, scale=2.0) == pytest.approx(25)


def test_the_error_of_a_mean_shrinks_with_the_root_of_the_number_of_runs():
    runs = np.random.default_rng(0).normal(size=(9, 2))
    mean, error = mean_and_error(runs)
    assert mean == pytest.approx(runs.mean(0))
    assert error == pytest.approx(sem(runs))
    # Means of nine runs, drawn again and again, spread as far as the error of one set of nine says on average.
    sets = np.random.default_rng(1).normal(size=(4000, 9))
    errors = [float(mean_and_error(values)[1]) for values in sets]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(sets.mean(1).std(), rel=0.05)
    assert np.isnan(mean_and_error([1.0])[1]), "one run says nothing about the spread"


def test_errors_are_weighted_and_on_a_scale_of_100():
    truth = np.zeros((2, 2))
    matrix = np.array([[0.1, 0.0], [0.0, 0.0]])
    assert squared_error(matrix, truth) == pytest.approx(25)
    assert squared_error(matrix, truth, np.array([1.0, 0.0])) == pytest.approx(100)


def distilled_error(guide: MatrixUtility, target: MatrixUtility) -> float | None:
    row = next(row for row in table_rows(EvaluationSettings.from_dict(GOOD)) if row.method == "distilled-mbr")
    judges = Judges({"chrf": target, "bleu": guide}, "chrf", target.matrix)
    candidates = Candidates(TEXTS, np.array([3, 1, 1, 2]))
    (decision,) = decide([row], candidates, judges, Source(0, "0", "source", "reference"), seed=0)
    return matrix_error(row, decision, judges)


def test_a_guide_of_100_times_the_target_has_no_error():
    matrix = np.random.default_rng(0).uniform(size=(4, 4))
    target = MatrixUtility(matrix, TEXTS)
    assert distilled_error(MatrixUtility(100 * matrix, TEXTS, scale=100), target) == pytest.approx(0, abs=1e-20)
    large = MatrixUtility(100 * matrix, TEXTS, scale=100)
    assert distilled_error(MatrixUtility(matrix, TEXTS), large) == pytest.approx(0, abs=1e-20)
    assert distilled_error(MatrixUtility(matrix + 0.05, TEXTS), target) == pytest.approx(25)
    assert distilled_error(MatrixUtility(matrix, TEXTS, higher_is_better=False), target) is None
