"""The default: rounds in which the candidates that can still be the best are judged by more pseudo-references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ...config import nested, number, optional, setting, several
from ...decision import Decision
from ...recipe import Budget, Level, budget_each
from ...scoring import Utility
from ..base import AUTO_REGRET, Decoder, Problem, Steps
from .model import Shrinkage
from .reference_weights import Calibration
from .state import Pace, Race

# With a time limit the budget is opened from so many scores in all: nothing is known of how long one takes.
_FIRST_TIMED_STEP = 32


@dataclass(frozen=True)
class RoundsMBR(Decoder):
    """Spend the target's calls in rounds on those candidates that can still be the best, with or without guides.

    The first round takes the candidates drawn most (with guides half of them are theirs), all against the same few
    pseudo-references; every further one takes the best so far and doubles their depth. An additive model with shrinkage
    joins the rounds, so a candidate with few scores is pulled towards what is known of it beforehand: how often it was
    drawn, its log-probability, the guides' means. The guides are control variates too. Pseudo-references are weighted
    so that the few used stand for all of them (`reference_weights`), and what a leader may lose is read from a prior
    that the candidates themselves give (`posterior`).

    Correlated sequential halving for MBR: https://arxiv.org/abs/2401.02749
    """

    budget: Budget = nested(
        Budget.check, lambda: Budget(scores_per_row=64), help="at most so many of the pairs by the target."
    )
    guide_budgets: tuple[Budget, ...] = nested(
        several(Budget.check),
        lambda: (Budget(scores_per_row=512),),
        help="how many by each guide; one for all guides, or one for each. Where rounds end early, "
        "the guides have spent the same part of their budgets as the target.",
    )
    max_regret: float | str | None = setting(
        None,
        lambda name, value: _regret(name, value),
        help="stop when the expected loss of the leader against full MBR is below this, in the "
        "target's units; \"auto\" is 0.001 of the utility's scale, None spends the budget.",
    )
    confidence: float = setting(
        1.0,
        number(0, 1, above=True, note="1 never stops early"),
        help="stop when the leader is the best with this probability; 1 never stops for it.",
    )
    time_limit: float | None = setting(
        None,
        optional(number(0, above=True)),
        help="stop after so many seconds of scoring this source, within one round: rounds get "
        "smaller when they would take too long. How far it came then depends on the machine, "
        "so the signature has the calls too.",
    )
    pace: Pace = nested(
        Pace.check, Pace, help="constants of the method; docs/beyond_the_paper.md has what each does, measured."
    )
    shrinkage: Shrinkage = nested(
        Shrinkage.check,
        Shrinkage,
        help="constants of the method; docs/beyond_the_paper.md has what each does, measured.",
    )
    calibration: Calibration = nested(
        Calibration.check,
        Calibration,
        help="constants of the method; docs/beyond_the_paper.md has what each does, measured.",
    )

    name: ClassVar[str] = "rounds"
    any_guides: ClassVar[bool] = True

    @classmethod
    def at(cls, level: Level, guides: int, **stages: Any) -> RoundsMBR:
        budget = level.target if guides else level.alone
        return cls(budget=budget, guide_budgets=(level.guide,), max_regret=level.max_regret, **stages)

    def most_calls(self, unique: tuple[int, int], drawn: tuple[int, int], guides: int) -> tuple[int, ...]:
        n, m = unique
        budgets = (budget.pairs(unique, drawn) for budget in budget_each(self.guide_budgets, guides))
        return (n * m, *((pairs // n) * n for pairs in budgets))

    def check_utilities(self, target: bool, guides: int) -> None:
        super().check_utilities(target, guides)
        if guides:
            budget_each(self.guide_budgets, guides)

    @property
    def can_stop(self) -> bool:
        """Whether it may end before the budget is spent."""
        return self.max_regret is not None or self.confidence < 1 or self.time_limit is not None

    def decide(self, problem: Problem) -> Steps[Decision]:
        budget = self.budget.pairs(problem.shape, problem.drawn)
        if reason := self._better_exact(problem, budget):
            return (yield from self.exact(problem, problem.target, reason))
        budgets = budget_each(self.guide_budgets, len(problem.guides))
        if self.time_limit is not None:
            problem.meter.limit = self.time_limit
        race = Race(problem, budgets, self.pace, self.shrinkage, self.calibration)
        stated = self.loss_bound(problem.target.utility)
        bound = -1.0 if stated is None else stated * problem.loss_share
        early = ""
        for step in self._steps(len(problem), budget):
            yield from race.spend(step, step / budget)
            early = self._enough(race, bound, step)
            if early or race.finished:
                break
        return self._outcome(problem, race, budget, early)

    def _better_exact(self, problem: Problem, budget: int) -> str:
        """Why all pairs cost no more than the rounds would; empty where they cost more."""
        n, m = problem.shape
        if n == 1 or (budget >= n * m and (not self.can_stop or m <= 2 * self.pace.first_step)):
            return "exact"
        free = self.takes_all_pairs_of(problem.target.utility)
        return "exact, since each text is encoded once and pairs are next to free" if free else ""

    def takes_all_pairs_of(self, utility: Utility) -> bool:
        """Whether it scores everything: a utility that encodes texts has paid for all pairs with the first one."""
        return utility.encodes_texts and self.max_regret is not None and self.time_limit is None

    def _steps(self, candidates: int, budget: int) -> Iterator[int]:
        """What may be spent in all, step by step where it can end early."""
        step = int(self.pace.first_step * candidates) if self.can_stop else budget
        step = step if self.time_limit is None else _FIRST_TIMED_STEP
        while step < budget:
            yield step
            step *= 2
        yield budget

    def loss_bound(self, target: Utility) -> float | None:
        return AUTO_REGRET * target.scale if isinstance(self.max_regret, str) else self.max_regret

    def _enough(self, race: Race, bound: float, step: int) -> str:
        """Why it can stop; empty while it cannot."""
        if race.finished:
            return ""
        if race.affordable(2) < 2:
            return f"{self.time_limit:g} seconds are over"
        if step < int(self.pace.first_step * race.n):  # too early to know what the leader may lose
            return ""
        if bound >= 0 and race.regret <= bound:
            return f"expected regret below {bound:g}"
        if self.confidence < 1 and race.confidence >= self.confidence:
            return f"the leader is {self.confidence:g} sure"
        return ""

    def _outcome(self, problem: Problem, race: Race, budget: int, early: str) -> Decision:
        sign = 1.0 if problem.target.utility.higher_is_better else -1.0
        if self.time_limit is not None:
            calls, cached, *_ = problem.costs()
            scored = [count + cached.get(name, 0) for name, count in calls.items()]
            problem.context["scores"] = "+".join(map(str, scored))
        if race.finished:
            return self.exact_decision(problem, problem.target, race.observed(sign).dense())
        drawn = problem.drawn[0] * problem.drawn[1]
        spent = [(problem.target, race.spent), *((each.scorer, each.block.size) for each in race.guides)]
        went = " → ".join(map(str, race.sizes))
        ended = f"stopped early, {early}" if early else "all rounds done"
        return self.decision(
            problem,
            sign * (race.mean if problem.bonus is None else race.mean - problem.bonus),
            f"{race.spent:,} of at most {budget:,} target scores in rounds of {went} candidates, {ended}",
            deciding=problem.target,
            rates=[(scorer, drawn / scores) for scorer, scores in spent if scores],
            order=race.ranking(),
            rounds=tuple(race.sizes),
            trials=tuple(race.trials),
            deviation=race.deviation,
            expected_regret=race.regret,
            observed=race.observed(sign),
            guides=race.guide_scores(),
        )


def _regret(name: str, value: object) -> float | str | None:
    """The check of `max_regret`."""
    return value if value == "auto" and isinstance(value, str) else optional(number(0, above=True))(name, value)
