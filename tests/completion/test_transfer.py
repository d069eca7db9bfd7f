from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_acpmbr.completion import ALS
from hf_acpmbr.completion.bilinear import Bilinear, Block, Prior, invert
from hf_acpmbr.completion.normal_equations import Observations
from hf_acpmbr.completion.transfer import Transfer, mirrored, ridge, truncated
from hf_acpmbr.matrix import ObservedScores, Pairs
from tests.completion.dense import complete


def observe(matrix, rate, seed):
    size = matrix.size
    flat = np.sort(np.random.default_rng(seed).choice(size, max(1, int(size / rate)), replace=False))
    return ObservedScores(Pairs.from_flat(flat, matrix.shape), matrix.reshape(-1)[flat])


def world(n=120, m=100, d=4, seed=0, agreement=0.95, residual=0.03):
    """A target and a guide that agrees with it in every part, on another scale."""
    rng = np.random.default_rng(seed)

    def mixed(x):
        return agreement * x + np.sqrt(1 - agreement**2) * rng.normal(size=x.shape)

    def build(a, c, u, v):
        return 0.7 + 0.08 * a[:, None] + 0.05 * c + 0.05 * (u @ v.T) / np.sqrt(d)

    parts = [rng.normal(size=size) for size in (n, m, (n, d), (m, d))]
    target = build(*parts) + residual * rng.normal(size=(n, m))
    guide = 40 * build(*[mixed(part) for part in parts]) - 5 + 40 * residual * rng.normal(size=(n, m))
    return target, guide


def error(completion, matrix):
    return float(np.square(completion.matrix - matrix).mean())


# -- the parts against independent arithmetic


def posterior_by_loops(x, mask, aug, cov, prior, noise, free, constant):
    """Gaussian conditioning of one side at a time, entry by entry."""
    means, covariances = [], []
    for i in range(len(x)):
        precision = np.diag(1 / prior.variance)
        right = prior.mean[:, i] / prior.variance
        for j in np.flatnonzero(mask[i]):
            second = np.outer(aug[j], aug[j]) + cov[j]
            precision = precision + second[np.ix_(free, free)] / noise
            right = right + (x[i, j] * aug[j][free] - second[free, constant]) / noise
        covariances.append(np.linalg.inv(precision))
        means.append(covariances[-1] @ right)
    return np.array(means).T, np.moveaxis(np.array(covariances), 0, 2)


@pytest.mark.parametrize("rate", [1.2, 6.0], ids=["dense", "thin"])
def test_a_sweep_equals_conditioning_entry_by_entry(rate):
    rng = np.random.default_rng(3)
    n, m, d = 9, 7, 2
    scores = observe(rng.normal(size=(n, m)), rate, 1)
    dense, mask = scores.dense(0.0), np.zeros((n, m), dtype=bool)
    mask[scores.rows, scores.columns] = True
    row_prior = Prior(rng.normal(size=(d + 1, n)), rng.uniform(0.5, 2, d + 1))
    column_prior = Prior(rng.normal(size=(d + 1, m)), rng.uniform(0.5, 2, d + 1))
    half = rng.normal(size=(m, d + 1, d + 1))
    spread = np.moveaxis(half @ half.transpose(0, 2, 1), 0, 2)
    columns = Block(rng.normal(size=(d + 1, m)), spread, False)
    start = Bilinear(Block.at(row_prior.mean, True), columns, row_prior, column_prior, 0.3)
    moved, squared = start.sweep(Observations.prepare(scores, standard=False), learn_variances=True)

    cov = np.zeros((m, d + 2, d + 2))
    cov[:, 1:, 1:] = np.moveaxis(spread, 2, 0)
    mean, covariance = posterior_by_loops(
        dense, mask, columns.vectors.T, cov, row_prior, 0.3, list(range(d + 1)), d + 1
    )
    np.testing.assert_allclose(moved.rows.mean, mean, atol=1e-10)
    np.testing.assert_allclose(moved.rows.covariance, covariance, atol=1e-10)
    row_cov = np.zeros((n, d + 2, d + 2))
    row_cov[:, :-1, :-1] = np.moveaxis(covariance, 2, 0)
    mean, covariance = posterior_by_loops(
        dense.T, mask.T, moved.rows.vectors.T, row_cov, column_prior, 0.3, list(range(1, d + 2)), 0
    )
    np.testing.assert_allclose(moved.columns.mean, mean, atol=1e-10)
    np.testing.assert_allclose(moved.columns.covariance, covariance, atol=1e-10)

    total = 0.0
    left = row_cov + np.einsum("ai,bi->iab", moved.rows.vectors, moved.rows.vectors)
    for i, j in zip(*np.nonzero(mask), strict=True):
        right = np.outer(moved.columns.vectors[:, j], moved.columns.vectors[:, j])
        right[1:, 1:] += moved.columns.covariance[:, :, j]
        prediction = moved.rows.vectors[:, i] @ moved.columns.vectors[:, j]
        total += dense[i, j] ** 2 - 2 * dense[i, j] * prediction + np.sum(left[i] * right)
    assert squared == pytest.approx(total / len(scores), rel=1e-9)
    assert moved.noise == pytest.approx(squared)
    deviations = np.square(moved.rows.mean - row_prior.mean) + np.einsum("aan->an", moved.rows.covariance)
    np.testing.assert_allclose(moved.row_prior.variance, deviations.mean(1), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 600), st.integers(0, 10**6))
def test_batched_inverse_equals_lapack(size, batch, seed):
    half = np.random.default_rng(seed).normal(size=(batch, size, size))
    systems = half @ half.transpose(0, 2, 1) + 0.1 * np.eye(size)
    inverse = np.moveaxis(systems, 0, 2).copy()
    invert(inverse)
    np.testing.assert_allclose(np.moveaxis(inverse, 2, 0), np.linalg.inv(systems), rtol=1e-7, atol=1e-7)


def test_slopes_are_the_posterior_mean_at_the_noise_that_they_leave():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(30, 3))
    values = features @ [0.5, -0.3, 0.0] + rng.normal(size=30)
    shared = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) + 0.2 * np.eye(3)
    slopes, noise = ridge(values, features, shared)
    design = np.column_stack([np.ones(30), features])
    prior = np.zeros((4, 4))
    prior[0, 0], prior[1:, 1:] = 1e6, shared
    expected = prior @ design.T @ np.linalg.solve(design @ prior @ design.T + noise * np.eye(30), values)
    np.testing.assert_allclose(slopes, expected, atol=1e-6)
    assert noise == pytest.approx(np.square(values - design @ slopes).sum() / 28)


def test_truncation_is_the_best_low_rank_product():
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(6, 20)), rng.normal(size=(6, 15))
    u, v = truncated(left, right, 3)
    a, s, b = np.linalg.svd(left.T @ right)
    np.testing.assert_allclose(u.T @ v, a[:, :3] * s[:3] @ b[:3], atol=1e-10)


# -- what the completer promises


def test_expected_is_the_mean_of_the_matrix_and_observed_scores_stay():
    target, guide = world()
    weights = np.random.default_rng(2).random(target.shape[1])
    scores = observe(target, 20, 1)
    got = complete(Transfer(), scores, None, observe(guide, 3, 2))
    np.testing.assert_allclose(got.expected(weights), got.matrix @ (weights / weights.sum()), atol=1e-12)
    np.testing.assert_allclose(got.matrix[scores.rows, scores.columns], scores.values, atol=1e-12)


@pytest.mark.parametrize("rate", [8, 40, 400])
def test_a_good_guide_beats_the_target_alone_and_a_useless_one_costs_little(rate):
    target, guide = world(seed=5)
    shuffled = np.random.default_rng(0).permutation(guide.reshape(-1)).reshape(guide.shape)
    scores = observe(target, rate, 3)
    alone = error(complete(Transfer(), scores), target)
    assert error(complete(Transfer(), scores, None, observe(guide, 4, 4)), target) < 0.7 * alone
    for useless in (shuffled, guide[::-1, ::-1]):
        misled = error(complete(Transfer(), scores, None, observe(useless, 4, 4)), target)
        assert misled < 1.05 * alone
        assert misled < 1.05 * error(complete(ALS(), scores), target)


def test_many_target_scores_recover_a_low_rank_matrix():
    target, _ = world(residual=0.0)
    got = complete(Transfer(max_sweeps=100, tolerance=1e-6), observe(target, 2, 1))
    assert error(got, target) < 1e-4 * target.var()


def test_scales_and_shifts_of_target_and_guide_change_nothing():
    target, guide = world(n=60, m=50)
    first = complete(Transfer(), observe(target, 10, 1), None, observe(guide, 2, 2))
    second = complete(Transfer(), observe(100 * target - 30, 10, 1), None, observe(-0.01 * guide, 2, 2))
    np.testing.assert_allclose(second.matrix, 100 * first.matrix - 30, atol=1e-4)


def test_rows_without_any_score_are_average_rows():
    target, _ = world()
    scores = observe(target, 30, 1)
    keep = scores.rows != 7
    hidden = ObservedScores(Pairs(scores.rows[keep], scores.columns[keep], scores.shape), scores.values[keep])
    expected = complete(Transfer(), hidden).expected()
    assert expected.min() <= expected[7] <= expected.max()
    assert abs(expected[7] - target.mean()) < 0.05


def test_several_guides_are_better_than_each():
    target, first = world(seed=1, agreement=0.8)
    _, second = world(seed=1, agreement=0.8)
    rng = np.random.default_rng(9)
    second = target + rng.normal(0, 0.08, (len(target), 1)) + rng.normal(0, 0.05, target.shape)
    scores, guides = observe(target, 100, 1), [observe(first, 4, 2), observe(second, 4, 3)]
    both = error(complete(Transfer(), scores, None, guides), target)
    assert both < min(error(complete(Transfer(), scores, None, guide), target) for guide in guides)


def test_row_features_help_where_they_say_something():
    target, _ = world(seed=2)
    scores = observe(target, 200, 1)
    feature = target.mean(1) + np.random.default_rng(0).normal(0, 0.02, len(target))
    plain, told = complete(Transfer(), scores), complete(Transfer(), scores, features=feature[:, None])
    assert error(told, target) < 0.8 * error(plain, target)
    constant = complete(Transfer(), scores, features=np.ones((len(target), 1)))
    np.testing.assert_allclose(constant.matrix, plain.matrix)


def symmetric_world(n=150, seed=0):
    rng = np.random.default_rng(seed)
    a, u = rng.normal(size=n), rng.normal(size=(n, 3))
    noise = rng.normal(size=(n, n))
    matrix = 0.6 + 0.05 * (a[:, None] + a) + 0.05 * (u @ u.T) / np.sqrt(3) + 0.02 * (noise + noise.T)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def test_symmetric_scores_count_for_both_entries():
    matrix = symmetric_world()
    scores = observe(matrix, 10, 1)
    both = mirrored(scores)
    assert len(both) > 1.8 * len(scores)
    np.testing.assert_array_equal(both.values, matrix[both.rows, both.columns])
    lopsided = observe(matrix + 0.05 * np.random.default_rng(1).normal(size=matrix.shape), 10, 1)
    assert mirrored(lopsided) is lopsided
    assert mirrored(observe(matrix[:, :100], 10, 1)).shape == (150, 100)


def test_the_score_of_a_text_with_itself_is_learnt_from_a_few():
    matrix = symmetric_world()
    got = complete(Transfer(), observe(matrix, 10, 1))
    np.testing.assert_allclose(np.diagonal(got.matrix), 1.0, atol=1e-9)
    rare, often = observe(matrix, 600, 1), observe(matrix, 10, 2)
    assert np.count_nonzero(rare.rows == rare.columns) < 2
    guided = complete(Transfer(), rare, None, often)
    assert np.abs(np.diagonal(guided.matrix) - 1.0).mean() < 0.1


# -- inputs at the edge


def test_the_same_seed_gives_the_same_result():
    target, guide = world(n=30, m=25)
    scores, helper = observe(target, 5, 1), observe(guide, 2, 1)
    first, second = (complete(Transfer(rank=3), scores, None, helper) for _ in range(2))
    np.testing.assert_array_equal(first.matrix, second.matrix)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hardly_any_scores(count):
    target, guide = world(n=12, m=12)
    flat = np.sort(np.random.default_rng(0).choice(144, count, replace=False))
    scores = ObservedScores(Pairs.from_flat(flat, (12, 12)), target.reshape(-1)[flat])
    for helper in (None, observe(guide, 2, 1), ObservedScores(Pairs.from_flat(flat[:1], (12, 12)), flat[:1] * 1.0)):
        got = complete(Transfer(), scores, None, helper)
        assert np.isfinite(got.matrix).all()


def test_constant_scores_stay_constant():
    scores = observe(np.full((10, 8), 55.0), 3, 0)
    np.testing.assert_allclose(complete(Transfer(), scores, None, scores).matrix, 55.0)


def test_only_the_diagonal_observed():
    scores = ObservedScores(Pairs(np.arange(5), np.arange(5), (5, 5)), np.arange(5.0))
    assert np.isfinite(complete(Transfer(), scores).matrix).all()


def test_a_feature_that_is_the_same_for_all_says_nothing():
    scores = np.random.default_rng(0).normal(size=(30, 12))
    mask = np.random.default_rng(1).random((30, 12)) < 0.4
    same = np.log(np.full(30, 3))  # its standard deviation is rounding, not 0
    np.testing.assert_array_equal(
        complete(Transfer(), scores, mask, features=same[:, None]).matrix, complete(Transfer(), scores, mask).matrix
    )
