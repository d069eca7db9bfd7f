"""One source in rounds: who has been scored against how many pseudo-references, and what that says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...candidates import FloatArray, IntArray
from ...config import Configured, integer, number, setting
from ...matrix import ObservedScores, Pairs
from ...recipe import Budget
from ...scoring import Ask
from ..base import Problem, Steps
from .guide import Guide
from .model import Additive, Estimate, Shrinkage
from .reference_weights import Calibration, Columns

# The guides together may take this part of a time limit.
_GUIDES_TIME = 0.5


@dataclass(frozen=True)
class Pace(Configured):
    """How a budget is spent."""

    first_share: float = setting(
        0.5,
        number(0, 1, above=True),
        help="the part of it, or of what a later step adds, that the first round may spend.",
    )
    first_depth: int = setting(
        2, integer(1), help="pseudo-references that a candidate of the first round is scored against, at least."
    )
    rounds: int = setting(4, integer(1), help="how many follow, each with fewer candidates and deeper.")
    doubt: float = setting(
        1.0, number(0), help="a candidate gets the benefit of so many deviations when the next round is chosen."
    )
    first_step: float = setting(
        4.0,
        number(0, above=True),
        help="where the budget need not be spent, it is opened step by step, from so many scores per candidate.",
    )
    least_agreement: float = setting(
        0.2, number(-1, 1), help="a guide whose scores correlate less with the target's gets no more of its budget."
    )


@dataclass(eq=False)
class Race:
    """Target scores so far, and what they say.

    Args:
        problem: the source.
        pace, shrinkage, calibration: the decoder's settings.
    """

    problem: Problem
    guide_budgets: Sequence[Budget]
    pace: Pace
    shrinkage: Shrinkage
    calibration: Calibration
    estimate: Estimate | None = None
    sizes: list[int] = field(default_factory=list)
    trials: list[Pairs] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem = self.problem
        self.n, self.m = problem.shape
        self.by_text = _ranks(problem.candidates.texts)
        place = {text: k for k, text in enumerate(problem.candidates.texts)}
        candidate = np.array([place.get(text, -1) for text in problem.references.texts], dtype=np.int64)
        ties = _ranks(problem.references.texts)
        random = np.random.default_rng(problem.seed_for(0))
        self.columns = Columns.draw(problem.references.weights, ties, candidate, random, self.calibration)
        self.random = np.random.default_rng(problem.seed_for(1))
        logprobs = problem.candidates.logprobs
        standing = np.zeros(self.n) if logprobs is None else -logprobs
        self.standing = np.lexsort((self.by_text, standing, -problem.candidates.counts))
        self.guides = [
            Guide(scorer, np.empty((self.n, 0)), budget.pairs(problem.shape, problem.drawn) // self.n)
            for scorer, budget in zip(problem.guides, self.guide_budgets, strict=True)
        ]
        self.depth = np.zeros(self.n, dtype=np.int64)
        self.pool = self.n
        self.block: IntArray = np.empty(0, dtype=np.int64)
        self.values = np.empty(0)
        self.rows: IntArray = np.empty(0, dtype=np.int64)
        self.places: IntArray = np.empty(0, dtype=np.int64)
        self.model = Additive(self.columns, np.ones((self.n, 1)), [], self.random, self.shrinkage)
        self._take_in()

    @property
    def spent(self) -> int:
        return len(self.values)

    @property
    def leader(self) -> int:
        return int(self.ranking()[0])

    @property
    def mean(self) -> FloatArray:
        """(N,) expected gains; before any score what the guides say."""
        return self.favours if self.estimate is None else self.estimate.mean

    @property
    def deviation(self) -> FloatArray:
        """(N,) their standard deviations."""
        return np.zeros(self.n) if self.estimate is None else self.estimate.deviation

    @property
    def regret(self) -> float:
        """What the leader is expected to lose against the best."""
        return math.inf if self.estimate is None else self.estimate.regret(self.leader)

    @property
    def confidence(self) -> float:
        """Probability that the leader is the best."""
        return 0.0 if self.estimate is None else self.estimate.confidence(self.leader)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to score."""
        return int(self.depth.min()) == self.m

    def ranking(self) -> IntArray:
        """(N,) candidates from best to worst; the best is one of those that were judged by many, not by lucky few."""
        order = np.lexsort((self.by_text, -self.mean))
        leader = int(np.argmax(2 * self.depth[order] >= self.depth.max()))
        return np.concatenate([order[leader : leader + 1], np.delete(order, leader)])

    def observed(self, sign: float) -> ObservedScores:
        """The target's scores."""
        columns = self.columns.order[self.places]
        values = self.values if self.problem.bonus is None else self.values - self.problem.bonus[self.rows]
        return ObservedScores.unsorted(self.rows, columns, sign * values, (self.n, self.m))

    def guide_scores(self) -> tuple[ObservedScores, ...]:
        """The guides' scores."""
        return tuple(guide.scores(self.columns.order, self.m) for guide in self.guides)

    def spend(self, budget: int, share: float) -> Steps[None]:
        """Go on until `budget` target scores and `share` of the guides' budgets have been spent in all."""
        yield from self._consult(share)
        left = budget - self.spent
        first = self.affordable(max(int(self.pace.first_share * left), min(2 * self.pace.first_depth, left)))
        pool = self._pool(first)
        yield from self._deepen(pool, first)
        depth = max(int(self.depth[pool].min()), 1)
        for to_go in range(self.pace.rounds, 0, -1):
            allowance = self.affordable(budget - self.spent) // to_go
            if allowance < 1 or self.finished:
                continue
            hopeful = self._hopeful(min(max(allowance // depth, 2), allowance), allowance)
            yield from self._deepen(hopeful, allowance)
            depth *= 2

    def affordable(self, scores: int) -> int:
        """So many more target scores, or those that there is time for."""
        return self.problem.meter.affords(self.problem.target, scores)

    def _pool(self, allowance: int) -> IntArray:
        """Who takes part: more and more candidates while there are new ones, then half as many in every step."""
        if self.block.size < self.n:
            self._widen(min(self.n, max(2, self.block.size + allowance // self.pace.first_depth)))
            return self.block
        self.pool = max(self.pool // 2, 2)
        return self._hopeful(self.pool, allowance)

    def _hopeful(self, size: int, allowance: int) -> IntArray:
        """So many that can still be the best and have scores to come; more where these could not take the allowance."""
        order = np.lexsort((self.by_text, -(self.mean + self.pace.doubt * self.deviation)))
        order = order[self.depth[order] < self.m]
        needed = int(np.searchsorted(np.cumsum(self.m - self.depth[order]), allowance)) + 1
        return order[: max(size, needed)]

    def _consult(self, share: float) -> Steps[None]:
        """Score all candidates by the guides, as far as `share` of their budgets reaches."""
        new = False
        for place, guide in enumerate(self.guides, 1):
            width = min(guide.most, max(1, math.ceil(share * guide.most)))
            agreement = guide.agreement(self.values, self.rows, self.places)
            if width > guide.width and agreement >= self.pace.least_agreement:
                part = _GUIDES_TIME * place / len(self.guides)
                yield from guide.extend(self.problem, self.columns.order[:width], part)
                new = True
        if new:
            self._take_in()

    def _take_in(self) -> None:
        """What is known of every candidate besides the target's scores."""
        known, residuals = [self.problem.candidates.features], []
        self.favours = np.zeros(self.n)
        for guide in self.guides:
            if guide.width:
                self.columns.learn(guide.block, np.arange(self.n), self.n)
                mean = guide.block @ self.columns.weights(guide.width)
                left = guide.block - mean[:, None]
                known.append(mean[:, None])
                residuals.append(left - left.mean(axis=0))
                self.favours += _standard(mean[:, None]).sum(axis=1)
        features = np.column_stack([np.ones(self.n), *map(_standard, known)])
        self.model.features, self.model.guides = features, residuals
        if self.spent:
            self._profile()

    def _widen(self, size: int) -> None:
        """Candidates of the first round: those drawn most; with guides half are theirs and a quarter is random."""
        if size <= self.block.size:
            return
        chosen = self.standing
        if self.model.guides and size < self.n:
            favourites = np.lexsort((self.by_text, -self.mean))[: math.ceil(size / 2)]
            others = chosen[~np.isin(chosen, favourites)]
            prominent, rest = np.split(others, [math.ceil(size / 4)])
            rest = rest[np.argsort(self.random.random(self.n)[self.by_text[rest]])]
            chosen = np.concatenate([favourites, prominent, rest])
        new = chosen[~np.isin(chosen, self.block)][: size - self.block.size]
        self.block = np.concatenate([self.block, new])

    def _deepen(self, rows: IntArray, allowance: int) -> Steps[None]:
        """Bring all `rows` to the same depth, as deep as the allowance reaches, and take the scores in."""
        depth = reach(self.depth[rows], allowance, self.m)
        counts = np.maximum(depth - self.depth[rows], 0)
        if not counts.any():
            return
        new_rows = np.repeat(rows, counts)
        new_places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + self.depth[new_rows]
        target = self.problem.target
        columns = self.columns.order[new_places]
        scores = yield Ask(target, new_rows, columns)
        self.values = np.concatenate([self.values, self.problem.merit(target.utility, scores, new_rows)])
        self.rows = np.concatenate([self.rows, new_rows])
        self.places = np.concatenate([self.places, new_places])
        self.depth[rows] = np.maximum(self.depth[rows], depth)
        self.sizes.append(len(rows))
        self.trials.append(Pairs(new_rows, columns, (self.n, self.m)))
        self._profile()
        self.estimate = self.model.fit(self.values, self.rows, self.places)

    def _profile(self) -> None:
        """The block that all candidates of the first round share, as profiles of their texts."""
        width = int(self.depth[self.block].min())
        if not width:  # a budget that does not reach one score for each of them
            return
        place = np.full(self.n, -1)
        place[self.block] = np.arange(self.block.size)
        inside = (place[self.rows] >= 0) & (self.places < width)
        block = np.empty((self.block.size, width))
        block[place[self.rows[inside]], self.places[inside]] = self.values[inside]
        self.columns.learn(block, self.block, self.n)


def reach(depths: IntArray, allowance: int, most: int) -> int:
    """To which common depth (at most `most`) candidates of these depths can be brought by `allowance` scores."""
    wanted = np.arange(1, most + 1)
    have = np.sort(depths)
    below = np.searchsorted(have, wanted, side="left")
    cost = below * wanted - np.concatenate([[0], np.cumsum(have)])[below]
    return int(np.searchsorted(cost, allowance, side="right"))


def _ranks(texts: Sequence[str]) -> IntArray:
    """(n,) the rank of each text, so that the order in which texts were given has no influence."""
    ranks = np.empty(len(texts), dtype=np.int64)
    ranks[np.argsort(np.array(texts, dtype=object))] = np.arange(len(texts))
    return ranks


def _standard(features: FloatArray) -> FloatArray:
    """(N, F) on a scale of variance 1; what is the same for all is left out."""
    center, spread = features.mean(0), features.std(0)
    telling = spread > 1e-9 * np.maximum(np.abs(center), 1e-300)
    return np.asarray((features - center)[:, telling] / spread[telling])
