"""The fit behind `Transfer`: a bilinear model whose prior means are a guide's parts times learnt slopes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..candidates import FloatArray
from ..matrix import ObservedScores, Pairs
from ._bilinear import Bilinear, Block, Prior, inner
from ._calibration import Guide, Slopes, expand, regress, settle
from ._normal_equations import Observations

# Variances start at these shares of what the guide leaves unexplained, and are held for some sweeps: learnt from the
# first sweep on, they would shrink away factors that have not found their direction yet.
_EFFECT_SHARE, _NOISE_SHARE, _HELD_SWEEPS = 0.2, 0.1, 8
# Guide factors below this share of the strongest one start anew at random, and all do where together they explain
# less than this share of the target's variance: as directions to start from they would be worse than none.
_LIVE, _WORTH = 0.03, 0.01
_LEAST_VARIANCE = 1e-8


@dataclass(eq=False)
class Fit:
    """Scores of variance 1, a guide (or none) and row features → the posterior of the bilinear model.

    Args:
        scores: the observed entries, standardised, off the diagonal.
        guide: its parts, with the column factors brought to the scale of the model's.
        features: (N, F) standardised numbers known of every row.
        live: (d,) which of the guide's factors carry anything.
    """

    scores: ObservedScores
    guide: Guide
    features: FloatArray
    live: np.ndarray[tuple[int], np.dtype[np.bool_]]
    model: Bilinear = field(init=False)
    slopes: Slopes = field(init=False)
    errors: list[float] = field(default_factory=list)
    converged: bool = False

    @property
    def intercept(self) -> float:
        return self.slopes.intercept

    @property
    def guided(self) -> bool:
        return bool(len(self.guide.residuals))

    @property
    def residual_slope(self) -> float:
        """How much of the guide's residual the target shares."""
        return float(self.slopes.each[2]) if self.guided else 0.0

    @property
    def overall_slope(self) -> float:
        """What the guide's parts share."""
        return float(self.slopes.common[0]) if self.guided else 0.0

    @cached_property
    def _residuals(self) -> FloatArray:
        return self.guide.residuals_at(self.scores.rows, self.scores.columns)

    def run(self, columns: FloatArray, max_sweeps: int, tolerance: float) -> Fit:
        """Sweeps from the given column factors (d, M) until the error settles."""
        self.slopes, unexplained = settle(self.scores.values, self._design(columns), self._groups())
        self._start(columns, unexplained)
        for sweep in range(max_sweeps):
            if sweep:
                self._recalibrate(learn=sweep >= _HELD_SWEEPS)
            if sweep & (sweep - 1) == 0:  # sweeps 0, 1, 2, 4, 8, …: what is taken off the scores settles early
                data = self._remaining()
            self.model, error = self.model.sweep(data, learn_variances=sweep >= _HELD_SWEEPS)
            self.errors.append(error)
            if sweep > _HELD_SWEEPS and abs(self.errors[-2] - self.errors[-1]) <= tolerance * self.errors[-2]:
                self.converged = True
                break
        return self

    def diagonal(self) -> FloatArray:
        """(N,) the model's prediction of every candidate with itself, without the guide's residuals."""
        entries = np.arange(self.scores.shape[0])
        return self.intercept + self.model.at(entries, entries)

    def row_variance(self, share: FloatArray, observed: Pairs, relative: bool) -> FloatArray:
        """(N,) posterior variance of Σ_j share_j x_ij; `relative` leaves out what moves all rows alike."""
        rows, columns = self.model.rows, self.model.columns
        center = (columns.vectors @ share)[:-1]
        doubt = columns.covariance @ np.square(share)
        means = rows.vectors[1:]
        means = means - means.mean(1, keepdims=True) if relative else means
        own = np.einsum("a,abn,b->n", center, rows.covariance, center)
        shared = np.einsum("an,ab,bn->n", means, doubt, means)
        both = np.einsum("abn,ab->n", rows.covariance[1:, 1:], doubt[:-1, :-1])
        known = np.bincount(observed.rows, weights=np.square(share)[observed.columns], minlength=means.shape[1])
        unseen = np.maximum(np.square(share).sum() - known, 0.0)
        calibration = self._expected_design(share)
        calibration = calibration - calibration.mean(0) if relative else calibration
        slopes = np.einsum("na,ab,nb->n", calibration, self.slopes.covariance, calibration)
        return np.asarray(own + shared + both + self.model.noise * unseen + slopes)

    def _start(self, columns: FloatArray, unexplained: float) -> None:
        rank = len(self.live)
        variance = np.full(rank + 1, unexplained / np.sqrt(rank))
        variance[0] = _EFFECT_SHARE * unexplained
        variance = np.maximum(variance, _LEAST_VARIANCE)
        prior, column_prior = Prior(self._row_means(), variance), Prior(self._column_means(), variance[::-1])
        start = np.concatenate([columns, column_prior.mean[-1:]])
        noise = max(_NOISE_SHARE * unexplained, _LEAST_VARIANCE)
        self.model = Bilinear(Block.at(prior.mean, True), Block.at(start, False), prior, column_prior, noise)

    def slopes_of(self, part: str) -> float:
        """The slope of the guide's row or column effects."""
        return float(self.slopes.each[("row", "column").index(part)]) if self.guided else 0.0

    def _factor_slopes(self) -> FloatArray:
        out = np.zeros(len(self.live))
        if self.guided:
            out[self.live] = self.slopes.each[3 : 3 + np.count_nonzero(self.live)]
        return out

    def _explained(self, slopes: Slopes) -> float:
        """The variance that the guide's factors account for at the start."""
        products = self._design(self.guide.column_factors)[:, 3 : 3 + np.count_nonzero(self.live)]
        return float((products @ slopes.each[3 : 3 + products.shape[1]]).var())

    def _row_means(self) -> FloatArray:
        effects = self.slopes_of("row") * self.guide.row_effects
        if self.features.shape[1]:
            effects = effects + self.features @ self.slopes.each[-self.features.shape[1] :]
        return np.concatenate([effects[None], self.guide.row_factors * self._factor_slopes()[:, None]])

    def _column_means(self) -> FloatArray:
        effects = self.slopes_of("column") * self.guide.column_effects
        return np.concatenate([self.guide.column_factors, effects[None]])

    def _groups(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The guide's parts share a slope; every row feature is on its own."""
        parts = 3 + np.count_nonzero(self.live) if self.guided else 0
        return np.concatenate([np.zeros(parts), np.arange(self.features.shape[1]) + bool(parts)]).astype(np.int64)

    def _design(self, columns: FloatArray) -> FloatArray:
        """(k, P) the guide's row effect, column effect, residual and factor products, and the row features."""
        i, j = self.scores.rows, self.scores.columns
        parts = []
        if self.guided:
            parts = [self.guide.row_effects[i], self.guide.column_effects[j], self._residuals]
            parts.extend(self.guide.row_factors[self.live][:, i] * columns[self.live][:, j])
        return np.column_stack([*parts, self.features[i]])

    def _expected_design(self, share: FloatArray) -> FloatArray:
        """(N, 1 + groups + P) the regression's features of a row, averaged over the columns."""
        n = self.scores.shape[0]
        parts = []
        if self.guided:
            residuals = self.guide.residuals
            means = np.bincount(residuals.rows, weights=residuals.values * share[residuals.columns], minlength=n)
            parts = [self.guide.row_effects, np.full(n, share @ self.guide.column_effects), means]
            factors = self.model.columns.factors @ share
            parts.extend((self.guide.row_factors * factors[:, None])[self.live])
        return expand(np.column_stack([*parts, self.features]), self._groups())

    def _recalibrate(self, learn: bool) -> None:
        """Slopes given the current deviations from the prior means, which then move along with the slopes."""
        if not len(self._groups()):
            return
        rows, columns = self.model.rows, self.model.columns
        deviation = rows.mean - self.model.row_prior.mean
        offsets = columns.effects - self.model.column_prior.mean[-1]
        left = np.concatenate([deviation, np.ones((1, deviation.shape[1]))])
        right = np.concatenate([columns.vectors[:-1], offsets[None]])
        remaining = self.scores.values - inner(left, right, self.scores.rows, self.scores.columns)
        last = self.slopes.deviation
        self.slopes = regress(remaining, self._design(columns.factors), self._groups(), self.model.noise, last)
        if not learn:
            self.slopes = replace(self.slopes, deviation=last)
        row_prior = replace(self.model.row_prior, mean=self._row_means())
        column_prior = replace(self.model.column_prior, mean=self._column_means())
        moved = np.concatenate([columns.factors, (column_prior.mean[-1] + offsets)[None]])
        self.model = replace(
            self.model,
            rows=Block(row_prior.mean + deviation, rows.covariance, True),
            columns=Block(moved, columns.covariance, False),
            row_prior=row_prior,
            column_prior=column_prior,
        )

    def _remaining(self) -> Observations:
        """The scores without intercept and guide residual, prepared for sweeps."""
        values = self.scores.values - self.intercept
        if self.guided:
            values = values - self.residual_slope * self._residuals
        return Observations.prepare(self.scores.with_values(values), center=False)


def fit(
    scores: ObservedScores,
    guide: Guide | None,
    features: FloatArray,
    rank: int,
    start: FloatArray | None,
    seed: int,
    max_sweeps: int,
    tolerance: float,
) -> Fit:
    """Fit the model of `scores`, started at the guide's column factors or `start` (d, M), else at random."""
    n, m = scores.shape
    size = rank**-0.25  # a product of two such factors, summed over the rank, has variance 1
    if guide is None:
        nothing = ObservedScores(Pairs.from_flat(np.empty(0, dtype=np.int64), scores.shape), np.empty(0))
        guide = Guide(np.zeros(n), np.zeros(m), np.zeros((rank, n)), np.zeros((rank, m)), nothing)
        live = np.zeros(rank, dtype=bool)
    else:
        norms = np.sqrt(np.square(guide.column_factors).mean(1))
        energy = norms * np.sqrt(np.square(guide.row_factors).mean(1))
        live = np.asarray((energy > _LIVE * energy.max(initial=0.0)) & (energy > _LEAST_VARIANCE))
        stretch = np.where(live, size / np.where(live, norms, 1.0), 0.0)[:, None]
        unstretch = np.where(live, norms / size, 0.0)[:, None]
        guide = replace(guide, row_factors=guide.row_factors * unstretch, column_factors=guide.column_factors * stretch)
    state = Fit(scores, guide, features, live)
    if start is None:
        slopes, unexplained = settle(scores.values, state._design(guide.column_factors), state._groups())
        if live.any() and state._explained(slopes) < _WORTH:
            return fit(scores, guide.without_factors(), features, rank, None, seed, max_sweeps, tolerance)
        noise = np.random.default_rng(seed).normal(0.0, size * np.sqrt(unexplained), (rank, m))
        start = guide.column_factors + noise
    return state.run(start, max_sweeps, tolerance)
