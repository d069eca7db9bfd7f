"""A guide beside the rounds: what it costs, whether it pays, and its scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import numpy as np

from ...candidates import FloatArray, IntArray
from ...scoring import Ask, Scorer
from ..base import Problem, Steps, gains
from .scores import Effects, RaggedScores, unit_of

# What is expected to be saved must be twice what the guide costs: the expectation is rough.
_MARGIN = 2.0
# Fewer degrees of freedom tell nothing of a slope.
_LEAST_DEGREES = 3

# Rows, columns and scores of one question.
Answers: TypeAlias = tuple[IntArray, IntArray, FloatArray]


@dataclass(eq=False)
class Guide:
    """A cheaper utility as a control variate: score = (score − β · guide) + β · guide.

    With correlation ρ the first part varies 1 − ρ² as much and needs few of the target's scores; the second is scored
    against κ times as many columns by the guide alone ("double sampling", Cochran, Sampling Techniques, chapter 12). At
    a price of p target scores, κ = ρ / √(p (1 − ρ²)) is the cheapest for any accuracy, and it costs
    (√(1 − ρ²) + ρ √p)² of what the target alone would: below 1 the guide pays.

    Args:
        scorer: of the guide.
        scores: its gains so far.
        most: scores that its budget allows.
        price, text_price: of a score and of each text, in scores of the target.
        slope, agreement: β and ρ².
        unit: of the scores here, see `Race`.
    """

    scorer: Scorer
    scores: RaggedScores
    most: int
    price: float
    text_price: float
    slope: float = 0.0
    agreement: float = 0.0
    unit: float = 1.0
    time: ClassVar[float] = 0.5  # the share of a time limit after which guides are asked no more
    asked: list[Answers] = field(default_factory=list)
    _effects: Effects | None = None

    @classmethod
    def beside(cls, problem: Problem, scorer: Scorer, most: int, assumed: float) -> Guide:
        """Make a guide of a problem.

        Args:
            most: scores that its budget allows.
            assumed: price of a score where a price is unknown.
        """
        target, own = problem.target.utility, scorer.utility
        unit = target.price_per_pair
        if unit is None or own.price_per_pair is None or unit <= 0:
            price, per_text = assumed, 0.0
        else:
            price, per_text = own.price_per_pair / unit, (own.price_per_text or 0.0) / unit
        return cls(scorer, RaggedScores.none(len(problem)), most, price, per_text)

    @property
    def spent(self) -> int:
        return sum(len(values) for _, _, values in self.asked)

    @property
    def ratio(self) -> float:
        """κ: columns for each column of the target."""
        free = self.price * (1 - self.agreement)
        return max(1.0, math.sqrt(self.agreement / free)) if free > 0 else math.inf

    @property
    def factor(self) -> float:
        """What a mean of given accuracy costs with it, where it costs 1 without."""
        return float((math.sqrt(1 - self.agreement) + math.sqrt(self.agreement * min(self.price, 1.0))) ** 2)

    def pays(self, saved: float, depth: IntArray, texts: int) -> bool:
        """Whether a start with (n,) columns of each candidate costs less than is saved of `saved` scores."""
        cost = self.price * float(np.maximum(depth - self.scores.depth, 0).sum()) + self.text_price * texts
        return self.factor < 1 and _MARGIN * cost <= (1 - self.factor) * saved

    def extend(self, problem: Problem, order: IntArray, rows: IntArray, depth: IntArray) -> Steps[bool]:
        """Score candidates up to a depth each; False, and nothing is done, if budget or time do not reach so far."""
        rows, places = self.scores.missing(rows, depth)
        time = problem.meter.affords(self.scorer, len(rows), self.time)
        if self.spent + len(rows) > self.most or time < len(rows):
            return False
        if len(rows):
            scores = yield Ask(self.scorer, rows, order[places])
            values = gains(self.scorer.utility, scores)
            if not self.asked:
                self.unit = unit_of(values)
            self.scores = self.scores.with_new(rows, places, values / self.unit)
            self.asked.append((rows, order[places], scores))
            self._effects = None
        return True

    def leave_out(self, places: IntArray) -> None:
        """Forget columns."""
        self.scores, self._effects = self.scores.without(places), None

    def fit(self, own: IntArray) -> Effects:
        """Return the effects of its scores."""
        if self._effects is None:
            self._effects = Effects.fit(self.scores, self.scores.values, own, None)
        return self._effects

    def relate(self, target: RaggedScores, own: IntArray) -> None:
        """Learn β and ρ² from pairs that both have scored, without row and column effects of either."""
        both = np.flatnonzero(target.places < self.scores.depth[target.rows])
        depth = np.bincount(target.rows[both], minlength=len(target.depth))
        shared = RaggedScores(depth, target.rows[both], target.places[both], target.values[both])
        pair = []
        for values in (shared.values, self.scores.at(shared)):
            effects = Effects.fit(shared, values, own, None)
            left = values - effects.row[shared.rows] - effects.column[shared.places]
            pair.append(left[shared.places != own[shared.rows]])
        first, second = pair
        degrees = len(first) - int((depth > 0).sum()) - int(shared.depth.max()) + 1
        squares, product = float(second @ second), float(first @ second)
        self.slope = self.agreement = 0.0
        if degrees < _LEAST_DEGREES or product <= 0:
            return
        self.slope = product / (squares * (1 + 1 / degrees))
        square = min(product**2 / (squares * float(first @ first)), 1.0)
        # A standard error is taken off.
        self.agreement = max(math.sqrt(square) - (1 - square) / math.sqrt(degrees), 0.0) ** 2
