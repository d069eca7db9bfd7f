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
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...candidates import FloatArray
from ...config import integer, number, optional, setting
from ...matrix import ObservedScores, Pairs
from ..base import Completer, Completion, Factors
from ..normal_equations import Observations, mean_and_spread
from .bilinear import Bilinear
from .calibration import Parts, calibrated
from .self_pairs import Split, mirrored, own_scores

# Variances are held at their start for some sweeps: learnt from the first one on, they would shrink away factors that
# have not found their direction yet (without a guide 1.5 times the error at r=128, 1.2 times at r=32).
_HELD_SWEEPS = 8


@dataclass(frozen=True, eq=False)
class TransferCompletion(Completion):
    """A completion that keeps the observed scores as they are.

    Args:
        correction: what single entries have beyond the factors: observed scores, guide residuals, the diagonal.
    """

    correction: ObservedScores = field(kw_only=True, repr=False)

    @cached_property
    def matrix(self) -> FloatArray:
        """(N, M), built at the first use."""
        matrix = np.asarray(self.row_factors @ self.column_factors.T + self.offset)
        matrix[self.correction.rows, self.correction.columns] += self.correction.values
        return matrix

    def expected(self, weights: npt.ArrayLike | None = None) -> FloatArray:
        """Return the (N,) weighted means of the rows, without the matrix. Default: all columns weigh the same."""
        means = super().expected(weights)
        share = np.ones(self.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
        extra = self.correction.values * share[self.correction.columns] / share.sum()
        sums = np.bincount(self.correction.rows, weights=extra, minlength=self.shape[0])
        return np.asarray(means + sums, dtype=np.float64)


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
    takes_features: ClassVar[bool] = True

    def solve(
        self,
        target: ObservedScores,
        guides: Sequence[ObservedScores],
        features: FloatArray | None = None,
        seed: int = 0,
        init: Factors | None = None,
    ) -> TransferCompletion:
        """Fit each guide on its own, then the target with the guides' parts as prior means."""
        seed = seed if self.seed is None else self.seed
        start = _starting_columns(init, target.shape, self.rank)
        known = _features(features, target.shape[0])
        fits = [self._fit(guide, [], np.empty((target.shape[0], 0)), None, seed) for guide in guides]
        return self._fit(target, [fit.parts for fit in fits], known, start, seed).completion(
            tuple((fit.parts.rows[1:].T, fit.parts.columns[:-1].T) for fit in fits)
        )

    def _fit(
        self, scores: ObservedScores, guides: list[Parts], features: FloatArray, start: FloatArray | None, seed: int
    ) -> Fit:
        """Fit one matrix, started at the guides' column factors or `start` (d, M), else at random."""
        split = Split.of(mirrored(scores))
        center, spread = mean_and_spread(split.between.values)
        scale = spread or 1.0
        split = split.scaled(center, scale)
        seen = split.between
        prior, intercept, unexplained = calibrated(guides, features, seen, self.rank)
        if start is None:
            spread = np.sqrt(unexplained / np.sqrt(self.rank))
            start = prior.columns[:-1] + np.random.default_rng(seed).normal(0.0, spread, prior.columns[:-1].shape)
        model = Bilinear.start(prior.rows, prior.columns, start, unexplained)
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
        own = np.arange(min(scores.shape))
        predicted = intercept + model.at(own, own)
        diagonal = own_scores(split, predicted)
        parts = Parts(
            model.rows.mean,
            model.columns.mean,
            seen.with_values(seen.values - intercept - model.at(seen.rows, seen.columns)),
            prior.own_excess if diagonal is None else diagonal - predicted,
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

    def completion(self, guide_factors: tuple[tuple[FloatArray, FloatArray], ...]) -> TransferCompletion:
        """Join factors and corrections of single entries; if several correct one entry, the first counts."""
        layers = [self.parts.residuals]
        if self.parts.own_excess is not None:
            own = np.arange(len(self.parts.own_excess))
            layers.append(ObservedScores(Pairs(own, own, layers[0].shape), self.parts.own_excess))
        layers.append(self.inherited)
        places, first = np.unique(np.concatenate([layer.pairs.flat for layer in layers]), return_index=True)
        values = np.concatenate([layer.values for layer in layers])[first]
        return TransferCompletion(
            self.scale * self.model.rows.vectors.T,
            self.model.columns.vectors.T,
            offset=self.center + self.scale * self.intercept,
            sweeps=len(self.errors),
            converged=self.converged,
            objective=self.errors,
            guide_factors=guide_factors,
            correction=ObservedScores(Pairs.from_flat(places, layers[0].shape), self.scale * values),
        )


def _features(values: npt.ArrayLike | None, size: int) -> FloatArray:
    """Standardise (N, F) features; one that is the same for all rows says nothing and is left out."""
    if values is None:
        return np.empty((size, 0))
    features = np.asarray(values, dtype=np.float64)
    features = features[:, None] if features.ndim == 1 else features
    if features.ndim != 2 or len(features) != size:
        raise ValueError(f"row_features has shape {np.shape(values)}, expected ({size},) or ({size}, F)")
    if not np.isfinite(features).all():
        raise ValueError("row_features has NaN or infinite values: give a finite number for every candidate")
    telling = [k for k, column in enumerate(features.T) if mean_and_spread(column)[1]]
    return np.asarray((features - features.mean(0))[:, telling] / features.std(0)[telling])


def _starting_columns(init: Factors | None, shape: tuple[int, int], rank: int) -> FloatArray | None:
    """Return the column factors of `init`: the first half-sweep finds the row factors from them."""
    if init is None:
        return None
    if len(init) < 2:
        raise ValueError(f"init has {len(init)} factors, expected (U, V)")
    for k, size in enumerate(shape):
        if np.shape(init[k]) != (size, rank):
            raise ValueError(f"init[{k}] has shape {np.shape(init[k])}, expected {(size, rank)}")
    return np.array(init[1], dtype=np.float64).T
