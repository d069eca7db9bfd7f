"""The model behind the rounds: candidate + pseudo-reference + noise, with a prior from what is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...candidates import FloatArray, IntArray
from ...config import Configured, number, setting
from .posterior import Beliefs
from .reference_weights import Columns

_SWEEPS = 4
# What is known of how far means move counts half as much after each round: deeper rounds tell more of deep ones.
_FADE = 0.5
_CONTENDERS, _DRAWS = 256, 400


@dataclass(frozen=True)
class Shrinkage(Configured):
    """How far candidates with few scores are pulled towards what is known of them beforehand."""

    noise_share: float = setting(
        0.25,
        number(0, 1, above=True),
        help="the part of the noise that means are shrunk by; calibrated weights take the rest "
        "away. Deviations, which stops rest on, keep all of it.",
    )
    slope_share: float = setting(
        0.5, number(0, 1), help="the part of a guide's slope that is used, for the same reason."
    )
    prior_degrees: float = setting(
        8.0,
        number(0, above=True),
        help="a candidate's variance rests on its own scores and, as if from so many more, on everybody's.",
    )


@dataclass(eq=False)
class Estimate:
    """What is expected of every candidate.

    Args:
        mean: (N,) expected gain.
        deviation: (N,) its standard deviation, leaving out what moves all candidates alike.
        beliefs: the distributions behind it.
        pulls: (N, d) how each column moves each candidate's mean.
        random: for the draws.
    """

    mean: FloatArray
    beliefs: Beliefs
    pulls: FloatArray
    random: np.random.Generator
    _known: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def deviation(self) -> FloatArray:
        return self.beliefs.deviation

    def regret(self, leader: int) -> float:
        """Expected gain that is lost by taking `leader`."""
        return self._outlook(leader)[0]

    def confidence(self, leader: int) -> float:
        """Probability that no candidate is better than `leader`."""
        return self._outlook(leader)[1]

    def _outlook(self, leader: int) -> tuple[float, float]:
        """Regret and confidence of a leader, by joint draws of its gain and of those that can be better.

        Pseudo-references move candidates jointly: a normal number per column times what it does to each of them.
        """
        if leader not in self._known:
            hopeful = self.beliefs.center + 2 * self.deviation
            hopeful[leader] = np.inf
            contenders = np.lexsort((np.arange(len(hopeful)), -hopeful))[:_CONTENDERS]  # the leader is the first
            pulls = self.pulls[contenders]
            size = np.sqrt(np.square(pulls).sum(axis=1))
            shares = pulls / np.where(size > 0, size, 1.0)[:, None]
            normal = self.random.normal(size=(_DRAWS, pulls.shape[1])) @ shares.T
            normal += self.random.normal(size=normal.shape) * (size == 0)
            draws = self.beliefs.draw(contenders, normal)
            lost = draws.max(axis=1) - draws[:, 0]
            self._known[leader] = float(lost.mean()), float((lost <= 0).mean())
        return self._known[leader]


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
        shrinkage: how far.
        last: fit, where the next one starts.
    """

    columns: Columns
    features: FloatArray
    guides: list[FloatArray]
    random: np.random.Generator
    shrinkage: Shrinkage = Shrinkage()
    last: _Fit | None = None
    _moved: tuple[float, float] = (0.0, 0.0)

    def fit(self, scores: FloatArray, rows: IntArray, places: IntArray) -> Estimate:
        """From (k,) gains of candidates against columns (places in the order), a prefix of it for every candidate."""
        fit = _Fit(scores, rows, places, self)
        for _ in range(_SWEEPS):
            fit.sweep()
        if self.last is not None:
            self._compare(self.last, fit)
        self.last = fit
        return fit.estimate(self.widening)

    @property
    def widening(self) -> float:
        """How much larger variances are than the scores of single candidates say.

        These are not independent, since pseudo-references come in kinds. So it is learnt from how far means moved when
        candidates got more scores.
        """
        squares, number = self._moved
        prior = self.shrinkage.prior_degrees
        return max(1.0, (prior + squares) / (prior + number))

    def _compare(self, before: _Fit, now: _Fit) -> None:
        deeper = before.seen & (now.depth > before.depth)
        if deeper.sum() < 2:
            return
        said = np.maximum(before.error - now.error, 0.1 * before.error)[deeper]
        moved = (now.row - before.row)[deeper]
        moved = moved - np.average(moved, weights=1 / said)
        number = len(moved)
        squares = float((np.square(moved) / said).sum()) * number / (number - 1)
        self._moved = _FADE * self._moved[0] + squares, _FADE * self._moved[1] + number


class _Fit:
    """One fit: `sweep` goes once through column effects, guide slopes, noise, prior and candidates."""

    def __init__(self, scores: FloatArray, rows: IntArray, places: IntArray, model: Additive) -> None:
        self.scores, self.rows, self.places, self.model = scores, rows, places, model
        self.n = len(model.features)
        self.depth = np.bincount(rows, minlength=self.n)
        self.seen = self.depth > 0
        self.weight, self.excess, self.doubt = self._weights()
        self.per_column = np.maximum(np.bincount(places), 1)
        active = max(int(self.seen.sum()), 2)
        self.degrees = np.maximum(self.depth - 1, 0) * (1 - 1 / active)
        last = model.last
        self.mean: FloatArray = np.zeros(self.n) if last is None else last.mean - last.mean[self.seen].mean()
        self.prior_variance: float = 0.0 if last is None else last.prior_variance
        self.guides = np.array([self._at(guide) for guide in model.guides]).reshape(len(model.guides), len(rows))
        self.within = np.array([self._within(guide) for guide in self.guides]).reshape(self.guides.shape)
        self.slopes = np.zeros(len(self.guides))

    def _weights(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of every entry its column's weight and what of it is beyond the column's share; the doubt of every row."""
        weight, excess, doubt = np.empty(len(self.rows)), np.empty(len(self.rows)), np.zeros(self.n)
        columns = self.model.columns
        for d in np.unique(self.depth[self.seen]).tolist():
            at = self.depth[self.rows] == d
            weight[at], excess[at] = columns.weights(d)[self.places[at]], columns.excess(d)[self.places[at]]
            doubt[self.depth == d] = columns.doubt(d)
        return weight, excess, doubt

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
        shrinkage = self.model.shrinkage
        adjusted = self.scores - self.slopes @ self.guides
        self.effects = self._effects(adjusted - self.mean[self.rows])
        left = adjusted - self.effects[self.places]
        self.row = self._sum_rows(self.weight * left)
        self.left = left - self.row[self.rows]
        total = max(float(self.degrees.sum()), 1.0)
        if len(self.guides):
            whole = self.left + self.slopes @ self.within
            own = np.square(self.within).sum(axis=1) / total  # as if one more score had shown no slope
            ridge = np.diag(np.where(own > 0, own, 1.0))
            slopes = np.linalg.solve(self.within @ self.within.T + ridge, self.within @ whole)
            self.slopes = shrinkage.slope_share * slopes
        squares = self._sum_rows(np.square(self.left))
        pooled = float(squares.sum()) / total
        if pooled <= 0:  # one column says nothing of the noise: half of what it shows
            pooled = 0.5 * float(self.row[self.seen].var())
        self.tiny = 1e-18 + 1e-15 * float(np.square(self.scores).mean())
        pooled = max(pooled, self.tiny)
        prior_degrees = shrinkage.prior_degrees
        own = (prior_degrees * pooled + squares) / (prior_degrees + self.degrees)
        self.error = np.maximum(own * self.doubt, self.tiny)
        self._prior(self.prior_variance or 0.5 * pooled)

    def _prior(self, variance: float) -> None:
        """The candidates' prior means and variance, and then their means."""
        share = self.model.shrinkage.noise_share * self.error
        features, row, error = self.model.features[self.seen], self.row[self.seen], share[self.seen]
        trust = 1.0 / (error + variance)
        ridge = np.full(features.shape[1], 1e-3 * trust.sum())
        ridge[0] *= 1e-6
        weighted = features * trust[:, None]
        slopes = np.linalg.solve(features.T @ weighted + np.diag(ridge), weighted.T @ row)
        self.prior = self.model.features @ slopes
        unexplained = float(np.average(np.square(row - self.prior[self.seen]) - error, weights=trust))
        self.prior_variance = max(unexplained, 0.05 * float(row.var()), self.tiny)
        kept = np.where(self.seen, self.prior_variance / (self.prior_variance + share), 0.0)
        self.mean = self.prior + kept * np.where(self.seen, self.row - self.prior, 0.0)

    def estimate(self, widening: float) -> Estimate:
        beliefs = Beliefs.of(self.row, np.where(self.seen, widening * self.error, np.inf), self.prior)
        pulls = np.zeros((self.n, len(self.effects)))
        pulls[self.rows, self.places] = self.excess * self.left
        shift = float(self.model.columns.weights(len(self.effects)) @ self.effects)
        return Estimate(self.mean + shift, beliefs, pulls, self.model.random)
