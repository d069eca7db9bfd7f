"""The model behind the rounds: candidate + pseudo-reference + noise, with a prior from what is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from ._columns import Columns

_SWEEPS = 4
# A row's variance rests on its own scores and, as if from so many others, on the mean of all rows.
_PRIOR_DEGREES = 8
# The calibrated weights have taken away a part of what the guide's residuals explain. Regret × 100 with the good / weak
# guide for the full slope and for half of it: 0.11 / 0.27 and 0.06 / 0.14 (six stored matrices, 1 score per candidate).
_SLOPE_SHARE = 0.5
# The weights of the columns take away a part of the noise, so means are shrunk by a share of it; deviations, which
# stops rest on, keep all of it. Regret × 100 at 1 / 8 scores per candidate without a guide for 0.1 / 0.25 / 1:
# 0.11 / 0.03, 0.12 / 0.03, 0.11 / 0.12 (stored matrices); 1.02 / 0.05, 1.00 / 0.05, 1.20 / 0.20 (embedded models).
_NOISE_SHARE = 0.25
_CONTENDERS, _DRAWS = 64, 400


@dataclass(frozen=True, eq=False)
class Estimate:
    """What is expected of every candidate.

    Args:
        mean: (N,) expected gain.
        deviation: (N,) its standard deviation, leaving out what moves all candidates alike.
        draws: (B, k) joint draws of the contenders' expected gains, of heavy tails as few scores deserve them.
        contenders: (k,) the candidates that can be the best, by mean + 2 deviations.
    """

    mean: FloatArray
    deviation: FloatArray
    draws: FloatArray
    contenders: IntArray

    def regret(self, leader: int) -> float:
        """Expected gain that is lost by taking `leader`."""
        place = np.flatnonzero(self.contenders == leader)
        if not place.size:
            return float("inf")
        return float((self.draws.max(axis=1) - self.draws[:, place[0]]).mean())

    def confidence(self, leader: int) -> float:
        """Probability that no candidate is better than `leader`."""
        place = np.flatnonzero(self.contenders == leader)
        return float((self.draws.max(axis=1) <= self.draws[:, place[0]]).mean()) if place.size else 0.0


@dataclass(eq=False)
class Additive:
    """gain_ij = m_i + c_j + Σ_g b_g guide_ij + noise_ij;  m_i ~ N(features_i β, τ²).

    m_i is a mean over the pseudo-references that candidate i was scored against, with the weights of `Columns`, so that
    with all of them it is the exact expected gain. β, b, τ² and the noise are learnt. Rows of different depth are
    compared by the c_j that they share, and pulled towards the prior the more the fewer scores they have.

    Args:
        columns: their order and weights.
        features: (N, F) what is known of every candidate before any score, standardised.
        guides: (N, K) scores of each guide against the first K columns, minus row and column means.
        random: for the draws.
        mean, variance: of the candidates by the last fit, where the next one starts.
    """

    columns: Columns
    features: FloatArray
    guides: list[FloatArray]
    random: np.random.Generator
    mean: FloatArray | None = None
    variance: float = 0.0

    def fit(self, scores: FloatArray, rows: IntArray, places: IntArray) -> Estimate:
        """From (k,) gains of candidates against columns (places in the order), a prefix of it for every candidate."""
        n = len(self.features)
        depth = np.bincount(rows, minlength=n)
        weight, excess, doubt = np.empty(len(rows)), np.empty(len(rows)), np.zeros(n)
        for d in np.unique(depth[depth > 0]).tolist():
            at = depth[rows] == d
            weight[at], excess[at] = self.columns.weights(d)[places[at]], self.columns.excess(d)[places[at]]
            doubt[depth == d] = self.columns.doubt(d)
        fit = _Fit(scores, rows, places, depth, weight, doubt, self)
        for _ in range(_SWEEPS):
            fit.sweep()
        self.mean, self.variance = fit.mean, fit.prior_variance
        return fit.estimate(excess)


class _Fit:
    """One fit: `sweep` goes once through column effects, guide slopes, noise, prior and candidates."""

    def __init__(
        self,
        scores: FloatArray,
        rows: IntArray,
        places: IntArray,
        depth: IntArray,
        weight: FloatArray,
        doubt: FloatArray,
        model: Additive,
    ) -> None:
        self.scores, self.rows, self.places, self.weight, self.doubt, self.model = (
            scores,
            rows,
            places,
            weight,
            doubt,
            model,
        )
        self.n, self.depth, self.seen = len(depth), depth, depth > 0
        self.per_column = np.maximum(np.bincount(places), 1)
        active = max(int(self.seen.sum()), 2)
        self.degrees = np.maximum(depth - 1, 0) * (1 - 1 / active)
        self.mean = np.zeros(self.n) if model.mean is None else model.mean - model.mean[self.seen].mean()
        self.prior_variance = model.variance
        self.guides = np.array([self._at(guide) for guide in model.guides]).reshape(len(model.guides), len(rows))
        self.within = np.array([self._within(guide) for guide in self.guides]).reshape(self.guides.shape)
        self.slopes = np.zeros(len(self.guides))

    def _at(self, guide: FloatArray) -> FloatArray:
        # Where the target has gone as far as the guide, the guide has nothing to add.
        known = (self.depth < guide.shape[1])[self.rows]
        values = np.zeros(len(self.rows))
        values[known] = guide[self.rows[known], self.places[known]]
        return values

    def _sum_rows(self, values: FloatArray) -> FloatArray:
        return np.bincount(self.rows, values, self.n).astype(np.float64)

    def _effects(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(self.places, values) / self.per_column)

    def _within(self, values: FloatArray) -> FloatArray:
        """What is left of entries without column effects and row means."""
        left = values - self._effects(values)[self.places]
        return np.asarray(left - self._sum_rows(self.weight * left)[self.rows])

    def sweep(self) -> None:
        adjusted = self.scores - self.slopes @ self.guides
        self.effects = self._effects(adjusted - self.mean[self.rows])
        left = adjusted - self.effects[self.places]
        self.row = self._sum_rows(self.weight * left)
        self.left = left - self.row[self.rows]
        total = max(float(self.degrees.sum()), 1.0)
        if len(self.guides):
            whole = self.left + self.slopes @ self.within
            ridge = float(whole @ whole) / total * np.eye(len(self.guides)) + 1e-12 * np.eye(len(self.guides))
            self.slopes = _SLOPE_SHARE * np.linalg.solve(self.within @ self.within.T + ridge, self.within @ whole)
        squares = self._sum_rows(np.square(self.left))
        pooled = float(squares.sum()) / total
        if pooled <= 0:  # one column says nothing of the noise: half of what it shows
            pooled = 0.5 * float(self.row[self.seen].var())
        tiny = 1e-18 + 1e-15 * float(np.square(self.scores).mean())
        pooled = max(pooled, tiny)
        self.own = (_PRIOR_DEGREES * pooled + squares) / (_PRIOR_DEGREES + self.degrees)
        self.error = np.maximum(_NOISE_SHARE * self.own * self.doubt, tiny)
        self._prior(self.prior_variance or 0.5 * pooled, tiny)

    def _prior(self, variance: float, tiny: float) -> None:
        """The candidates' prior means and variance, and then their means."""
        features, row, error = self.model.features[self.seen], self.row[self.seen], self.error[self.seen]
        trust = 1.0 / (error + variance)
        ridge = np.full(features.shape[1], 1e-3 * trust.sum())
        ridge[0] *= 1e-6
        weighted = features * trust[:, None]
        slopes = np.linalg.solve(features.T @ weighted + np.diag(ridge), weighted.T @ row)
        self.prior = self.model.features @ slopes
        unexplained = float(np.average(np.square(row - self.prior[self.seen]) - error, weights=trust))
        self.prior_variance = max(unexplained, 0.05 * float(row.var()), tiny)
        self.shrink = np.where(self.seen, self.prior_variance / (self.prior_variance + self.error), 0.0)
        self.mean = self.prior + self.shrink * np.where(self.seen, self.row - self.prior, 0.0)

    def estimate(self, excess: FloatArray) -> Estimate:
        error = np.where(self.seen, self.error / _NOISE_SHARE, np.inf)
        deviation = np.sqrt(1.0 / (1.0 / self.prior_variance + 1.0 / error))
        depth = len(self.effects)
        mean = self.mean + float(self.model.columns.weights(depth) @ self.effects)
        contenders = np.lexsort((np.arange(self.n), -(mean + 2 * deviation)))[:_CONTENDERS]
        return Estimate(mean, deviation, self._draws(mean, deviation, contenders, excess), contenders)

    def _draws(self, mean: FloatArray, deviation: FloatArray, chosen: IntArray, excess: FloatArray) -> FloatArray:
        """Pseudo-references move candidates jointly: a normal number for each column times the entries' residuals."""
        place = np.full(self.n, -1)
        place[chosen] = np.arange(len(chosen))
        mine = place[self.rows] >= 0
        entries = np.zeros((len(chosen), len(self.effects)))
        entries[place[self.rows[mine]], self.places[mine]] = (excess * self.left)[mine]
        size = np.sqrt(np.square(entries).sum(1))
        wanted = deviation[chosen]
        joint: npt.NDArray[Any] = entries * np.where(size > 0, wanted / np.where(size > 0, size, 1.0), 0.0)[:, None]
        random = self.model.random
        shaken = random.normal(size=(_DRAWS, joint.shape[1])) @ joint.T
        shaken += random.normal(size=(_DRAWS, len(chosen))) * np.where(size > 0, 0.0, wanted)
        degrees = _PRIOR_DEGREES + self.degrees[chosen]
        tails = np.sqrt(random.chisquare(degrees, size=(_DRAWS, len(chosen))) / degrees)
        return np.asarray(mean[chosen] + shaken / tails)
