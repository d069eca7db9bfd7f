"""Transfer: the target's matrix as a calibrated guide plus what the target's own scores add to it.

    target_ij = μ + a_i + c_j + u_iᵀv_j + s·ε′_ij + noise
    a_i ~ N(b_a a′_i, ·),  c_j ~ N(b_c c′_j, ·),  u_ik ~ N(b_k u′_ik, ·),  v_jk ~ N(v′_jk, ·)

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

from ..candidates import FloatArray, IntArray
from ..checks import integer, number, optional
from ..matrix import ObservedScores, Pairs
from ..protocols import Posterior
from ..stage import Stage, setting
from ._calibrated import Fit, fit
from ._calibration import Guide, merged
from ._self_pairs import Split, mirrored, own_scores
from .base import Completion, Factors, GuideMasks, GuideScores, Scores, as_guides, as_observed


@dataclass(frozen=True, eq=False)
class TransferCompletion(Completion):
    """A completion that keeps the observed scores as they are and knows how sure it is of every row.

    Args:
        correction: what single entries have beyond the factors: observed scores, guide residuals, the diagonal.
        observed: the target's pairs, whose entries are certain.
        fitted: the model, on the scale where the target's scores have variance 1.
        scale: that scale.
    """

    correction: ObservedScores = field(kw_only=True, repr=False)
    observed: Pairs = field(kw_only=True, repr=False)
    fitted: Fit = field(kw_only=True, repr=False)
    scale: float = field(kw_only=True)

    @cached_property
    def matrix(self) -> FloatArray:
        """(N, M), built at the first use."""
        matrix = np.asarray(self.row_factors @ self.column_factors.T + self.offset)
        matrix[self.correction.rows, self.correction.columns] += self.correction.values
        return matrix

    def expected(self, weights: npt.ArrayLike | None = None) -> FloatArray:
        """(N,) weighted mean of every row, without building the matrix. Default: all columns weigh the same."""
        share = _shares(weights, self.shape[1])
        return super().expected(share) + _row_sums(self.correction, share)

    def row_variance(self, weights: npt.ArrayLike | None = None, relative: bool = False) -> FloatArray:
        """(N,) posterior variance of `expected(weights)`.

        Args:
            relative: leave out what moves all rows alike (intercept, column effects), as for comparing rows.
        """
        share = _shares(weights, self.shape[1])
        return self.scale**2 * self.fitted.row_variance(share, self.observed, relative)

    def posterior(self, weights: FloatArray) -> Posterior:
        """The rows' means and deviations, leaving out what moves all rows alike."""
        return Posterior(self.expected(weights), np.sqrt(self.row_variance(weights, relative=True)))


@dataclass(frozen=True)
class Transfer(Stage):
    """Probabilistic multi-fidelity completion; no setting depends on the budget.

    Args:
        rank: number of factors, for the guides and for the target. Those without support shrink away.
        max_sweeps: at most so many sweeps for each matrix.
        tolerance: stop when the noise variance changes by less than this share in a sweep.
        seed: of the random starting factors; None takes that of the run.
    """

    rank: int = setting(8, integer(1))
    max_sweeps: int = setting(30, integer(1))
    tolerance: float = setting(2e-3, number(0))
    seed: int | None = setting(None, optional(integer(0)))

    name: ClassVar[str] = "transfer"
    takes_guides: ClassVar[bool] = True
    knows_deviations: ClassVar[bool] = True

    def complete(
        self,
        target_scores: Scores,
        target_mask: npt.ArrayLike | None = None,
        guide_scores: GuideScores = None,
        guide_mask: GuideMasks = None,
        init: Factors | None = None,
        *,
        row_features: npt.ArrayLike | None = None,
    ) -> TransferCompletion:
        """Complete the target's (N, M) scores from its own and the guides' observed entries.

        Args:
            target_scores: (N, M) with `target_mask`, or ObservedScores.
            guide_scores: the same for a guide, or a list of guides, on any scale; None uses the target alone.
            init: factors (U, V) to start the target from, (N, d) and (M, d).
            row_features: (N,) or (N, F) numbers known of every candidate, such as its log-probability or its length.
        """
        target = as_observed(target_scores, target_mask, "target_scores")
        guides = as_guides(guide_scores, guide_mask, target.shape)
        return self.fit(guides).complete(target, row_features, init)

    def check_guides(self, count: int) -> None:
        """Any number of guides will do."""

    def fit(self, guides: Sequence[ObservedScores], seed: int = 0) -> FittedGuides:
        """Fit the guides once, for several calls with growing target scores."""
        seed = seed if self.seed is None else self.seed
        return FittedGuides(self, [self._guide(scores, seed) for scores in guides], seed)

    def model(
        self, scores: ObservedScores, guide: Guide | None, features: FloatArray, start: FloatArray | None, seed: int
    ) -> Fit:
        """The bilinear model of standardised scores."""
        return fit(scores, guide, features, self.rank, start, seed, self.max_sweeps, self.tolerance)

    def _guide(self, scores: ObservedScores, seed: int) -> Guide:
        split = Split.of(mirrored(scores))
        center, scale = _standard(split.between.values)
        scores = split.between.with_values((split.between.values - center) / scale)
        fitted = self.model(scores, None, np.empty((scores.shape[0], 0)), None, seed)
        residuals = scores.with_values(scores.values - fitted.intercept - fitted.model.at(scores.rows, scores.columns))
        excess = None
        if len(split.own):
            predicted = fitted.diagonal()
            own = Split(scores, split.own, (split.own_values - center) / scale)
            diagonal = own_scores(own, predicted)
            excess = None if diagonal is None else diagonal - predicted
        rows, columns = fitted.model.rows, fitted.model.columns
        return Guide(rows.effects, columns.effects, rows.factors, columns.factors, residuals, excess)


@dataclass(frozen=True, eq=False)
class FittedGuides:
    """Fitted guides, ready to complete the target from any number of its scores."""

    settings: Transfer
    guides: list[Guide]
    seed: int = 0

    def prior(self, weights: npt.ArrayLike, size: int) -> Posterior:
        """What the guides alone say of every row, each on a scale of variance 1, summed; 0 without guides."""
        total = np.zeros(size)
        for guide in self.guides:
            share = _shares(weights, len(guide.column_effects))
            total += guide.row_effects + (guide.column_factors @ share) @ guide.row_factors
            total += _row_sums(guide.residuals, share)
            if guide.own_excess is not None:
                total += share * guide.own_excess
        return Posterior(total, np.zeros(size))

    def complete(
        self, target: ObservedScores, features: npt.ArrayLike | None = None, init: Factors | None = None
    ) -> TransferCompletion:
        """The target's completion; see `Transfer.complete`."""
        split = Split.of(mirrored(target))
        center, scale = _standard(split.between.values)
        scores = split.between.with_values((split.between.values - center) / scale)
        guide = merged(self.guides, scores, self.settings.rank)
        start = _starting_columns(init, target.shape, self.settings.rank)
        known = _features(features, target.shape[0])
        fitted = self.settings.model(scores, guide, known, start, self.seed)
        corrections = [
            scores.with_values(scores.values - fitted.intercept - fitted.model.at(scores.rows, scores.columns))
        ]
        if target.shape[0] == target.shape[1]:
            corrections.extend(_own_corrections(fitted, Split(scores, split.own, (split.own_values - center) / scale)))
        if guide is not None and len(guide.residuals):
            corrections.append(guide.residuals.with_values(fitted.residual_slope * guide.residuals.values))
        correction = _first_of(corrections)
        return TransferCompletion(
            scale * fitted.model.rows.vectors.T,
            fitted.model.columns.vectors.T,
            offset=center + scale * fitted.intercept,
            sweeps=len(fitted.errors),
            converged=fitted.converged,
            objective=tuple(fitted.errors),
            guide_factors=tuple((g.row_factors.T, g.column_factors.T) for g in self.guides),
            correction=correction.with_values(scale * correction.values),
            observed=mirrored(target).pairs,
            fitted=fitted,
            scale=scale,
        )


def _own_corrections(fitted: Fit, split: Split) -> list[ObservedScores]:
    """The diagonal beyond the model: from the target's own entries of it, else from the guide's, times its slope."""
    predicted = fitted.diagonal()
    diagonal = own_scores(split, predicted)
    if diagonal is not None:
        return [_on_diagonal(np.arange(len(predicted)), diagonal - predicted)]
    corrections = [_on_diagonal(split.own, split.own_values - predicted[split.own], len(predicted))]
    if fitted.guide.own_excess is not None:
        corrections.append(_on_diagonal(np.arange(len(predicted)), fitted.overall_slope * fitted.guide.own_excess))
    return corrections


def _on_diagonal(entries: IntArray, values: FloatArray, size: int | None = None) -> ObservedScores:
    n = len(values) if size is None else size
    return ObservedScores(Pairs(entries, entries, (n, n)), values)


def _first_of(layers: Sequence[ObservedScores]) -> ObservedScores:
    """Entries of all layers; where several have one, the first counts."""
    flat = np.concatenate([layer.pairs.flat for layer in layers])
    values = np.concatenate([layer.values for layer in layers])
    places, first = np.unique(flat, return_index=True)
    return ObservedScores(Pairs.from_flat(places, layers[0].shape), values[first])


def _row_sums(scores: ObservedScores, share: FloatArray) -> FloatArray:
    weighted = scores.values * share[scores.columns]
    return np.bincount(scores.rows, weights=weighted, minlength=scores.shape[0]).astype(np.float64)


def _shares(weights: npt.ArrayLike | None, size: int) -> FloatArray:
    share = np.full(size, 1.0) if weights is None else np.asarray(weights, dtype=np.float64)
    if share.shape != (size,):
        raise ValueError(f"weights has shape {share.shape}, expected ({size},): one for each pseudo-reference")
    return np.asarray(share / share.sum())


def _standard(values: FloatArray) -> tuple[float, float]:
    """Mean and standard deviation; 1 in the place of a deviation that is nothing but rounding."""
    center, scale = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    return center, scale if _more_than_rounding(center, scale) else 1.0


def _more_than_rounding(center: FloatArray | float, spread: FloatArray | float) -> npt.NDArray[np.bool_]:
    """Whether standard deviations are more than what numbers around `center` are rounded by."""
    return np.asarray(spread > 1e-9 * np.maximum(np.abs(center), 1e-300))


def _features(values: npt.ArrayLike | None, size: int) -> FloatArray:
    """(N, F) standardised; a feature that is the same for all rows says nothing and is left out."""
    if values is None:
        return np.empty((size, 0))
    features = np.asarray(values, dtype=np.float64)
    features = features[:, None] if features.ndim == 1 else features
    if features.ndim != 2 or len(features) != size:
        raise ValueError(f"row_features has shape {np.shape(values)}, expected ({size},) or ({size}, F)")
    if not np.isfinite(features).all():
        raise ValueError("row_features has NaN or infinite values: give a finite number for every candidate")
    center, spread = features.mean(0), features.std(0)
    telling = _more_than_rounding(center, spread)
    return np.asarray((features - center)[:, telling] / spread[telling])


def _starting_columns(init: Factors | None, shape: tuple[int, int], rank: int) -> FloatArray | None:
    """The column factors of `init`: the first half-sweep finds the row factors from them."""
    if init is None:
        return None
    if len(init) < 2:
        raise ValueError(f"init has {len(init)} factors, expected (U, V)")
    for k, size in enumerate(shape):
        if np.shape(init[k]) != (size, rank):
            raise ValueError(f"init[{k}] has shape {np.shape(init[k])}, expected {(size, rank)}")
    return np.array(init[1], dtype=np.float64).T
