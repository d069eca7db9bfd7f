"""One source in rounds: who has been scored against how many pseudo-references, and who comes next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...candidates import FloatArray, IntArray, standardised
from ...matrix import ObservedScores
from ...scoring import Ask
from ..base import Problem, Steps, gains
from .guide import Answers, Guide
from .model import Beliefs, Summand, believe
from .reference_weights import Columns
from .scores import Effects, RaggedScores, unit_of

# Every candidate of the first round meets two pseudo-references: one cannot tell noise from quality.
_FIRST = 2
# Where no stop rests on the loss, they are the most drawn.
_HEAVIEST = 4
# Some, drawn at random, meet nine at once: an eighth of all, at least six and at most twelve. The others that go deeper
# do so because they look good or are like the leader: they say too little of how much scores vary, and of how hard
# columns are.
_SAMPLED_DEPTH, _SAMPLED_SHARE, _SAMPLED = 9, 1 / 8, (6, 12)
# With a time limit the first scores are few: nothing is known of how long one takes.
_FIRST_TIMED = 16
# The next depth is a third more.
_GROWTH = 1.35
# Scores of a round, per candidate and as a share of all so far: larger rounds waste scores, smaller ones time.
_PER_CANDIDATE, _OF_ALL = 0.15, 0.1
# Who could gain less than this share of what the most promising one could gets no more scores.
_LEAST_OF_BEST = 0.02
# Who could gain a twentieth of the bound must have been judged by six columns' worth of the unseen ones before a stop.
_RIVAL, _COLUMNS = 0.05, 6.0
# A stop needs a probability of at most 5% that the loss is above the bound, and not only its mean below.
_RISK = 0.05
# Variances are taken to be smaller than they look if estimates move less than they should, at most to half. That rests
# on 8 moves as expected and at most 16 of a round, each of which counts 0.6 as much a round later.
_LEAST_TRUST, _EXPECTED_MOVES, _FADE, _MOST_MOVES, _FARTHEST = 0.5, 8.0, 0.6, 16, 9.0
# A guide is tried on 48 candidates before anything is spent on it.
_TRIED = 48
# Rounds seldom need more scores per candidate: a guide cannot save more.
_USUAL = 12
# It is not even tried if the best guide of its price would not pay: one that explains 90%.
_BEST_AGREEMENT = 0.9
# It must explain 4% of what the target's scores vary, and scores every candidate against at least four columns.
_LEAST_AGREEMENT, _LEAST_GUIDED = 0.04, 4
# A pseudo-reference could decide alone if the leader's score against it is 6 times as far from its median score as is
# usual, and a tenth of what moves its mean; weighted, that must be half of the bound. At most 4 are looked at.
_UNLIKE, _DECISIVE, _MOST_ALONE = 6.0, 0.1, 4
_TINY = 1e-18


class Race:
    """The target's scores so far, what they say, and what is asked next.

    Args:
        problem: the source.
        guides: that may be used.
        states_loss: whether it can stop at what is stated.

    Attributes:
        unit: of all scores inside, a power of 2, so that scores of any size can be squared. Losses and bounds are in
            the target's own.
    """

    def __init__(self, problem: Problem, guides: Sequence[Guide], states_loss: bool) -> None:
        self.problem, self.guides, self.states_loss = problem, guides, states_loss
        self.n, self.m = problem.shape
        self.by_text = _ranks(problem.candidates.texts, problem.came)
        place = {text: k for k, text in enumerate(problem.candidates.texts)}
        candidate = np.array([place.get(text, -1) for text in problem.references.texts], dtype=np.int64)
        ties = _ranks(problem.references.texts, problem.came)
        random = np.random.default_rng(problem.seed_for(0))
        self.columns = Columns.draw(
            problem.references.weights, ties, candidate, random, 0 if states_loss else _HEAVIEST, problem.came
        )
        self.own = self.columns.place_of_own(self.n)
        shuffling = np.random.default_rng(problem.seed_for(1))
        self.shuffled = np.argsort(shuffling.random(self.n)[self.by_text])
        self.levels = _levels(self.m)
        self.unit = 1.0
        self.scores = RaggedScores.none(self.n)
        self.bonus = np.zeros(self.n)
        self.guide: Guide | None = None
        self.sampled: IntArray = np.empty(0, dtype=np.int64)
        self.known = np.zeros(self.n)
        self.probed = -1
        self.asked: list[Answers] = []
        self.regret, self.confidence, self.risk = math.inf, 0.0, 1.0
        self.beliefs = Beliefs.none(self.n)
        self._effects: list[Effects] = []
        self._before: tuple[Beliefs, IntArray] | None = None
        self._moved = (0.0, 0.0)
        self._profiled = 0
        self._step = _FIRST

    # What there is

    @property
    def spent(self) -> int:
        return sum(len(values) for _, _, values in self.asked)

    @property
    def sizes(self) -> list[int]:
        """How many candidates took part in each round."""
        return [len(np.unique(rows)) for rows, _, _ in self.asked]

    @property
    def scale(self) -> float:
        """The scale of a utility that does not know its own: 1 or, if scores are larger, the largest."""
        return max(1.0, self.unit * float(np.abs(self.scores.values).max(initial=0.0)))

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to score."""
        return int(self.scores.depth.min()) == self.m

    @property
    def mean(self) -> FloatArray:
        """(N,) expected gains."""
        shifts = [self.columns.rule(len(effect.column)).weights @ effect.column for effect in self._effects]
        return np.asarray(self.unit * (self.beliefs.mean - self.bonus + sum(shifts)))

    @property
    def deviation(self) -> FloatArray:
        """(N,) their standard deviations, leaving out what moves all candidates alike."""
        return np.asarray(self.unit * self.beliefs.deviation)

    def ranking(self) -> IntArray:
        """(N,) candidates from best to worst; the leader is first, judged by many columns and not by a lucky few."""
        order = np.lexsort((self.by_text, -self.beliefs.mean))
        leader = self.beliefs.leader
        return np.concatenate([[leader], order[order != leader]])

    def observed(self, asked: Sequence[Answers]) -> ObservedScores:
        """All scores of a utility, as it gave them."""
        rows, columns, values = (np.concatenate(parts) for parts in zip(*asked, strict=True))
        return ObservedScores.unsorted(rows, columns, values, self.problem.shape)

    def affordable(self, scores: int) -> int:
        """That number of target scores, or what there is time for."""
        return self.problem.meter.affords(self.problem.target, scores)

    # The first round, and the guides

    def begin(self, allowance: int, more: int) -> Steps[None]:
        """Score the candidates drawn most, all if possible, against the same pseudo-references, at least two.

        Args:
            allowance: scores for that.
            more: scores that some of them may have beyond.
        """
        first = min(_FIRST, self.m, allowance)
        pool = self._standing()[: max(1, allowance // first)]
        first = max(first, min(allowance // len(pool), self.m))
        if self.problem.meter.limit < math.inf:
            yield from self._ask(pool[:_FIRST_TIMED], np.full(_FIRST_TIMED, first))
            pool = pool[: max(_FIRST_TIMED, self.affordable(first * len(pool)) // (2 * first))]
        yield from self._ask(pool, np.full(len(pool), first))
        self._step = first
        deep = self.levels[min(int(np.searchsorted(self.levels, _SAMPLED_DEPTH)), len(self.levels) - 1)]
        number = int(np.clip(_SAMPLED_SHARE * len(pool), *_SAMPLED))
        scores = number * int(deep - first)
        if scores <= more and self.affordable(2 * scores) == 2 * scores:
            self.sampled = self.shuffled[np.isin(self.shuffled, pool)][:number]
            yield from self._ask(self.sampled, np.full(len(self.sampled), deep))

    def _standing(self) -> IntArray:
        """Candidates in the order of the first round: those drawn most; with guides half of them are theirs."""
        logprobs = self.problem.candidates.logprobs
        probable = np.zeros(self.n) if logprobs is None else -logprobs
        drawn = np.lexsort((self.by_text, probable, -self.problem.candidates.counts))
        favours = np.zeros(self.n)
        for guide in self.guides:
            if len(guide.scores.values):
                favours += standardised(guide.fit(self.own).row[:, None]).sum(axis=1)
        if not favours.any():
            return drawn
        mixed = np.stack([np.lexsort((self.by_text, -favours)), drawn], axis=1).ravel()
        return mixed[np.sort(np.unique(mixed, return_index=True)[1])]

    def consult(self) -> Steps[None]:
        """Spend half of the guides' budgets on all candidates, for a budget that is spent anyway."""
        every, order = np.arange(self.n), self.columns.order
        for guide in self.guides:
            width = min(max(guide.most // self.n // 2, 1), self.m)
            if self.problem.meter.limit < math.inf:
                yield from guide.extend(self.problem, order, every, np.ones(self.n, dtype=np.int64))
                width = max(1, self.problem.meter.affords(guide.scorer, width * self.n, guide.time) // self.n)
            yield from guide.extend(self.problem, order, every, np.full(self.n, width))

    def choose_guide(self) -> None:
        """Take the guide that agrees most as a control variate, if it knows all that the target has scored."""
        usable = []
        for guide in self.guides:
            guide.relate(self.scores, self.own)
            if guide.agreement >= _LEAST_AGREEMENT and bool((guide.scores.depth >= self.scores.depth).all()):
                usable.append(guide)
        self.guide = max(usable, key=lambda guide: guide.agreement, default=None)

    def try_guides(self, bound: float) -> Steps[None]:
        """Take the guide that saves most, if one saves more than it costs: a few pairs of the target's tell."""
        others = self.shuffled[~np.isin(self.shuffled, self.sampled)]
        tried = np.concatenate([self.sampled, others])[:_TRIED]
        texts = len({*self.problem.candidates.texts, *self.problem.references.texts})
        saved, paying = self._remaining(bound), []
        for guide in self.guides:
            guide.agreement = _BEST_AGREEMENT
            if not guide.pays(saved, self._guided(guide, self.scores.depth), texts):
                continue
            if (yield from guide.extend(self.problem, self.columns.order, tried, self.scores.depth[tried])):
                guide.relate(self.scores, self.own)
                if guide.pays(saved, self._guided(guide, self.scores.depth), texts):
                    paying.append(guide)
        for guide in sorted(paying, key=lambda guide: guide.factor):
            if (yield from self._follow(guide, np.arange(self.n))):
                self.guide = guide
                return

    def _remaining(self, bound: float) -> float:
        """Expect how many more scores are needed: for a deviation of half of how far each candidate is behind.

        Candidates as good as the leader would need all columns, but then the choice between them matters little.
        """
        depth = self.scores.depth
        needed = np.maximum(-self.beliefs.ahead, 0) / 2 + max(bound / self.unit, _TINY)
        reached = np.minimum(np.square(self.beliefs.deviation / needed) * np.maximum(depth, 1), self.m)
        return min(float(np.maximum(reached - depth, 0).sum()), float(_USUAL * self.n))

    def _guided(self, guide: Guide, depth: IntArray) -> IntArray:
        """How many columns of the guide belong to a depth of the target."""
        # All candidates alike where a loss is stated: the best would be compared on columns that only they have. Two
        # rows are kept for leaders that are scored against everything.
        most = self.m
        if self.states_loss and guide.most < self.n * self.m:
            most = max((guide.most - 2 * self.m) // self.n, 1)
        columns = np.ceil(np.minimum(guide.ratio, self.m) * depth).astype(np.int64)
        return np.asarray(np.clip(columns, min(_LEAST_GUIDED, most), most))

    def _follow(self, guide: Guide, rows: IntArray) -> Steps[bool]:
        """Bring the guide as far as belongs to the target's depths, or just as far; False if it has no budget left."""
        depth = self.scores.depth[rows]
        for wanted in (self._guided(guide, depth), depth):
            if (yield from guide.extend(self.problem, self.columns.order, rows, wanted)):
                return True
        return False

    # Round after round

    def judge(self) -> None:
        """Fit everything anew, and let the best lead if it has been judged by as many columns as the leader."""
        scores, guide = self.scores, self.guide
        parts = [Summand(scores, scores.values)]
        if guide is not None:
            guide.relate(scores, self.own)
            explained = guide.slope * guide.scores.values
            parts = [
                Summand(scores, scores.values - guide.slope * guide.scores.at(scores)),
                Summand(guide.scores, explained),
            ]
        self._effects = [Effects.fit(scores, parts[0].values, self.own, next(iter(self._effects), None))]
        if guide is not None:
            self._effects.append(guide.fit(self.own).times(guide.slope))
        self._profile()
        # Where a loss is stated, a guide is what explains scores and no more: likely means of a guide that is wrong
        # about the best hide it.
        known = [self.problem.candidates.features]
        if not self.states_loss:
            known += [each.fit(self.own).row[:, None] for each in self.guides if each.scores.depth.all()]
        features = np.column_stack([standardised(each) for each in known])
        added = self.bonus + self.known

        def believed(leader: int) -> Beliefs:
            return believe(parts, self._effects, self.columns, self.own, features, added, leader, self._trust)

        row = np.sum([effect.row for effect in self._effects], axis=0) + added
        beliefs = believed(self._best(row) if self.beliefs.leader < 0 else self.beliefs.leader)
        for _ in range(3):
            best = self._best(beliefs.mean)
            if best == beliefs.leader or scores.depth[best] < scores.depth[beliefs.leader]:
                break
            other = believed(best)
            if other.mean[best] < other.mean[beliefs.leader]:
                break
            beliefs = other
        self._learn(beliefs)
        self.beliefs = beliefs

    def _best(self, values: FloatArray) -> int:
        """The best of those that have been scored; of equal ones the first by text."""
        return int(np.lexsort((self.by_text, -np.where(self.scores.depth > 0, values, -np.inf)))[0])

    def _profile(self) -> None:
        """Take the scores against the first columns as profiles, with typical ones for texts against themselves."""
        depth = min(_FIRST, int(self.scores.depth.max()))
        rows = np.flatnonzero(self.scores.depth >= depth)
        if len(rows) == self._profiled:
            return
        self._profiled = len(rows)
        block = self.scores.block(rows, depth)
        itself = self.own[rows, None] == np.arange(depth)
        level = block.mean(axis=0)
        others = np.where(itself, 0.0, block - level).sum(axis=1) / np.maximum(depth - itself.sum(axis=1), 1)
        profile = np.full((self.n, depth), np.nan)
        profile[rows] = np.where(itself, others[:, None] + level, block)
        self.columns.learn(profile)

    @property
    def _trust(self) -> float:
        moved, expected = self._moved
        return float(np.clip((_EXPECTED_MOVES + moved) / (_EXPECTED_MOVES + expected), _LEAST_TRUST, 1.0))

    def _learn(self, now: Beliefs) -> None:
        """Compare how far estimates have moved since the last round with how far they should have."""
        before, self._before = self._before, (now, self.scores.depth)
        if before is None or before[0].leader != now.leader:
            return
        old, depth = before
        deeper = np.flatnonzero((self.scores.depth > depth) & (depth > 0))
        deeper = deeper[deeper != now.leader]
        if len(deeper) < 4:
            return
        moved = ((now.estimate - now.estimate[now.leader]) - (old.estimate - old.estimate[old.leader]))[deeper]
        said = np.square(old.deviation[deeper]) / old.trust
        fallen = np.maximum(said - np.square(now.deviation[deeper]) / now.trust, 0.2 * said)
        squares = np.minimum(np.square(moved - moved.mean()) / np.maximum(fallen, _TINY), _FARTHEST)
        number = min(len(deeper), _MOST_MOVES)
        self._moved = _FADE * self._moved[0] + number * float(squares.mean()), _FADE * self._moved[1] + number

    def state_loss(self, bound: float, always: bool) -> None:
        """State what the leader is expected to lose; where that is above the bound in any case only if `always`."""
        least = self.unit * float(self.beliefs.gains.max())
        if least > bound and not always:
            self.regret, self.risk = least, 1.0
            return
        lost, worse, self.risk = self.beliefs.outlook(bound / self.unit)
        self.regret, self.confidence = self.unit * lost, 1.0 - worse

    def settled(self, bound: float) -> bool:
        """Whether the loss is small enough, as far as is known."""
        return self.regret <= bound and self.risk <= _RISK

    def unjudged(self, bound: float) -> IntArray:
        """Rivals that could still gain much and have been judged by too few columns for a stop."""
        promising = self.unit * self.beliefs.gains > _RIVAL * bound
        return np.flatnonzero(promising & (self.scores.depth < self._least_depth()))

    def _least_depth(self) -> int:
        """How many columns must have judged a rival before a stop: fewer where little is unseen."""
        for depth in self.levels[self.levels >= min(_FIRST, self.m)].tolist():
            unseen = max(1.0 - float(self.columns.shares[self.columns.order[:depth]].sum()), 0.0)
            if self.columns.rule(depth).effective >= _COLUMNS * math.sqrt(unseen):
                return int(depth)
        return self.m

    def deepen(self, bound: float | None, allowance: int) -> Steps[None]:
        """Score those who promise most per score; with a bound only those that matter for it."""
        depth, leader, promise = self.scores.depth, self.beliefs.leader, self.beliefs.gains
        wanted = self.levels[np.minimum(np.searchsorted(self.levels, depth, side="right"), len(self.levels) - 1)]
        unjudged = np.empty(0, dtype=np.int64)
        if bound is not None:
            unjudged = self.unjudged(bound)
            wanted[unjudged] = np.maximum(wanted[unjudged], self._least_depth())
        cost = np.maximum(wanted - depth, 1)
        order = np.lexsort((self.by_text, -promise / cost))
        order = order[(depth[order] < self.m) & (order != leader)]
        if bound is not None and self.settled(bound):
            order = order[np.isin(order, unjudged)]
        elif len(order):
            useful = order[promise[order] > _LEAST_OF_BEST * float(promise.max())]
            order = useful if len(useful) else order[:1]
        most = min(allowance, max(int(_PER_CANDIDATE * self.n), int(_OF_ALL * self.spent), 1))
        total = np.cumsum(cost[order])
        order = order[: max(1, int(np.searchsorted(total, most, side="right")))]
        reached = depth.copy()
        reached[order] = wanted[order]
        if bound is None and (not len(total) or total[-1] < most):  # a fixed budget has to go somewhere
            reached[order] = np.maximum(reached[order], reach(depth[order], most, self.m))
        first = np.array(list(dict.fromkeys([leader, self._best(self.beliefs.mean)])))
        reached[first] = max(int(reached[order].max(initial=0)), min(int(depth[leader]) + (not len(order)), self.m))
        order = np.concatenate([first, order[~np.isin(order, first)]])
        yield from self._ask(order, reached[order], allowance)

    def halve(self, rounds: int, allowance: int) -> Steps[None]:
        """Go on where a budget is spent in any case: fewer of the most promising, twice as deep, in each of the rounds.

        Nobody has asked what the choice may lose, so depth counts more than knowing who is out.
        """
        part = min(max(allowance // rounds, 1), allowance)
        order = np.lexsort((self.by_text, -self.beliefs.mean))
        order = order[self.scores.depth[order] < self.m]
        size = max(part // self._step, 2)
        self._step *= 2
        needed = int(np.searchsorted(np.cumsum(self.m - self.scores.depth[order]), part)) + 1
        order = order[: max(size, needed)]
        depth = max(reach(self.scores.depth[order], part, self.m), int(self.scores.depth[order].min()) + 1)
        yield from self._ask(order, np.full(len(order), depth), allowance)

    def probe(self, bound: float, allowance: int) -> Steps[bool]:
        """Score the leader against all columns before a stop; False if that was done, or there is no budget for it.

        The unseen columns are taken to be like those seen, so one that is unlike all others cannot be known before
        somebody meets it. Where the leader does, every candidate is scored against it, and with its part of every mean
        known it is left out.
        """
        leader, most = self.beliefs.leader, (1 + _MOST_ALONE) * self.n + self.m
        if leader == self.probed or self.affordable(min(most, allowance)) < most:
            return False
        self.probed = leader
        yield from self._ask(np.array([leader]), np.array([self.m]))
        found = self._deciding(self.scores.block(np.array([leader]), self.m)[0], bound)
        target, columns = self.problem.target, self.columns.order[found]
        if len(found):
            scores = yield Ask.block(target, None, columns)
            self.known = self.known + gains(target.utility, scores) @ self.columns.shares[columns] / self.unit
            rows, which = np.nonzero(self.scores.depth[:, None] <= found)
            if len(rows):
                self.asked.append((rows, columns[which], scores[rows, which]))
            self.scores = self.scores.without(found)
            for guide in self.guides:
                guide.leave_out(found)
            self.columns.leave_out(found)
            self.own, self.m = self.columns.place_of_own(self.n), len(self.columns)
            self.levels = _levels(self.m)
        return True

    def _deciding(self, gained: FloatArray, bound: float) -> IntArray:
        """Return the places of columns that could decide alone, from the leader's (m,) scores."""
        away = np.abs(gained - np.median(gained))
        away[self.own[self.beliefs.leader] :][:1] = 0.0
        moved = self.columns.shares[self.columns.order] * away
        alone = (away > _UNLIKE * np.median(away)) & (np.square(moved) > _DECISIVE * np.square(moved).sum())
        found = np.flatnonzero(alone & (self.unit * moved > bound / 2))
        return np.sort(found[np.argsort(-moved[found])][:_MOST_ALONE])

    def _ask(self, rows: IntArray, depth: IntArray, allowance: int | None = None) -> Steps[None]:
        """Bring candidates to a depth each, the first of them first where the allowance does not reach for all."""
        rows, places = self.scores.missing(rows, depth[: len(rows)])
        rows, places = rows[:allowance], places[:allowance]
        if not len(rows):
            return
        target, columns = self.problem.target, self.columns.order[places]
        scores = yield Ask(target, rows, columns)
        values = gains(target.utility, scores)
        if not self.asked:
            self.unit = unit_of(values)
            if self.problem.bonus is not None:
                self.bonus = self.problem.bonus / self.unit
        self.scores = self.scores.with_new(rows, places, values / self.unit)
        self.asked.append((rows, columns, scores))
        if self.guide is not None and not (yield from self._follow(self.guide, np.unique(rows))):
            self.guide = None


def _levels(most: int) -> IntArray:
    """The depths that candidates go through."""
    levels = [1, min(_FIRST, most)]
    while levels[-1] < most:
        levels.append(min(max(levels[-1] + 1, round(levels[-1] * _GROWTH)), most))
    return np.unique(levels)


def reach(depths: IntArray, allowance: int, most: int) -> int:
    """The common depth (at most `most`) that candidates of these depths can be brought to by `allowance` scores."""
    wanted = np.arange(1, most + 1)
    have = np.sort(depths)
    below = np.searchsorted(have, wanted, side="left")
    cost = below * wanted - np.concatenate([[0], np.cumsum(have)])[below]
    return int(np.searchsorted(cost, allowance, side="right"))


def _ranks(texts: Sequence[str], came: IntArray | None = None) -> IntArray:
    """(n,) the rank of each text, later ones last, so that the order in which texts were given has no influence."""
    ranks = np.empty(len(texts), dtype=np.int64)
    order = np.argsort(np.array(texts, dtype=object))
    if came is not None:
        order = order[np.argsort(came[order], kind="stable")]
    ranks[order] = np.arange(len(texts))
    return ranks
