"""The default: rounds in which the candidates that can still be the best are judged by more pseudo-references."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..budget import Budget
from ..candidates import FloatArray, IntArray
from ..checks import number, optional, several
from ..matrix import ObservedScores, Pairs
from ..stage import nested, setting
from ..utilities import Scorer
from ._additive import Additive, Estimate
from ._clock import Clock
from ._columns import Columns
from ._ranking import gains
from .base import Decoder, exact_decision
from .decision import Decision
from .problem import Problem

# Of the budget, the first round spends half: its candidates get at least 4 scores each, and what it shows of all texts
# makes the pseudo-references of later rounds worth more. Regret × 100 at 2 scores per candidate for shares of 0.35 /
# 0.5 / 0.65: 0.12 / 0.11 / 0.19 on the stored matrices, 0.77 / 0.66 / 0.58 on the embedded ones; for depths of 3 / 4 /
# 6: 0.15 / 0.11 / 0.07 and 0.45 / 0.66 / 1.26.
_FIRST_SHARE, _FIRST_DEPTH = 0.5, 4
# Rounds after it, each doubling the depth: 2 / 4 / 6 gave 0.24 / 0.11 / 0.11 and 0.66 / 0.66 / 0.82.
_ROUNDS = 4
# Deviations that a candidate is given the benefit of for the next round: 0 gave 0.11 and 0.66, this 0.08 and 0.54.
_DOUBT = 0.5
# With a stated regret or confidence the budget is opened step by step, from so many scores per candidate.
_FIRST_STEP = 2
# With a time limit it is opened from so many scores in all, since nothing is known of how long one takes; the guides
# together may take half of the limit.
_FIRST_TIMED_STEP, _GUIDES_TIME = 32, 0.5
# "auto": the largest of 0.0005, 0.001 and 0.005 with which the mean regret × 100 stayed below 0.1 on the stored and on
# the embedded matrices, without a guide and with a good, a weak and a random one.
_AUTO_REGRET = 0.001


@dataclass(frozen=True)
class RoundsMBR(Decoder):
    """Spend the target's calls in rounds on those candidates that can still be the best, with or without guides.

    The first round takes the candidates drawn most (with guides half of them are theirs), all against the same few
    pseudo-references; every further one takes the best so far and doubles their depth. An additive model with shrinkage
    joins the rounds, so a candidate with few scores is pulled towards what is known of it beforehand: how often it was
    drawn, its log-probability, the guides' means. The guides are control variates too. Pseudo-references are weighted
    so that the few used stand for all of them (see `_columns`).

    Correlated sequential halving for MBR: https://arxiv.org/abs/2401.02749

    Args:
        budget: at most so many of the pairs by the target.
        guide_budgets: how many by each guide; one for all guides, or one for each.
        max_regret: stop when the expected loss of the leader against full MBR is below this, in the target's units;
            "auto" is a thousandth of the utility's scale, None spends the budget.
        confidence: stop when the leader is the best with this probability; 1 never stops for it.
        time_limit: stop after so many seconds of scoring this source, within one round: rounds get smaller when they
            would take too long. How far it came then depends on the machine, so the signature has the calls too.
    """

    budget: Budget = nested(Budget.check, lambda: Budget(scores_per_row=64))
    guide_budgets: tuple[Budget, ...] = nested(several(Budget.check), lambda: (Budget(scores_per_row=512),))
    max_regret: float | str | None = setting(None, lambda name, value: _regret(name, value))
    confidence: float = setting(1.0, number(0, 1, above=True, note="1 never stops early"))
    time_limit: float | None = setting(None, optional(number(0, above=True)))

    name: ClassVar[str] = "rounds"

    def most_guides(self) -> int | None:
        return None

    def check_utilities(self, target: bool, guides: int) -> None:
        super().check_utilities(target, guides)
        self.budgets_for(guides)

    def budgets_for(self, guides: int) -> tuple[Budget, ...]:
        """The budget of every guide."""
        if guides and len(self.guide_budgets) not in (1, guides):
            raise ValueError(
                f"guide_budgets has {len(self.guide_budgets)} budgets for {guides} guides: give one or one each"
            )
        return self.guide_budgets if len(self.guide_budgets) == guides else self.guide_budgets[:1] * guides

    def _decide(self, problem: Problem) -> Decision:
        n, m = problem.shape
        budget = self.budget.pairs(problem.shape, problem.drawn)
        if (budget >= n * m and self.time_limit is None) or n == 1:
            return exact_decision(self, problem, problem.target)
        race = _Race(problem, self.budgets_for(len(problem.guides)), Clock(self.time_limit, problem.clock))
        bound = self._bound(problem)
        early = ""
        for step in self._steps(n, budget):
            race.spend(step)
            early = self._enough(race, bound, step)
            if early:
                break
        return self._outcome(problem, race, budget, early)

    def _steps(self, candidates: int, budget: int) -> Iterator[int]:
        """What may be spent in all, step by step where it can end early."""
        step = budget if self.max_regret is None and self.confidence == 1 else _FIRST_STEP * candidates
        step = step if self.time_limit is None else _FIRST_TIMED_STEP
        while step < budget:
            yield step
            step *= 2
        yield budget

    def _bound(self, problem: Problem) -> float:
        """The stated regret in the target's units; -1 where none is stated."""
        if isinstance(self.max_regret, str):
            return _AUTO_REGRET * problem.target.utility.scale
        return -1.0 if self.max_regret is None else self.max_regret

    def _enough(self, race: _Race, bound: float, step: int) -> str:
        """Why it can stop; empty while it cannot."""
        if race.affordable(2) < 2:
            return f"{self.time_limit:g} seconds are over"
        if step < _FIRST_STEP * race.n:  # too early to know what the leader may lose
            return ""
        if race.estimate.regret(race.leader) <= bound:
            return f"expected regret below {bound:g}"
        if self.confidence < 1 and race.estimate.confidence(race.leader) >= self.confidence:
            return f"the leader is {self.confidence:g} sure"
        return ""

    def _outcome(self, problem: Problem, race: _Race, budget: int, early: str) -> Decision:
        sign = 1.0 if problem.target.utility.higher_is_better else -1.0
        scorers = (problem.target, *problem.guides)
        budgets = (self.budget, *self.budgets_for(len(problem.guides)))
        went = " → ".join(map(str, race.sizes))
        ended = f"stopped early, {early}" if early else "all rounds done"
        if self.time_limit is not None:
            problem.context["scores"] = "+".join(map(str, problem.calls().values()))
        return self._decision(
            problem,
            sign * race.estimate.mean,
            f"{race.spent:,} of at most {budget:,} target scores in rounds of {went} candidates, {ended}",
            deciding=problem.target,
            rates=[(s, b.rate(problem.drawn[1])) for s, b in zip(scorers, budgets, strict=True)],
            order=race.ranking(),
            observed=ObservedScores.unsorted(
                race.rows, race.columns.order[race.places], gains(problem.target.utility, race.values), problem.shape
            ),
            guides=tuple(race.guide_scores),
            rounds=tuple(race.sizes),
            trials=tuple(race.trials),
            deviation=race.estimate.deviation,
            expected_regret=race.estimate.regret(race.leader),
        )


class _Race:
    """One source: who has been scored how deep in the order of pseudo-references, and what that says."""

    def __init__(self, problem: Problem, guide_budgets: tuple[Budget, ...], clock: Clock) -> None:
        self.problem, (self.n, self.m), self.clock = problem, problem.shape, clock
        self.by_text = np.empty(self.n, dtype=np.int64)
        self.by_text[np.argsort(np.array(problem.candidates.texts, dtype=object))] = np.arange(self.n)
        random = np.random.default_rng(problem.seed_for(0))
        self.columns = self._columns(random)
        standing = (self.by_text, -_standing(problem), -problem.candidates.counts)
        self.standing = np.lexsort(standing)
        self.favours = np.zeros(self.n)
        self.guide_scores: list[ObservedScores] = []
        known = [problem.candidates.features]
        guides = []
        for block, mean in self._guided(guide_budgets):
            known.append(mean[:, None])
            left = block - mean[:, None]
            guides.append(left - left.mean(0))
            self.favours += _standard(mean[:, None])[:, 0]
        self.has_guides = bool(guides)
        features = np.column_stack([np.ones(self.n), *map(_standard, known)])
        self.model = Additive(self.columns, features, guides, np.random.default_rng(problem.seed_for(1)))
        self.depth = np.zeros(self.n, dtype=np.int64)
        self.block: IntArray = np.empty(0, dtype=np.int64)
        self.values = np.empty(0)
        self.rows: IntArray = np.empty(0, dtype=np.int64)
        self.places: IntArray = np.empty(0, dtype=np.int64)
        self.sizes: list[int] = []
        self.trials: list[Pairs] = []
        self.spent = 0
        self.estimate = Estimate(self.favours, np.zeros(self.n), np.zeros((1, 0)), np.empty(0, dtype=np.int64))

    @property
    def leader(self) -> int:
        return int(self.ranking()[0])

    def ranking(self) -> IntArray:
        """(N,) candidates from best to worst."""
        return np.lexsort((self.by_text, -self.estimate.mean))

    def _columns(self, random: np.random.Generator) -> Columns:
        references, candidates = self.problem.references, self.problem.candidates
        place = {text: k for k, text in enumerate(candidates.texts)}
        candidate = np.array([place.get(text, -1) for text in references.texts], dtype=np.int64)
        ties = np.empty(self.m, dtype=np.int64)
        ties[np.argsort(np.array(references.texts, dtype=object))] = np.arange(self.m)
        return Columns.draw(references.weights, ties, candidate, random)

    def _guided(self, budgets: tuple[Budget, ...]) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Every guide's gains of all candidates against as many columns as its budget reaches, and their means."""
        for place, (scorer, budget) in enumerate(zip(self.problem.guides, budgets, strict=True), 1):
            width = budget.pairs(self.problem.shape, self.problem.drawn) // self.n
            if width:
                block = self._guide_block(scorer, width, _GUIDES_TIME * place / len(budgets))
                columns = self.columns.order[: block.shape[1]]
                pairs = np.repeat(np.arange(self.n), columns.size), np.tile(np.sort(columns), self.n)
                values = block[:, np.argsort(columns)].ravel()
                self.guide_scores.append(ObservedScores(Pairs(*pairs, self.problem.shape), values))
                block = gains(scorer.utility, block)
                self.columns.learn(block, np.arange(self.n), self.n)
                yield block, block @ self.columns.weights(block.shape[1])

    def _guide_block(self, scorer: Scorer, width: int, share: float) -> FloatArray:
        """(N, k) scores against the first k ≤ `width` columns: as many as a share of the time limit allows, or one."""
        done, blocks = 0, []
        new = width if self.clock.limit == math.inf else 1
        while new:
            with self.clock.round(scorer, new * self.n):
                columns = self.columns.order[done : done + new]
                blocks.append(self.problem.score_block(scorer, np.arange(self.n), columns))
            done += new
            new = self.clock.affords(scorer, (width - done) * self.n, share) // self.n
        return np.concatenate(blocks, axis=1)

    def spend(self, budget: int) -> None:
        """Go on until `budget` target scores have been spent in all."""
        first = max(int(_FIRST_SHARE * budget), min(2 * _FIRST_DEPTH, budget))
        size = min(self.n, max(2, first // _FIRST_DEPTH))
        if self.spent:
            first = self.affordable(min(first, budget - self.spent))
            size = min(size, self.block.size + first // _FIRST_DEPTH)
        self._widen(size)
        self._deepen(self.block, first)
        for to_go in range(_ROUNDS, 0, -1):
            allowance = self.affordable(budget - self.spent) // to_go
            if allowance < 1 or int(self.depth.min()) == self.m:
                continue
            size = int(np.clip(allowance // max(int(self.depth.max()), 1), 2, self.n))
            size = min(max(size, math.ceil(allowance / self.m)), allowance, self.n)
            hopeful = self.estimate.mean + _DOUBT * self.estimate.deviation
            self._deepen(np.lexsort((self.by_text, -hopeful))[:size], allowance)

    def affordable(self, scores: int) -> int:
        """So many more target scores, or those that there is time for."""
        return self.clock.affords(self.problem.target, scores)

    def _widen(self, size: int) -> None:
        """Candidates of the first round: those drawn most; with guides half are theirs and a quarter is random."""
        if size <= self.block.size:
            return
        chosen = self.standing
        if self.has_guides and size < self.n:
            opinion = self.estimate.mean
            favourites = np.lexsort((self.by_text, -opinion))[: math.ceil(size / 2)]
            others = chosen[~np.isin(chosen, favourites)]
            prominent, rest = np.split(others, [math.ceil(size / 4)])
            rest = rest[np.argsort(self.model.random.random(self.n)[self.by_text[rest]])]
            chosen = np.concatenate([favourites, prominent, rest])
        new = chosen[~np.isin(chosen, self.block)][: size - self.block.size]
        self.block = np.concatenate([self.block, new])

    def _deepen(self, rows: IntArray, allowance: int) -> None:
        """Bring all `rows` to the same depth, as deep as the allowance reaches, and take the scores in."""
        depth = reach(self.depth[rows], allowance, self.m)
        counts = np.maximum(depth - self.depth[rows], 0)
        if not counts.any():
            return
        new_rows = np.repeat(rows, counts)
        new_places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + self.depth[new_rows]
        target = self.problem.target
        columns = self.columns.order[new_places]
        with self.problem.timed(self.problem.label(target)), self.clock.round(target, len(new_rows)):
            values = gains(target.utility, target(new_rows, columns))
        self.values = np.concatenate([self.values, values])
        self.rows = np.concatenate([self.rows, new_rows])
        self.places = np.concatenate([self.places, new_places])
        self.depth[rows] = np.maximum(self.depth[rows], depth)
        self.sizes.append(len(rows))
        self.trials.append(Pairs(new_rows, columns, self.problem.shape))
        self.spent += len(new_rows)
        with self.problem.timed("completion"):
            self._profile()
            self.estimate = self.model.fit(self.values, self.rows, self.places)

    def _profile(self) -> None:
        """The block that all candidates of the first round share, as profiles of their texts."""
        width = int(self.depth[self.block].min())
        place = np.full(self.n, -1)
        place[self.block] = np.arange(self.block.size)
        inside = (place[self.rows] >= 0) & (self.places < width)
        block = np.empty((self.block.size, width))
        block[place[self.rows[inside]], self.places[inside]] = self.values[inside]
        self.columns.learn(block, self.block, self.n)


def _regret(name: str, value: object) -> float | str | None:
    """The check of `max_regret`."""
    return value if value == "auto" and isinstance(value, str) else optional(number(0, above=True))(name, value)


def reach(depths: IntArray, allowance: int, most: int) -> int:
    """To which common depth (at most `most`) candidates of these depths can be brought by `allowance` scores."""
    wanted = np.arange(1, most + 1)
    have = np.sort(depths)
    below = np.searchsorted(have, wanted, side="left")
    cost = below * wanted - np.concatenate([[0], np.cumsum(have)])[below]
    return int(np.searchsorted(cost, allowance, side="right"))


def _standing(problem: Problem) -> FloatArray:
    """What orders candidates that were drawn equally often."""
    logprobs = problem.candidates.logprobs
    return np.zeros(len(problem)) if logprobs is None else logprobs


def _standard(features: FloatArray) -> FloatArray:
    """(N, F) on a scale of variance 1; what is the same for all is left out."""
    center, spread = features.mean(0), features.std(0)
    telling = spread > 1e-9 * np.maximum(np.abs(center), 1e-300)
    return np.asarray((features - center)[:, telling] / spread[telling])
