"""What is expected of every candidate, from scores of a few pseudo-references each, compared with the leader's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...candidates import FloatArray, IntArray
from .reference_weights import Columns, Rule
from .scores import Effects, RaggedScores

# A candidate's variance rests on its own scores and, as if from 6 more, on those of the better half.
_POOLED_DEGREES = 6.0
# Among those a candidate with more degrees of freedom counts no more than one with 20.
_MOST_WEIGHT = 20.0
# The leader's slope is shrunk as if one more score had shown none.
_SLOPE_PRIOR = 1.0
# The prior's variance has 2 standard errors added, since it says what candidates may yet turn out to be. It is at
# least a twentieth of what the estimates themselves vary.
_PRIOR_ERRORS, _LEAST_PRIOR = 2.0, 0.05
_PRIOR_STEPS = 3
_RIDGE = 1e-2
_TINY = 1e-18

# Stated losses are integrals over 100 points, up to 6 standard deviations above the rivals that matter.
_POINTS, _FARTHEST = 100, 6.0
_NEGLIGIBLE = 0.003


@dataclass(frozen=True, eq=False)
class Summand:
    """A summand of the target's scores: the scores themselves; or what a guide leaves of them, and what it explains.

    Each part has its own columns seen, and is estimated apart: with a guide the first part varies little, and the
    second is cheap.
    """

    scores: RaggedScores
    values: FloatArray


@dataclass(eq=False)
class _Compared:
    """One part of the estimates, for all candidates.

    Args:
        mean: (n,) NaN without scores.
        square: (n,) mean squares of the residuals.
        doubt, degrees: (n,) of the variance.
        slope: (n,) how much of the leader's residuals each candidate shares.
        leader: the leader's square, doubt and degrees.
    """

    mean: FloatArray
    square: FloatArray
    doubt: FloatArray
    degrees: FloatArray
    slope: FloatArray
    leader: tuple[float, float, float]

    def variances(self, estimate: FloatArray) -> tuple[FloatArray, float]:
        """Return (n,) the variance of each candidate's mean without the leader's, and the leader's own.

        Squares of few scores are uncertain themselves, so they are joined with those of the better half of the
        candidates: a t distribution's variance with the degrees of both.
        """
        usable = np.isfinite(estimate) & (self.doubt > 0)
        pooled = 0.0
        if usable.any():
            usable &= estimate >= np.median(estimate[usable])
            pooled = float(
                np.average(self.square[usable], weights=np.square(np.minimum(self.degrees[usable], _MOST_WEIGHT)))
            )
        spare = _POOLED_DEGREES - 2

        def joined(square: FloatArray, degrees: FloatArray) -> FloatArray:
            degrees = np.minimum(degrees, 1e6)
            return np.asarray((_POOLED_DEGREES * pooled + degrees * square) / (spare + degrees))

        square, doubt, degrees = (np.array([value]) for value in self.leader)
        return joined(self.square, self.degrees) * self.doubt, float((joined(square, degrees) * doubt)[0])


def compare(scores: RaggedScores, centred: FloatArray, columns: Columns, leader: int) -> _Compared:
    """Estimate the mean over all columns of every candidate, from (k,) scores without column effects.

    The leader is a control variate: what its scores on a candidate's columns are above or below its own mean, times a
    slope b, is taken off. b is 1 where scores of a column move both alike, as pseudo-references of one kind do; it is 0
    where the noise is in single pairs, and taking differences would only double it. b is the regression of residuals
    on residuals, shrunk, between 0 and 1. Residuals are those of fits that have not seen the column (leave one out).
    """
    n = len(scores.depth)
    depth = np.minimum(scores.depth, scores.depth[leader])
    mean = np.full(n, np.nan)
    square, doubt, degrees, slope = (np.zeros(n) for _ in range(4))
    first = columns.rule(int(depth[leader]))
    own = scores.block(np.array([leader]), int(depth[leader]), centred)[0]
    leading = _residuals(own[None], first)[0]
    expected = float(own @ first.weights)
    found = _Compared(
        mean, square, doubt, degrees, slope, (float(first.blame @ np.square(leading)), first.doubt, first.degrees)
    )  # fmt: skip
    for d in np.unique(depth[depth > 0]).tolist():
        rows, rule = np.flatnonzero(depth == d), columns.rule(d)
        block = scores.block(rows, d, centred)
        with_leader = own[:d]
        if not rule.doubt:  # all columns: exact
            mean[rows], degrees[rows] = block @ rule.weights, rule.degrees
            continue
        left, its = _residuals(block, rule), _residuals(with_leader[None], rule)[0]
        size = float(rule.blame @ np.square(its))
        if size > 0:
            together = left @ (rule.blame * its)
            slope[rows] = np.clip(together / (size * (1 + _SLOPE_PRIOR / (rule.degrees + 1))), 0, 1)
        b = slope[rows]
        mean[rows] = block @ rule.weights + b * (expected - with_leader @ rule.weights)
        left = left - b[:, None] * its
        square[rows] = np.square(left) @ rule.blame
        doubt[rows], degrees[rows] = rule.doubt, rule.degrees
    mean[leader], square[leader], doubt[leader] = expected, 0.0, 0.0
    return found


def _residuals(block: FloatArray, rule: Rule) -> FloatArray:
    return np.asarray((block - (block @ rule.solve.T) @ rule.design.T) / rule.keep)


@dataclass(eq=False)
class Beliefs:
    """What is believed of every candidate's expected gain.

    Args:
        leader: that all were compared with.
        estimate: (n,) by its scores alone; NaN without scores.
        mean: (n,) expected gains, and the bonus of each.
        deviation: (n,) standard deviation of the difference from the leader.
    """

    leader: int
    estimate: FloatArray
    mean: FloatArray
    deviation: FloatArray
    trust: float

    @classmethod
    def none(cls, candidates: int) -> Beliefs:
        """Make the start: nobody leads."""
        nothing = np.zeros(candidates)
        return cls(-1, nothing, nothing, nothing, 1.0)

    @property
    def ahead(self) -> FloatArray:
        """(n,) how far each is expected to be above the leader."""
        return np.asarray(self.mean - self.mean[self.leader])

    @property
    def gains(self) -> FloatArray:
        """(n,) E max(0, candidate − leader): what would be gained if it was known which of the two is better."""
        from scipy.special import erfcx  # changes warning filters when it is imported

        sure = self.deviation <= 0
        z = self.ahead / np.where(sure, 1.0, self.deviation)
        density = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
        # φ(z) + z Φ(z) would lose all digits far below the leader; above it, it is z more than at −z.
        below = density * (1 - np.abs(z) * math.sqrt(math.pi / 2) * erfcx(np.abs(z) / math.sqrt(2)))
        return np.where(sure, np.maximum(self.ahead, 0), self.deviation * (below + np.maximum(z, 0)))

    def outlook(self, bound: float) -> tuple[float, float, float]:
        """Return what taking the leader is expected to lose, and how probable it is to lose more than 0 and `bound`.

        Rivals are taken to be independent, which says too much rather than too little where they rise and fall
        together: with F(x) = Π P(rival ≤ leader + x) the loss is the integral of 1 − F over all x above 0. Rivals that
        matter little are added by their own expected gains, which is an upper bound.
        """
        from scipy.special import ndtr

        gains = self.gains
        gains[self.leader] = 0.0
        rivals = gains > _NEGLIGIBLE * gains.max(initial=0.0)
        if not rivals.any():
            return 0.0, 0.0, 0.0
        ahead, deviation = self.ahead[rivals], np.maximum(self.deviation[rivals], _TINY)
        most = max(float((ahead + _FARTHEST * deviation).max()), _TINY)
        points = most * np.square(np.linspace(0, 1, _POINTS))  # closer where the leader is nearly the best
        above = 1 - np.prod(ndtr((np.append(points, bound)[:, None] - ahead) / deviation), axis=1)
        loss = float(np.diff(points) @ (above[1:-1] + above[:-2])) / 2 + float(gains[~rivals].sum())
        return loss, float(above[0]), float(above[-1])


def believe(
    parts: Sequence[Summand],
    effects: Sequence[Effects],
    columns: Columns,
    own: IntArray,
    features: FloatArray,
    bonus: FloatArray,
    leader: int,
    trust: float,
) -> Beliefs:
    """Estimate every candidate against the leader, and pull each towards what was known of it beforehand.

    Args:
        parts, effects: of the target's scores, and the fitted effects of each.
        own: (n,) the place of each candidate's own text.
        features: (n, F) what is known of every candidate besides the scores.
        bonus: (n,) what is added to each expected gain: it is known, and no part of what is shrunk.
        trust: what variances are multiplied by; learnt from how far means have moved.
    """
    n = len(features)
    typical = np.zeros(n)  # of a candidate's score against itself, if it was another's text
    compared = []
    for part, effect in zip(parts, effects, strict=True):
        scores = part.scores
        at_own = scores.places == own[scores.rows]
        centred = np.where(at_own, effect.row[scores.rows], part.values - effect.column[scores.places])
        compared.append(compare(scores, centred, columns, leader))
        typical += effect.row + np.append(effect.column, np.zeros(len(columns) + 1))[np.minimum(own, len(columns))]
    own_scores = _own_scores(parts, own, typical, columns)
    return _posterior(compared, features, leader, trust, own_scores, bonus)


def _own_scores(parts: Sequence[Summand], own: IntArray, typical: FloatArray, columns: Columns) -> FloatArray:
    """Return (n,) what each candidate's score against itself adds to its mean: its share is known, and most of it.

    A text's score against itself is mostly the highest of all and tells nothing of other columns. One that has not been
    asked for is taken to be like those that have.
    """
    target = parts[0].scores
    at_own = target.places == own[target.rows]
    known = np.zeros(len(own), dtype=bool)
    known[target.rows[at_own]] = True
    itself = typical.copy()
    if at_own.any():
        itself[:] = np.where(own < len(columns), float(target.values[at_own].mean()), typical)
        itself[target.rows[at_own]] = target.values[at_own]
    share = np.append(columns.shares[columns.order], 0.0)[np.minimum(own, len(columns))]
    return np.asarray(share * (itself - typical))


def _posterior(
    compared: Sequence[_Compared],
    features: FloatArray,
    leader: int,
    trust: float,
    own_scores: FloatArray,
    bonus: FloatArray,
) -> Beliefs:
    """Join the parts and pull every candidate towards the prior, as far as its variance says."""
    estimate = np.sum([part.mean for part in compared], axis=0) + own_scores
    seen = np.isfinite(estimate)
    error, relative, leading = np.zeros(len(estimate)), np.zeros(len(estimate)), 0.0
    for part in compared:
        own, first = part.variances(estimate + bonus)
        error += trust * (own + np.square(part.slope) * first)
        relative += trust * (own + np.square(1 - part.slope) * first)
        leading += trust * first
    error[leader] = leading
    prior, variance = _prior(estimate[seen], error[seen], features, seen)
    kept = np.where(seen, variance / (variance + error), 0.0)
    mean = prior + kept * np.where(seen, estimate - prior, 0.0)
    narrowed = relative * 2 * variance / (relative + 2 * variance)  # of a difference of two, each with the prior
    deviation = np.sqrt(np.where(seen, narrowed, variance))
    deviation[leader] = 0.0
    return Beliefs(leader, estimate, mean + bonus, deviation, trust)


def _prior(
    estimate: FloatArray, error: FloatArray, features: FloatArray, seen: npt.NDArray[np.bool_]
) -> tuple[FloatArray, float]:
    """Return (n,) prior means, a line through the features, and the variance around them.

    Maximum likelihood, by a few steps of its own equations: who has gone deeper was chosen by the scores themselves,
    and of the simple estimators only the likelihood's does not mind. Two standard errors are added to the variance.
    """
    least = max(_LEAST_PRIOR * float(estimate.var()), _TINY)
    variance = max(float(estimate.var() - error.mean()), least)
    design = np.column_stack([np.ones(len(features)), features])
    for _ in range(_PRIOR_STEPS):
        trust = 1 / (error + variance)
        ridge = np.diag(np.append(_TINY, np.full(features.shape[1], _RIDGE))) * trust.sum()
        weighted = design[seen] * trust[:, None]
        line = np.linalg.solve(weighted.T @ design[seen] + ridge, weighted.T @ estimate)
        left = estimate - design[seen] @ line
        squared = np.square(trust)
        signal = max(float(np.average(np.square(left) - error, weights=squared)), 0.0)
        variance = max(signal + _PRIOR_ERRORS * math.sqrt(2 / float(squared.sum())), least)
    return design @ line, variance
