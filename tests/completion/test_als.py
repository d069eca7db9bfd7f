from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.completion import ALS, COMPLETERS, AgreementALS, ConvergenceWarning, normal_equations
from hf_acpmbr.matrix import ObservedScores, Pairs
from tests.completion import oracle
from tests.completion.dense import complete

pytestmark = pytest.mark.filterwarnings("ignore::hf_acpmbr.completion.ConvergenceWarning")


def problem(seed=0, n=13, m=11, d=3, guides=1, density=0.5, guide_density=0.8):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(n, d)) @ rng.normal(size=(d, m)) + 2.0
    matrices = [base] + [base + rng.normal(0, 0.3, (n, m)) + 0.1 * k for k in range(guides)]
    masks = [rng.random((n, m)) < density] + [rng.random((n, m)) < guide_density for _ in range(guides)]
    rows = [rng.normal(size=(n, d)) for _ in matrices]
    columns = [rng.normal(size=(m, d)) for _ in matrices]
    return matrices, masks, rows, columns


def interleave(rows, columns):
    return tuple(part for pair in zip(rows, columns, strict=True) for part in pair)


@pytest.mark.parametrize("dense_from", [0.0, 2.0], ids=["dense", "thin"])
@pytest.mark.parametrize("guides", [0, 1, 2])
def test_every_sweep_equals_the_plain_loops(guides, dense_from, monkeypatch):
    monkeypatch.setattr(normal_equations, "_DENSE_FROM", dense_from)
    matrices, masks, rows, columns = problem(guides=guides)
    gammas = [0.7, 0.2][:guides]
    init = interleave(rows, columns)
    for sweeps in range(1, 6):
        rows, columns = oracle.sweep(matrices, masks, rows, columns, 0.1, gammas)
        solver = AgreementALS(rank=3, agreement=gammas, max_sweeps=sweeps, tolerance=0, center=False)
        got = complete(solver, matrices[0], masks[0], matrices[1:] or None, masks[1:] or None, init=init)
        np.testing.assert_allclose(got.row_factors, rows[0], rtol=0, atol=1e-8)
        np.testing.assert_allclose(got.column_factors, columns[0], rtol=0, atol=1e-8)
        for k, (u, v) in enumerate(got.guide_factors, start=1):
            np.testing.assert_allclose(u, rows[k], rtol=0, atol=1e-8)
            np.testing.assert_allclose(v, columns[k], rtol=0, atol=1e-8)
        expected = oracle.objective(matrices, masks, rows, columns, 0.1, gammas)
        assert got.objective[-1] == pytest.approx(expected, rel=1e-8)
        assert got.sweeps == len(got.objective) == sweeps


def test_als_is_the_agreement_solver_without_guides():
    matrices, masks, rows, columns = problem(guides=0)
    init = (rows[0], columns[0])
    rows, columns = oracle.sweep(matrices, masks, rows, columns, 0.1, [])
    got = complete(ALS(rank=3, max_sweeps=1, center=False), matrices[0], masks[0], init=init)
    np.testing.assert_allclose(got.matrix, rows[0] @ columns[0].T, atol=1e-8)


@given(st.integers(0, 10_000), st.floats(0, 2), st.floats(0.01, 2), st.booleans())
def test_the_objective_never_rises(seed, gamma, lam, center):
    matrices, masks, _, _ = problem(seed, n=9, m=7)
    masks[0][0, 0] = masks[1][0, 0] = True
    solver = AgreementALS(rank=3, regularization=lam, agreement=gamma, center=center, tolerance=0, seed=seed)
    history = np.array(complete(solver, matrices[0], masks[0], matrices[1], masks[1]).objective)
    assert np.all(np.diff(history) <= 1e-9 * history[:-1] + 1e-12)


def test_a_rank_beyond_the_matrix_costs_nothing_and_changes_nothing():
    truth = np.random.default_rng(0).random((6, 5))
    mask = np.random.default_rng(1).random((6, 5)) < 0.7
    whole, beyond = (complete(ALS(rank=rank, max_sweeps=5), truth, mask) for rank in (5, 10**9))
    assert beyond.matrix.tolist() == whole.matrix.tolist()


def test_a_low_rank_matrix_is_recovered():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 50))
    mask = rng.random(truth.shape) < 0.4
    got = complete(ALS(rank=2, regularization=1e-9, max_sweeps=500, tolerance=1e-14, center=False), truth, mask)
    np.testing.assert_allclose(got.matrix, truth, atol=1e-4)


def test_without_agreement_the_matrices_are_solved_apart():
    matrices, masks, _, _ = problem()
    settings = dict(rank=3, tolerance=0, max_sweeps=12)
    both = complete(AgreementALS(agreement=0.0, **settings), matrices[0], masks[0], matrices[1], masks[1])
    alone = complete(ALS(**settings), matrices[0], masks[0])
    np.testing.assert_allclose(both.matrix, alone.matrix, atol=1e-10)
    init = (both.row_factors * 0 + 1.0, both.column_factors * 0 + 1.0)
    both = complete(AgreementALS(agreement=0.0, **settings), matrices[0], masks[0], matrices[1], masks[1], init=init)
    guide = complete(ALS(**settings), matrices[1], masks[1], init=init)
    np.testing.assert_allclose(both.guide_factors[0][0], guide.row_factors, atol=1e-10)


def test_strong_agreement_makes_the_factors_equal():
    matrices, masks, _, _ = problem()
    got = complete(AgreementALS(rank=3, agreement=1e7), matrices[0], masks[0], matrices[1], masks[1])
    one, other = (matrix[mask].std() for matrix, mask in zip(matrices, masks, strict=True))  # both are standardised
    np.testing.assert_allclose(got.row_factors / one, got.guide_factors[0][0] / other, atol=1e-4)


@pytest.mark.parametrize("density", [0.05, 0.3, 0.9])
def test_float32_is_close_to_float64(density):
    matrices, masks, _, _ = problem(n=80, m=70, density=density)
    solver = AgreementALS(rank=3, tolerance=0, max_sweeps=10)
    single = complete(solver, matrices[0].astype(np.float32), masks[0], matrices[1].astype(np.float32), masks[1])
    double = complete(solver, matrices[0], masks[0], matrices[1], masks[1])
    assert single.row_factors.dtype == np.float32
    np.testing.assert_allclose(single.matrix, double.matrix, atol=2e-3)


def test_permuting_rows_and_columns_permutes_the_result():
    matrices, masks, rows, columns = problem()
    p, q = np.random.default_rng(3).permutation(13), np.random.default_rng(4).permutation(11)
    solver = AgreementALS(rank=3, tolerance=0, max_sweeps=7)
    plain = complete(solver, matrices[0], masks[0], matrices[1], masks[1], init=interleave(rows, columns))
    at = np.ix_(p, q)
    init = interleave([u[p] for u in rows], [v[q] for v in columns])
    moved = complete(solver, matrices[0][at], masks[0][at], matrices[1][at], masks[1][at], init=init)
    np.testing.assert_allclose(moved.matrix, plain.matrix[at], atol=1e-9)


@pytest.mark.parametrize(("scale", "offset"), [(1e-4, 0.0), (1.0, 1e5), (100.0, -3.0)])
def test_the_unit_and_the_offset_of_a_metric_change_nothing(scale, offset):
    matrices, masks, _, _ = problem()
    solver = AgreementALS(rank=3)
    expected = complete(solver, matrices[0], masks[0], matrices[1], masks[1])
    moved = [scale * matrix + offset for matrix in matrices]
    got = complete(solver, moved[0], masks[0], matrices[1], masks[1])
    np.testing.assert_allclose((got.matrix - offset) / scale, expected.matrix, atol=1e-6)
    guided = complete(solver, matrices[0], masks[0], moved[1], masks[1])
    np.testing.assert_allclose(guided.matrix, expected.matrix, atol=1e-6)


def test_scores_that_are_all_equal_are_completed_by_themselves():
    masks = problem()[1]
    assert np.all(complete(ALS(), np.full(masks[0].shape, 7.0), masks[0]).matrix == 7.0)


def test_scaling_the_scores_with_the_papers_penalties_changes_nothing():
    matrices, masks, _, _ = problem()
    unit = AgreementALS(rank=3, regularization=0.1, agreement=0.3, center=False)
    times_100 = AgreementALS(rank=3, regularization=10.0, agreement=30.0, center=False)
    a = complete(unit, matrices[0], masks[0], matrices[1], masks[1])
    b = complete(times_100, 100 * matrices[0], masks[0], 100 * matrices[1], masks[1])
    assert a.sweeps == b.sweeps
    np.testing.assert_allclose(100 * a.matrix, b.matrix, rtol=1e-8)


def test_an_absolute_tolerance_does_not_stop_at_the_first_sweep_on_large_scores():
    matrices, masks, _, _ = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        got = complete(ALS(rank=3, absolute_tolerance=True), 100 * matrices[0], masks[0])
    assert got.sweeps > 2


@pytest.mark.parametrize("guide_sees_it", [False, True])
def test_a_row_without_scores_is_average_or_follows_the_guide(guide_sees_it):
    matrices, masks, _, _ = problem(n=40, m=30)
    masks[0][5] = False
    masks[1][5] = guide_sees_it
    got = complete(AgreementALS(rank=3, agreement=1.0), matrices[0], masks[0], matrices[1], masks[1])
    mean = matrices[0][masks[0]].mean()
    if guide_sees_it:
        assert np.corrcoef(got.matrix[5], matrices[0][5])[0, 1] > 0.8
    else:
        np.testing.assert_allclose(got.matrix[5], mean, rtol=1e-12)


def test_without_regularisation_thin_rows_take_the_least_norm():
    rng = np.random.default_rng(0)
    scores, mask = rng.normal(size=(6, 5)), np.zeros((6, 5), bool)
    mask[0, 0] = mask[1, 1] = mask[1, 2] = True
    init = rng.normal(size=(6, 3)), rng.normal(size=(5, 3))
    got = complete(ALS(rank=3, regularization=0.0, max_sweeps=1, center=False), scores, mask, init=init)
    assert np.isfinite(got.matrix).all()
    np.testing.assert_allclose(got.matrix[mask], scores[mask], atol=1e-8)
    np.testing.assert_array_equal(got.row_factors[2:], 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused_with_their_place(bad):
    scores = np.ones((4, 3))
    scores[2, 1] = bad
    with pytest.raises(ValueError, match=r"1 of 12 scores are NaN or infinite.*\(2, 1\)"):
        complete(ALS(), scores)
    mask = np.ones((4, 3), bool)
    mask[2, 1] = False
    assert np.isfinite(complete(ALS(), scores, mask).matrix).all()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 7), (7, 1), (3, 20)])
def test_rank_larger_than_the_matrix_and_odd_shapes(n, m):
    scores = np.random.default_rng(0).random((n, m))
    got = complete(ALS(rank=8, regularization=1e-6), scores)
    assert got.matrix.shape == (n, m)
    np.testing.assert_allclose(got.matrix, scores, atol=1e-2)


def test_equal_scores_are_completed_by_themselves():
    got = complete(ALS(), np.full((5, 4), 0.7), np.eye(5, 4, dtype=bool))
    np.testing.assert_allclose(got.matrix, 0.7)


def test_expected_does_not_need_the_matrix():
    matrices, masks, _, _ = problem()
    got = complete(ALS(rank=3), matrices[0], masks[0])
    weights = np.arange(1.0, 12.0)
    np.testing.assert_allclose(got.expected(weights), got.matrix @ weights / weights.sum())
    np.testing.assert_allclose(got.expected(), got.matrix.mean(1))


@pytest.mark.parametrize("convert", [torch.as_tensor, np.ndarray.tolist], ids=["torch", "list"])
def test_all_forms_of_dense_scores_are_the_same(convert):
    matrices, masks, _, _ = problem()
    expected = ObservedScores.from_dense(matrices[0], masks[0])
    got = ObservedScores.from_dense(convert(matrices[0]), convert(masks[0]))
    np.testing.assert_array_equal(got.pairs.flat, expected.pairs.flat)
    np.testing.assert_array_equal(got.values, expected.values)


def test_completers_by_name_share_one_call():
    matrices, masks, _, _ = problem()
    for name in ("als", "agreement-als"):
        got = complete(COMPLETERS.build(name, rank=3), matrices[0], masks[0])
        assert got.matrix.shape == (13, 11)
    with pytest.raises(ValueError, match="als uses no guide"):
        complete(COMPLETERS.build("als", rank=3), matrices[0], masks[0], matrices[1], masks[1])
    with pytest.raises(ValueError, match="'alz' is unknown: did you mean 'als'"):
        COMPLETERS.build("alz")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(rank=0), "rank must be at least 1, got 0"),
        (dict(regularization=-1), "regularization"),
        (dict(max_sweeps=0), "max_sweeps"),
        (dict(tolerance=-1), "tolerance"),
        (dict(agreement=-0.1), "agreement"),
        (dict(agreement=[0.1, float("nan")]), "agreement"),
    ],
)
def test_settings_that_cannot_work_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        AgreementALS(**settings)


def test_inputs_that_do_not_fit_are_named():
    matrices, masks, rows, columns = problem()
    with pytest.raises(ValueError, match="no observed score"):
        complete(ALS(), matrices[0], np.zeros((13, 11), bool))
    with pytest.raises(ValueError, match="2 values for 1 guides"):
        complete(AgreementALS(agreement=[0.1, 0.2]), matrices[0], masks[0], matrices[1], masks[1])
    with pytest.raises(ValueError, match=r"init\[1\] has shape \(13, 3\), expected \(11, 3\)"):
        complete(ALS(rank=3), matrices[0], masks[0], init=(rows[0], rows[0]))
    with pytest.raises(ValueError, match="mask has shape"):
        complete(ALS(), matrices[0], masks[0].T)
    with pytest.raises(ValueError, match="repeated"):
        Pairs(np.array([0, 0]), np.array([1, 1]), (2, 2))
    del columns


@pytest.mark.filterwarnings("default::hf_acpmbr.completion.ConvergenceWarning")
def test_stopping_early_warns_with_the_remedy():
    matrices, masks, _, _ = problem()
    with pytest.warns(ConvergenceWarning, match="raise max_sweeps"):
        got = complete(ALS(rank=3, max_sweeps=2, tolerance=0), matrices[0], masks[0])
    assert not got.converged
    assert complete(ALS(rank=3, max_sweeps=200, tolerance=1e-2), matrices[0], masks[0]).converged
