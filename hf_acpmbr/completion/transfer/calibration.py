"""How far the parts of guides carry over to the target: slopes, learnt from the target's observed entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...candidates import FloatArray, IntArray
from ...matrix import ObservedScores, Pairs

_EM_STEPS = 10  # of slopes given the noise and the noise given the slopes
# The parts of a guide share a slope, a correlation and so N(0, 1) beforehand; each has a deviation of this variance.
# With slopes that share nothing a useless guide cost 6% of the MSE at 30 target scores (test_transfer.py).
_OWN_VARIANCE = 0.1
# Where the guides' factors explain less than this share of the target's variance, the target starts from random ones:
# as directions to start from they would be worse than none (a random guide at r=128 had 1.6 times the error).
_WORTH = 0.01


@dataclass(frozen=True, eq=False)
class Parts:
    """A matrix of scores of variance 1 in parts.

    prediction_ij = rows[0, i] + columns[-1, j] + Σ_k rows[k+1, i] columns[k, j]; at the observed entries the residual
    of this prediction is known too, and on the diagonal of a square matrix its excess over the prediction.

    Args:
        rows: (d+1, N) row effects, then factors.
        columns: (d+1, M) factors, then column effects.
        residuals: of the observed entries.
        own_excess: (N,) of the diagonal, where one of its entries was observed.
    """

    rows: FloatArray
    columns: FloatArray
    residuals: ObservedScores
    own_excess: FloatArray | None = None

    def residuals_at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Return the (k,) residuals of these entries, 0 where nothing was observed."""
        flat, wanted = self.residuals.pairs.flat, rows * self.residuals.shape[1] + columns
        if not len(flat):
            return np.zeros(len(wanted))
        place = np.minimum(np.searchsorted(flat, wanted), len(flat) - 1)
        return np.where(flat[place] == wanted, self.residuals.values[place], 0.0)

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Return (k, 3+d): row effect, column effect, residual and the product of every factor of these entries."""
        effects = self.rows[0, rows], self.columns[-1, columns]
        products = self.rows[1:, rows] * self.columns[:-1, columns]
        return np.column_stack([*effects, self.residuals_at(rows, columns), products.T])


def calibrated(
    guides: Sequence[Parts], features: FloatArray, target: ObservedScores, rank: int
) -> tuple[Parts, float, float]:
    """Return what guides and row features (N, F) say of the target, its intercept, and the share of variance left.

    Every part of every guide has a slope. The factors are cut to `rank`, their columns of mean square
    1/√rank, so that a sum of products of two such factors has variance 1.
    """
    n, m = target.shape
    i, j = target.rows, target.columns
    parts = [guide.at(i, j) for guide in guides]
    owner = np.concatenate([np.repeat(np.arange(len(guides)), rank + 3), -1 - np.arange(features.shape[1])])
    prior = (owner[:, None] == owner) + _OWN_VARIANCE * np.eye(len(owner))
    slopes, unexplained = ridge(target.values, np.column_stack([*parts, features[i]]), prior)
    each, own = np.split(slopes[1:], [(rank + 3) * len(guides)])
    each = each.reshape(len(guides), rank + 3)
    rows, columns = np.zeros((rank + 1, n)), np.zeros((rank + 1, m))
    rows[0] = features @ own
    for guide, slope in zip(guides, each, strict=True):
        rows[0] += slope[0] * guide.rows[0]
        columns[-1] += slope[1] * guide.columns[-1]
    low_rank = sum((part[:, 3:] @ slope[3:] for part, slope in zip(parts, each, strict=True)), np.zeros(len(target)))
    if low_rank.var() >= _WORTH:
        left = np.concatenate([guide.rows[1:] * slope[3:, None] for guide, slope in zip(guides, each, strict=True)])
        right = np.concatenate([guide.columns[:-1] for guide in guides])
        rows[1:], columns[:-1] = truncated(left, right, rank)
    residuals = _added([(float(slope[2]), g.residuals) for g, slope in zip(guides, each, strict=True)], target.shape)
    excesses = [slope.mean() * g.own_excess for g, slope in zip(guides, each, strict=True) if g.own_excess is not None]
    own_excess = np.sum(excesses, axis=0) if excesses else None
    return Parts(rows, columns, residuals, own_excess), float(slopes[0]), unexplained


def ridge(values: FloatArray, features: FloatArray, prior: FloatArray) -> tuple[FloatArray, float]:
    """Fit (1 + F,) intercept and slopes with the noise learnt; return them and the share of variance left.

    `values` have variance 1; `prior` is the (F, F) covariance of the slopes beforehand.
    """
    design = np.column_stack([np.ones(len(values)), features])
    gram, moment = design.T @ design, design.T @ values
    penalty = np.diag(np.full(len(gram), 1e-6))
    penalty[1:, 1:] = np.linalg.inv(prior)
    noise, count = 1.0, len(values)
    for _ in range(_EM_STEPS):
        slopes = np.linalg.solve(gram + noise * penalty, moment)
        noise = max(float(np.square(values - design @ slopes).sum()) / max(count - 2, 1), 1e-6)
    return np.asarray(slopes), float(np.clip(noise, 2.0 / (count + 2), 1.0))


def truncated(left: FloatArray, right: FloatArray, rank: int) -> tuple[FloatArray, FloatArray]:
    """Return the best rank-`rank` factors of leftᵀ right, columns of mean square 1/√rank, without the matrix."""
    q_left, r_left = np.linalg.qr(left.T)
    q_right, r_right = np.linalg.qr(right.T)
    u, s, vt = np.linalg.svd(r_left @ r_right.T)
    keep = min(rank, int(np.sum(s > 1e-6 * s[0])))  # below, directions are rounding
    norm = np.sqrt(right.shape[1] / np.sqrt(rank))
    rows, columns = q_left @ u[:, :keep] * (s[:keep] / norm), q_right @ vt[:keep].T * norm
    missing = ((0, rank - keep), (0, 0))
    return np.pad(rows.T, missing), np.pad(columns.T, missing)


def _added(terms: list[tuple[float, ObservedScores]], shape: tuple[int, int]) -> ObservedScores:
    flat = np.concatenate([np.empty(0, dtype=np.int64), *(scores.pairs.flat for _, scores in terms)])
    values = np.concatenate([np.empty(0), *(weight * scores.values for weight, scores in terms)])
    places, index = np.unique(flat, return_inverse=True)
    sums = np.bincount(index, weights=values, minlength=len(places))
    return ObservedScores(Pairs.from_flat(places, shape), sums.astype(np.float64))
