"""Correlated sequential halving: the better half goes on, judged by the same pseudo-references."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..config import nested
from ..decision import Decision
from ..recipe import Budget, Level
from ..scoring import Ask
from .base import Decoder, Problem, Steps, best_first, top
from .draws import Draws


@dataclass(frozen=True)
class HalvingMBR(Decoder):
    """Spend a budget of T calls in ⌈log₂ N⌉ rounds; in each the worse half of the candidates drops out.

    A round with survivors S and q rounds to go scores all of them against ⌊T_left / (|S|·q)⌋ further pseudo-references
    (at least one). They are the same for all survivors, so what a pseudo-reference does to every candidate cancels,
    and earlier ones keep counting. When all pseudo-references have been used the survivors' means are exact and the
    best is taken. Nothing but the budget has to be set.

    "Hyperparameter-Free Approach for Faster Minimum Bayes Risk Decoding", https://arxiv.org/abs/2401.02749
    Correlated sequential halving: "Ultra Fast Medoid Identification via Correlated Sequential Halving",
    https://arxiv.org/abs/1906.04356

    The paper gives each round T/⌈log₂ N⌉ and ignores what rounding leaves over or, for a small T, overspends. Here the
    next rounds get what is left, the budget is never exceeded, and where it does not reach one pseudo-reference in
    each round for all, only the candidates drawn most often take part. A pseudo-reference drawn again costs nothing.
    """

    budget: Budget = nested(
        Budget.check, lambda: Budget(scores_per_row=64), help="how many of the drawn N·M pairs, as for PMBR."
    )

    name: ClassVar[str] = "halving"

    @classmethod
    def at(cls, level: Level, guides: int, **stages: Any) -> HalvingMBR:
        return cls(budget=level.alone, **stages)

    def most_calls(self, unique: tuple[int, int], drawn: tuple[int, int], guides: int) -> tuple[int, ...]:
        return (self.budget.pairs(unique, drawn),)

    def decide(self, problem: Problem) -> Steps[Decision]:
        n, m = problem.shape
        left = self.budget.pairs(problem.shape, problem.drawn)
        if left >= n * m:
            return (yield from self.exact(problem, problem.target))
        draws = Draws.of(problem)
        expected, rounds_survived = np.full(n, np.nan), np.zeros(n)
        totals = np.zeros(n)
        survivors = top(problem.candidates.counts.astype(np.float64), affordable(n, left))
        sizes, taken, seen = [survivors.size], 0, 0
        rounds = math.ceil(math.log2(survivors.size))
        for to_go in range(rounds, 0, -1):
            new = min(max(1, left // (survivors.size * to_go)), m - seen)
            seen, left = seen + new, left - survivors.size * new
            start, taken = taken, draws.reach(seen)
            columns, counts = draws.part(start, taken)
            scores = yield Ask.block(problem.target, survivors, columns)
            totals[survivors] += scores @ counts
            expected[survivors] = totals[survivors] / taken
            rounds_survived[survivors] += 1
            values = problem.merit(problem.target.utility, expected[survivors], survivors)
            survivors = survivors[top(values, 1 if taken == len(draws) else math.ceil(survivors.size / 2))]
            sizes.append(survivors.size)
            if survivors.size == 1:
                break
        rounds_survived[survivors] += 1
        return self.decision(
            problem,
            expected,
            f"halved {' → '.join(map(str, sizes))} with up to {taken} of {len(draws)} pseudo-references",
            deciding=problem.target,
            rates=[(problem.target, self.budget.rate(problem.drawn[1]))],
            order=best_first(
                rounds_survived, problem.merit(problem.target.utility, expected), problem.candidates.counts
            ),
            rounds=tuple(sizes),
        )


def affordable(candidates: int, budget: int) -> int:
    """Count the candidates for which `budget` calls reach one new pseudo-reference in every round."""

    def least(k: int) -> int:
        return 0 if k < 2 else k + least(math.ceil(k / 2))

    low, high = 1, candidates
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if least(middle) <= budget else (low, middle - 1)
    return low
