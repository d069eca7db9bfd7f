"""The default: rounds in which the candidates that can still be the best are judged by more pseudo-references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...config import C, nested, number, optional, setting, several
from ...decision import Decision
from ...matrix import Pairs
from ...recipe import Budget, Level, budget_each
from ...scoring import Utility
from ..base import AUTO_REGRET, Decoder, Problem, Steps
from .guide import Guide
from .state import Race

# All pairs of so few are worth their scores: rounds would take a third of them and lose something.
_FEW = 600
# All pairs of a utility that encodes texts are worth half of the encodings, and what rounds cost themselves: 50 ms of
# a CPU, in the unit of `Utility.price_per_pair` (1 ns is about one parameter).
_WORTH, _ROUNDS_PRICE = 0.5, 5e7
# The part of a budget that the first round may spend, and of the rest that the candidates drawn at random may; the
# rounds that follow where it is spent in any case.
_FIRST_SHARE, _SAMPLED_SHARE, _ROUNDS = 0.5, 0.25, 8
# What saved recipes of earlier versions say of a method that is gone.
_EARLIER: dict[str, object] = {
    "pace": {
        "first_share": 0.5,
        "first_depth": 2,
        "rounds": 4,
        "doubt": 1.0,
        "first_step": 4.0,
        "least_agreement": 0.2,
    },
    "shrinkage": {"noise_share": 0.25, "slope_share": 0.5, "prior_degrees": 8.0},
    "calibration": {"heavy": 4, "ridge": 4.0},
}


@dataclass(frozen=True)
class RoundsMBR(Decoder):
    """Spend the target's calls in rounds on those candidates that can still be the best, with or without guides.

    The first round takes the candidates drawn most, all against the same two pseudo-references, and some at random
    against nine. Every further one takes those that promise most per score. Scores are compared with the leader's
    (`model`), in a model with random effects that does not take luck for quality (`scores`), with weights that let a
    few pseudo-references stand for all (`reference_weights`). A guide is a control variate, used while it saves more
    than it costs (`guide`). It stops when the leader is expected to lose less than `max_regret`, and more than that
    with a probability of at most 5%.

    Correlated sequential halving for MBR: https://arxiv.org/abs/2401.02749
    """

    budget: Budget = nested(
        Budget.check, lambda: Budget(scores_per_row=64), help="at most this number of pairs by the target."
    )
    guide_budgets: tuple[Budget, ...] = nested(
        several(Budget.check),
        lambda: (Budget(scores_per_row=512),),
        help="at most this number by each guide; one for all guides, or one for each. With max_regret a guide is used "
        "only while that lowers the total; where a price is unknown, it is what the two budgets say.",
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
        help="stop after this number of seconds of scoring this source, within one round: rounds get "
        "smaller when they would take too long. How far it came then depends on the machine, "
        "so the signature has the calls too.",
    )

    name: ClassVar[str] = "rounds"
    any_guides: ClassVar[bool] = True

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, object]) -> C:
        """Build it from JSON; constants of earlier versions are dropped where they were left as they were."""
        kept = {name: value for name, value in values.items() if value != _EARLIER.get(name, cls)}
        return super().from_dict(kept)

    @classmethod
    def at(cls, level: Level, guides: int, **stages: Any) -> RoundsMBR:
        budget = level.target if guides else level.alone
        return cls(budget=budget, guide_budgets=(level.guide,), max_regret=level.max_regret, **stages)

    def most_calls(self, unique: tuple[int, int], drawn: tuple[int, int], guides: int) -> tuple[int, ...]:
        n, m = unique
        budgets = (budget.pairs(unique, drawn) for budget in budget_each(self.guide_budgets, guides))
        return (n * m, *budgets)

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
        if self.time_limit is not None:
            problem.meter.limit = self.time_limit
        race = Race(problem, self._guides(problem, budget), self.can_stop)
        if self.max_regret is None:
            yield from race.consult()
        first = max(int(_FIRST_SHARE * budget), min(4, budget))
        if self.can_stop:
            first = min(first, 2 * len(problem))
        yield from race.begin(first, int(_SAMPLED_SHARE * (budget - first)) if self.can_stop else 0)
        bound = self._bound(problem, race)
        if bound is None:
            race.choose_guide()
        elif race.guides:
            race.judge()
            yield from race.try_guides(bound)
        while True:
            race.judge()
            left = budget - race.spent
            early = self._enough(race, bound, left)
            if early and bound is not None and (yield from race.probe(bound, left)):
                continue
            if early or race.finished or not left:
                break
            if self.can_stop:
                yield from race.deepen(bound, race.affordable(left))
            else:
                yield from race.halve(max(_ROUNDS - len(race.sizes) + 1, 1), left)
        if bound is None or not race.settled(bound):
            race.state_loss(bound or 0.0, True)
        return self._outcome(problem, race, budget, early)

    def _guides(self, problem: Problem, budget: int) -> list[Guide]:
        """The guides, with what a score of each costs: by the budgets where a price is unknown."""
        found = []
        for scorer, allowed in zip(problem.guides, budget_each(self.guide_budgets, len(problem.guides)), strict=True):
            most = allowed.pairs(problem.shape, problem.drawn)
            found.append(Guide.beside(problem, scorer, most, budget / most))
        return found

    def _better_exact(self, problem: Problem, budget: int) -> str:
        """Why all pairs cost no more than the rounds would; empty where they cost more."""
        n, m = problem.shape
        if self.max_regret is not None and self.time_limit is None and problem.target.utility.encodes_texts:
            texts = len({*problem.candidates.texts, *problem.references.texts})
            if _pairs_are_cheap(problem.target.utility, n * m, texts):
                return "exact, since each text is encoded once and pairs are next to free"
        few = n * m <= _FEW and self.time_limit is None
        return "exact" if n == 1 or (budget >= n * m and (few or not self.can_stop)) else ""

    def loss_bound(self, target: Utility) -> float | None:
        return AUTO_REGRET * target.scale if isinstance(self.max_regret, str) else self.max_regret

    def _bound(self, problem: Problem, race: Race) -> float | None:
        """The loss at which these candidates are settled; None where the budget is spent."""
        utility = problem.target.utility
        bound = self.loss_bound(utility)
        if bound is None:
            return None
        if isinstance(self.max_regret, str) and not utility.scale_known:
            bound = AUTO_REGRET * race.scale
        return bound * problem.loss_share

    def _enough(self, race: Race, bound: float | None, left: int) -> str:
        """Why it can stop; empty while it cannot."""
        if race.finished:
            return ""
        if bound is not None or self.confidence < 1:
            race.state_loss(0.0 if bound is None else bound, self.confidence < 1)
        if bound is not None and race.settled(bound) and not len(race.unjudged(bound)):
            return f"expected regret below {bound:g}"
        if self.confidence < 1 and race.confidence >= self.confidence:
            return f"the leader is {self.confidence:g} sure"
        if left and not race.affordable(left):
            return f"{self.time_limit:g} seconds are over"
        return ""

    def _outcome(self, problem: Problem, race: Race, budget: int, early: str) -> Decision:
        sign = 1.0 if problem.target.utility.higher_is_better else -1.0
        observed = race.observed(race.asked)
        if self.time_limit is not None:
            calls, cached, *_ = problem.costs()
            scored = [count + cached.get(name, 0) for name, count in calls.items()]
            problem.context["scores"] = "+".join(map(str, scored))
        if race.finished:
            return self.exact_decision(problem, problem.target, observed.dense())
        drawn = problem.drawn[0] * problem.drawn[1]
        spent = [(problem.target, race.spent), *((guide.scorer, guide.spent) for guide in race.guides)]
        went = " → ".join(map(str, race.sizes))
        ended = f"stopped early, {early}" if early else "all rounds done"
        return self.decision(
            problem,
            sign * race.mean,
            f"{race.spent:,} of at most {budget:,} target scores in rounds of {went} candidates, {ended}",
            deciding=problem.target,
            rates=[(scorer, drawn / scores) for scorer, scores in spent if scores],
            order=race.ranking(),
            rounds=tuple(race.sizes),
            trials=tuple(Pairs(rows, columns, problem.shape) for rows, columns, _ in race.asked),
            deviation=race.deviation,
            expected_regret=race.regret,
            observed=observed,
            guides=tuple(race.observed(guide.asked) for guide in race.guides if guide.asked),
        )


def _pairs_are_cheap(utility: Utility, pairs: int, texts: int) -> bool:
    """Whether all pairs add little to what all texts cost, which is due with the first pair of each."""
    per_pair, per_text = utility.price_per_pair, utility.price_per_text
    if per_pair is None or per_text is None:
        return True
    return pairs * per_pair <= _WORTH * texts * per_text + _ROUNDS_PRICE


def _regret(name: str, value: object) -> float | str | None:
    """The check of `max_regret`."""
    return value if value == "auto" and isinstance(value, str) else optional(number(0, above=True))(name, value)
