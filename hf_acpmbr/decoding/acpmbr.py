"""AC-PMBR: a few target scores, more scores of its distilled version, completed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..matrix import ObservedScores
from ..utilities import Scorer
from .base import Decoder, Gain, Problem, exact_decision
from .decision import Decision
from .pmbr import _name, _settings, completed_decision, guide_gains
from .stages import BudgetLike, CompleterLike, LearningCompleter, ObservationLike


@dataclass(frozen=True)
class ACPMBR(Decoder):
    """Score a small part of the pairs with the target, a larger part with each guide, and complete them together.

    "Agreement-Constrained Probabilistic Minimum Bayes Risk Decoding", https://arxiv.org/abs/2512.01316

    Args:
        completer: completes the target's matrix with the guides' help (`hf_acpmbr.completion`).
        observe: which pairs to score (`hf_acpmbr.observation`). One that has a `plan` asks for the target's pairs in
            rounds, given what the completer makes of the scores so far.
        budget: how many by the target.
        guide_budgets: how many by each guide; one for all guides, or one for each.
    """

    completer: CompleterLike
    observe: ObservationLike
    budget: BudgetLike
    guide_budgets: tuple[BudgetLike, ...]

    name: ClassVar[str] = "acpmbr"
    needs: ClassVar[frozenset[str]] = frozenset({"target", "guide"})

    def __post_init__(self) -> None:
        if hasattr(self.observe, "plan") and not isinstance(self.completer, LearningCompleter):
            raise ValueError(
                f"observation {_name(self.observe)} needs a completer that knows how sure it is, "
                f"got {type(self.completer).__name__}: choose completer='transfer'"
            )

    def options(self) -> Mapping[str, object]:
        return {
            "budget": self.budget,
            "guide_budget": "+".join(str(budget) for budget in self.guide_budgets),
            "observation": _name(self.observe),
            "completer": _settings(self.completer),
        }

    def _decide(self, problem: Problem) -> Decision:
        assert problem.target is not None
        budgets = self._budgets_for(len(problem.guides))
        pairs = self.budget.pairs(problem.shape, problem.drawn)
        if pairs >= problem.shape[0] * problem.shape[1]:
            return exact_decision(self, problem, problem.target)
        jobs: list[Any] = []
        rates = [(problem.target, self.budget.rate(problem.drawn[1]))]
        for k, (guide, budget) in enumerate(zip(problem.guides, budgets, strict=True), start=1):
            count = budget.pairs(problem.shape, problem.drawn)
            jobs.append((guide, self.observe(problem.shape, count, problem.seed_for(k))))
            rates.append((guide, budget.rate(problem.drawn[1])))
        if hasattr(self.observe, "plan"):
            return self._in_rounds(problem, pairs, problem.score_all(jobs), rates)
        plan = self.observe(problem.shape, pairs, problem.seed_for(0))
        observed, *guides = problem.score_all([(problem.target, plan), *jobs])
        return completed_decision(self, problem, self.completer, observed, guides, rates)

    def _in_rounds(
        self, problem: Problem, budget: int, guides: Sequence[ObservedScores], rates: Sequence[tuple[Scorer, float]]
    ) -> Decision:
        """Score what the plan asks for, complete, and let the plan ask again."""
        assert problem.target is not None
        assert isinstance(self.completer, LearningCompleter)
        weights, counts = problem.references.weights, problem.candidates.counts
        plan = self.observe.plan(problem.shape, budget, weights, counts, problem.seed_for(0))  # type: ignore[attr-defined]
        with problem.timed("completion"):
            learnt = self.completer.learn(guide_gains(problem, guides))
            mean, deviation = learnt.expected(weights, problem.shape[0]), np.zeros(problem.shape[0])
        observed: ObservedScores | None = None
        gain: Gain | None = None
        while len(pairs := plan.next(mean, deviation)):
            scores = problem.score(problem.target, pairs)
            observed = scores if observed is None else observed.merged(scores)
            with problem.timed("completion"):
                # The first round's for all, so that the plan can compare the posteriors of different rounds.
                gain = gain or Gain.of(problem.target.utility, observed.values)
                gains = observed.with_values(gain.apply(observed.values))
                completion = learnt.complete(gains, row_features=problem.candidates.features)
                mean = completion.expected(weights)
                deviation = np.sqrt(completion.row_variance(weights, relative=True))
        assert observed is not None
        assert gain is not None
        return self._decision(
            problem,
            gain.undo(mean),
            plan.status,
            deciding=problem.target,
            rates=rates,
            matrix=None if problem.full_matrix is None else gain.undo(completion.matrix),
            observed=observed,
            guides=tuple(guides),
            order=plan.ranking(mean, deviation),
            details={"completion": completion, "gain": gain, "plan": plan},
        )

    def _budgets_for(self, guides: int) -> tuple[BudgetLike, ...]:
        if len(self.guide_budgets) not in (1, guides):
            raise ValueError(
                f"guide_budgets has {len(self.guide_budgets)} budgets for {guides} guides: give one or one each"
            )
        return self.guide_budgets if len(self.guide_budgets) == guides else self.guide_budgets * guides
