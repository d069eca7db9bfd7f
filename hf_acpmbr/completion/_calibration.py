"""How far the parts of a guide carry over to the target: slopes, learnt from the target's observed entries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..candidates import FloatArray, IntArray
from ..matrix import ObservedScores, Pairs
from ._bilinear import inner

_EM_STEPS = 10


@dataclass(frozen=True, eq=False)
class Guide:
    """A guide's fitted parts, on a scale where its scores have variance 1.

    prediction_ij = row_effects_i + column_effects_j + Σ_k row_factors_ki column_factors_kj; at the observed entries the
    residual of this prediction is known too, and on the diagonal of a square matrix its excess over the prediction.
    """

    row_effects: FloatArray
    column_effects: FloatArray
    row_factors: FloatArray
    column_factors: FloatArray
    residuals: ObservedScores
    own_excess: FloatArray | None = None

    def without_factors(self) -> Guide:
        """Its effects and residuals alone."""
        zeros = np.zeros_like(self.row_factors), np.zeros_like(self.column_factors)
        return replace(self, row_factors=zeros[0], column_factors=zeros[1])

    def residuals_at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """(k,) residuals of these entries, 0 where the guide was not observed."""
        flat, wanted = self.residuals.pairs.flat, rows * self.residuals.shape[1] + columns
        if not len(flat):
            return np.zeros(len(wanted))
        place = np.minimum(np.searchsorted(flat, wanted), len(flat) - 1)
        return np.where(flat[place] == wanted, self.residuals.values[place], 0.0)

    def parts_at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """(k, 4) row effect, column effect, low-rank part and residual of these entries."""
        low_rank = inner(self.row_factors, self.column_factors, rows, columns)
        effects = self.row_effects[rows], self.column_effects[columns]
        return np.column_stack([*effects, low_rank, self.residuals_at(rows, columns)])


@dataclass(frozen=True, eq=False)
class Slopes:
    """A ridge regression whose features come in groups that share a slope, each with a deviation of its own.

    Args:
        intercept: of the target.
        common: (groups,) what a group's features share.
        each: (features,) the slope of every feature: common plus own deviation.
        residual: (k,) what the regression leaves.
        deviation: the variance of the deviations.
        coefficients, covariance: the posterior of (intercept, commons, deviations).
    """

    intercept: float
    common: FloatArray
    each: FloatArray
    residual: FloatArray
    deviation: float
    coefficients: FloatArray
    covariance: FloatArray


def expand(features: FloatArray, groups: IntArray) -> FloatArray:
    """(k, 1 + groups + features): intercept, the sum over each group, the features."""
    membership = np.eye(groups.max(initial=-1) + 1)[groups]
    return np.column_stack([np.ones(len(features)), features @ membership, features])


def regress(values: FloatArray, features: FloatArray, groups: IntArray, noise: float, deviation: float) -> Slopes:
    """One step of empirical Bayes: slopes given the noise and the deviations' variance, and that variance anew.

    Scores have variance 1 on both sides, so a common slope is a correlation, and N(0, 1) its prior.
    """
    design = expand(features, groups)
    count, shared = features.shape[1], design.shape[1] - features.shape[1]
    penalty = np.concatenate([[1e-6], np.ones(shared - 1), np.full(count, 1.0 / deviation)])
    covariance = np.asarray(np.linalg.inv(design.T @ design / noise + np.diag(penalty)), dtype=np.float64)
    coefficients = covariance @ (design.T @ values) / noise
    own = slice(shared, None)
    if count:
        squares = np.square(coefficients[own]).sum() + np.trace(covariance[own, own])
        deviation = max(float(squares) / count, 1e-6)
    common = coefficients[1:shared]
    each = common[groups] + coefficients[own]
    residual = values - design @ coefficients
    return Slopes(float(coefficients[0]), common, each, residual, deviation, coefficients, covariance)


def settle(values: FloatArray, features: FloatArray, groups: IntArray) -> tuple[Slopes, float]:
    """Slopes with noise and deviations learnt, and the share of the variance that they leave unexplained."""
    noise, deviation = 1.0, 1.0
    count = len(values)
    for _ in range(_EM_STEPS):
        slopes = regress(values, features, groups, noise, deviation)
        noise = float(np.square(slopes.residual).sum()) / max(count - 2, 1)
        noise, deviation = max(noise, 1e-6), slopes.deviation
    return slopes, float(np.clip(noise, 2.0 / (count + 2), 1.0))


def merged(guides: list[Guide], target: ObservedScores, rank: int) -> Guide | None:
    """Several guides as one: every part of every guide times its slope on the target, the factors cut to `rank`."""
    if len(guides) < 2:
        return guides[0] if guides else None
    features = np.column_stack([guide.parts_at(target.rows, target.columns) for guide in guides])
    slopes, _ = settle(target.values, features, np.repeat(np.arange(len(guides)), 4))
    weight = slopes.each.reshape(len(guides), 4)
    left = np.concatenate([g.row_factors * w[2] for g, w in zip(guides, weight, strict=True)])
    right = np.concatenate([g.column_factors for g in guides])
    rows, columns = truncated(left, right, rank)
    excesses = [s * g.own_excess for g, s in zip(guides, slopes.common, strict=True) if g.own_excess is not None]
    return Guide(
        sum((w[0] * g.row_effects for g, w in zip(guides, weight, strict=True)), np.zeros(target.shape[0])),
        sum((w[1] * g.column_effects for g, w in zip(guides, weight, strict=True)), np.zeros(target.shape[1])),
        rows,
        columns,
        _added([(float(w[3]), g.residuals) for g, w in zip(guides, weight, strict=True)]),
        np.sum(excesses, axis=0) if excesses else None,
    )


def truncated(left: FloatArray, right: FloatArray, rank: int) -> tuple[FloatArray, FloatArray]:
    """The best rank-`rank` factors of leftᵀ right, of equal norms, without building the matrix."""
    q_left, r_left = np.linalg.qr(left.T)
    q_right, r_right = np.linalg.qr(right.T)
    u, s, vt = np.linalg.svd(r_left @ r_right.T)
    keep = min(rank, len(s))
    root = np.sqrt(s[:keep])
    rows, columns = q_left @ u[:, :keep] * root, q_right @ vt[:keep].T * root
    missing = ((0, rank - keep), (0, 0))
    return np.pad(rows.T, missing), np.pad(columns.T, missing)


def _added(terms: list[tuple[float, ObservedScores]]) -> ObservedScores:
    flat = np.concatenate([scores.pairs.flat for _, scores in terms])
    values = np.concatenate([weight * scores.values for weight, scores in terms])
    places, index = np.unique(flat, return_inverse=True)
    sums = np.bincount(index, weights=values, minlength=len(places))
    shape = terms[0][1].shape
    return ObservedScores(Pairs.from_flat(places, shape), sums.astype(np.float64))
