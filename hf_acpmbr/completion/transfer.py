"""Transfer: the target's matrix as a calibrated guide plus what the target's own scores add to it.

    target_ij = μ + a_i + c_j + u_iᵀv_j + s·ε′_ij + noise
    a_i ~ N(b_a a′_i, ·),  c_j ~ N(b_c c′_j, ·),  u_ik ~ N(b_u u′_ik, ·),  v_jk ~ N(v′_jk, ·)

where a′, c′, u′, v′ are the same parts of the guide's matrix, fitted to the guide's scores, and ε′ its residual where
it was scored. The slopes b, s and all variances are learnt from the observed entries: with few target scores everything
stays at the calibrated guide, with many it becomes a factorisation of the target, and a useless guide gets slopes near
0 and wide variances. It is a multi-fidelity model ("Predicting the output from a complex computer code when fast
approximations are available", Kennedy & O'Hagan 2000) in the place of the one agreement weight γ of
https://arxiv.org/abs/2512.01316.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray, standardised
from ..config import integer, number, optional, setting
from ..matrix import ObservedScores, Pairs
from .base import Completer, Completion
from .bilinear import Bilinear
from .normal_equations import Observations, mean_and_spread

# Variances are held at their start for some sweeps: learnt from the first one on, they would shrink away factors that
# have not found their direction yet (without a guide 1.5 times the error at r=128, 1.2 times at r=32).
_HELD_SWEEPS = 8
_EM_STEPS = 10  # of slopes given the noise and the noise given the slopes
# The parts of a guide share a slope, a correlation and so N(0, 1) beforehand; each has a deviation of this variance.
# With slopes that share nothing a useless guide cost 6% of the MSE at 30 target scores (test_transfer.py).
_OWN_VARIANCE = 0.1
# Where the guides' factors explain less than this share of the target's variance, the target starts from random ones:
# as directions to start from they would be worse than none (a random guide at r=128 had 1.6 times the error).
_WORTH = 0.01
_TWINS_NEEDED = 4  # pairs seen both ways round: fewer could agree by chance
_ROUNDING = 1e-3  # share of the scores' variance above which differences between twins are no rounding


@dataclass(frozen=True)
class Transfer(Completer):
    """Probabilistic multi-fidelity completion; no setting depends on the budget."""

    rank: int = setting(
        8, integer(1), help="number of factors, for the guides and for the target. Those without support shrink away."
    )
    max_sweeps: int = setting(30, integer(1), help="at most this number of sweeps per matrix.")
    tolerance: float = setting(
        2e-3, number(0), help="stop when a sweep changes the noise variance by less than this share."
    )
    seed: int | None = setting(
        None, optional(integer(0)), help="seed of the random starting factors; None takes that of the run."
    )

    name: ClassVar[str] = "transfer"
    takes_guides: ClassVar[bool] = True

    def solve(
        self,
        target: ObservedScores,
        guides: Sequence[ObservedScores],
        features: FloatArray | None = None,
        seed: int = 0,
    ) -> Completion:
        """Fit each guide on its own, then the target with the guides' parts as prior means."""
        seed = seed if self.seed is None else self.seed
        none = np.empty((target.shape[0], 0))
        known = none if features is None else standardised(features)
        parts = [self._fit(guide, [], none, seed).parts for guide in guides]
        return self._fit(target, parts, known, seed).completion()

    def _fit(self, scores: ObservedScores, guides: list[Parts], features: FloatArray, seed: int) -> Fit:
        """Fit one matrix, started at the guides' column factors and some randomness."""
        scores = mirrored(scores)
        # u(y, y) is no ordinary score, so the diagonal of a square matrix is fitted apart.
        own = (scores.rows == scores.columns) & (scores.shape[0] == scores.shape[1])
        own &= not own.all()
        center, spread = mean_and_spread(scores.values[~own])
        scale = spread or 1.0
        values = (scores.values - center) / scale
        seen = ObservedScores(Pairs(scores.rows[~own], scores.columns[~own], scores.shape), values[~own])
        prior, intercept, unexplained = calibrated(guides, features, seen, self.rank)
        noise = np.random.default_rng(seed).normal(
            0.0, np.sqrt(unexplained / np.sqrt(self.rank)), (self.rank, seen.shape[1])
        )
        model = Bilinear.start(prior.rows, prior.columns, prior.columns[:-1] + noise, unexplained)
        shared = prior.residuals_at(seen.rows, seen.columns)
        share, errors, converged = 1.0, list[float](), False
        while not converged and len(errors) < self.max_sweeps:
            sweep = len(errors)
            # At sweeps 0, 1, 2, 4, 8, …: how much of the guides' residuals the target has shows only when the factors
            # have taken their part, and settles early.
            if sweep == 0 or (shared.any() and sweep & (sweep - 1) == 0):
                if sweep:
                    left = seen.values - intercept - model.at(seen.rows, seen.columns)
                    share = float(shared @ left / (shared @ shared + model.noise))
                data = Observations.prepare(seen.with_values(seen.values - intercept - share * shared), standard=False)
            model, error = model.sweep(data, learn_variances=sweep >= _HELD_SWEEPS)
            errors.append(error)
            converged = sweep > _HELD_SWEEPS and abs(errors[-2] - error) <= self.tolerance * errors[-2]
        places = np.arange(min(scores.shape))
        predicted = intercept + model.at(places, places)
        parts = Parts(
            model.rows.mean,
            model.columns.mean,
            seen.with_values(seen.values - intercept - model.at(seen.rows, seen.columns)),
            own_scores(scores.rows[own], values[own], predicted) - predicted if own.any() else prior.own_excess,
        )
        inherited = prior.residuals.with_values(share * prior.residuals.values)
        return Fit(parts, inherited, model, intercept, center, scale, tuple(errors), converged)


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted matrix on the scale where its scores have variance 1, and the way back."""

    parts: Parts
    inherited: ObservedScores
    model: Bilinear
    intercept: float
    center: float
    scale: float
    errors: tuple[float, ...]
    converged: bool

    def completion(self) -> Completion:
        """Join factors and corrections of single entries; if several correct one entry, the first counts."""
        layers = [self.parts.residuals]
        if self.parts.own_excess is not None:
            own = np.arange(len(self.parts.own_excess))
            layers.append(ObservedScores(Pairs(own, own, layers[0].shape), self.parts.own_excess))
        layers.append(self.inherited)
        places, first = np.unique(np.concatenate([layer.pairs.flat for layer in layers]), return_index=True)
        values = np.concatenate([layer.values for layer in layers])[first]
        return Completion(
            self.scale * self.model.rows.vectors.T,
            self.model.columns.vectors.T,
            offset=self.center + self.scale * self.intercept,
            sweeps=len(self.errors),
            converged=self.converged,
            objective=self.errors,
            correction=ObservedScores(Pairs.from_flat(places, layers[0].shape), self.scale * values),
        )


# ---------------------------------------------------------------------------------------------------
# How far the parts of guides carry over: slopes, learnt from the target's observed entries


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


# ---------------------------------------------------------------------------------------------------
# What is known beforehand of a square matrix


def own_scores(own: IntArray, values: FloatArray, predicted: FloatArray) -> FloatArray:
    """Return the (N,) diagonal from a few observed entries of it.

    Either all texts score about the same with themselves, or each scores about a constant more than the model of the
    other entries says (`predicted`, (N,)): whichever leaves less variance.
    """
    excess = values - predicted[own]
    alike = values.var() <= excess.var()
    diagonal = np.full(len(predicted), values.mean()) if alike else predicted + excess.mean()
    diagonal[own] = values
    return diagonal


def mirrored(scores: ObservedScores) -> ObservedScores:
    """Add the transposed entries, if pairs seen both ways round show that the utility is symmetric up to rounding."""
    n, m = scores.shape
    flat, twin = scores.pairs.flat, scores.columns * m + scores.rows
    if n != m or not len(scores):
        return scores
    place = np.minimum(np.searchsorted(flat, twin), len(flat) - 1)
    known = flat[place] == twin
    pairs = known & (scores.rows < scores.columns)
    if np.count_nonzero(pairs) < _TWINS_NEEDED:
        return scores
    difference = scores.values[pairs] - scores.values[place[pairs]]
    if np.square(difference).mean() / 2 > _ROUNDING * scores.values.var():
        return scores
    both = np.concatenate([flat, twin[~known]])
    values = np.concatenate([scores.values, scores.values[~known]])
    order = np.argsort(both, kind="stable")
    return ObservedScores(Pairs.from_flat(both[order], scores.shape), values[order])
