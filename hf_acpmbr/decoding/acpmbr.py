"""AC-PMBR: a few target scores, more scores of its distilled version, completed together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .base import BudgetLike, CompleterLike, Decoder, ObservationLike, Problem, exact_decision
from .decision import Decision
from .pmbr import _name, _settings, completed_decision


@dataclass(frozen=True)
class ACPMBR(Decoder):
    """Score a small part of the pairs with the target, a larger part with each guide, and complete them together.

    "Agreement-Constrained Probabilistic Minimum Bayes Risk Decoding", https://arxiv.org/abs/2512.01316

    Args:
        completer: completes the target's matrix with the guides' help (`hf_acpmbr.completion`).
        observe: which pairs to score (`hf_acpmbr.observation`).
        budget: how many by the target.
        guide_budgets: how many by each guide; one for all guides, or one for each.
    """

    completer: CompleterLike
    observe: ObservationLike
    budget: BudgetLike
    guide_budgets: tuple[BudgetLike, ...]

    name: ClassVar[str] = "acpmbr"
    needs: ClassVar[frozenset[str]] = frozenset({"target", "guide"})

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
        plan = self.observe(problem.shape, self.budget.pairs(problem.shape, problem.drawn), problem.seed_for(0))
        if plan.complete:
            return exact_decision(self, problem, problem.target)
        jobs = [(problem.target, plan)]
        rates = [(problem.target, self.budget.rate(problem.drawn[1]))]
        for k, (guide, budget) in enumerate(zip(problem.guides, budgets, strict=True), start=1):
            pairs = budget.pairs(problem.shape, problem.drawn)
            jobs.append((guide, self.observe(problem.shape, pairs, problem.seed_for(k))))
            rates.append((guide, budget.rate(problem.drawn[1])))
        observed, *guides = problem.score_all(jobs)
        return completed_decision(self, problem, self.completer, observed, guides, rates)

    def _budgets_for(self, guides: int) -> tuple[BudgetLike, ...]:
        if len(self.guide_budgets) not in (1, guides):
            raise ValueError(
                f"guide_budgets has {len(self.guide_budgets)} budgets for {guides} guides: give one or one each"
            )
        return self.guide_budgets if len(self.guide_budgets) == guides else self.guide_budgets * guides
