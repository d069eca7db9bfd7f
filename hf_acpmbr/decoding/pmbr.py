"""PMBR and AC-PMBR: some of the pairs are scored, the rest is completed; with no guide, one, or several."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..candidates import FloatArray
from ..completion.base import Completer, Completion, PaperWarning
from ..completion.observation import Observation
from ..config import COMPLETERS, OBSERVATIONS, nested, several
from ..decision import Decision
from ..recipe import Budget, Level, budget_each
from .base import Decoder, Gain, Need, Problem, Steps

P = TypeVar("P", bound="PMBR")


@dataclass(frozen=True)
class PMBR(Decoder):
    """Score a random part of the pairs with the target and complete the matrix by low-rank factorisation.

    "Efficient Minimum Bayes Risk Decoding using Low-Rank Matrix Completion Algorithms", https://arxiv.org/abs/2406.02832
    """

    completer: Completer = nested(
        COMPLETERS.check, lambda: COMPLETERS.build("als"), help="completes the matrix (`hf_acpmbr.completion`)."
    )
    observation: Observation = nested(
        OBSERVATIONS.check,
        lambda: OBSERVATIONS.build("balanced"),
        help="which pairs to score (`hf_acpmbr.completion.observation`).",
    )
    budget: Budget = nested(Budget.check, lambda: Budget(scores_per_row=64), help="how many by the target.")

    name: ClassVar[str] = "pmbr"

    @classmethod
    def at(cls: type[P], level: Level, guides: int, **stages: Any) -> P:
        guided = "guide" in cls.needs
        usual = "als" if not guided else "agreement-als" if level.paper else "transfer"
        completer = stages.pop("completer", None) or usual
        if isinstance(completer, str):
            known = COMPLETERS.get(completer).field_names()
            paper = {"center": False, "tolerance": 1e-4, "absolute_tolerance": True} if level.paper else {}
            options = {"agreement": level.agreement, **paper}
            completer = COMPLETERS.build(completer, **{k: v for k, v in options.items() if k in known})
        masks = "uniform" if level.paper else "balanced"
        observation = OBSERVATIONS.build(stages.pop("observation", None) or masks)
        if guided:
            stages["guide_budgets"] = (level.guide,)
        budget = level.target if guided and guides else level.alone
        return cls(completer=completer, observation=observation, budget=budget, **stages)

    def most_calls(self, unique: tuple[int, int], drawn: tuple[int, int], guides: int) -> tuple[int, ...]:
        most = self.budget.pairs(unique, drawn)
        if most == unique[0] * unique[1]:  # everything is scored, and no guide is asked
            return (most, *[0] * guides)
        return (most, *(budget.pairs(unique, drawn) for budget in self.budgets_for(guides)))

    def budgets_for(self, guides: int) -> tuple[Budget, ...]:
        """Return the budget of each guide."""
        return ()

    def check_utilities(self, target: bool, guides: int) -> None:
        super().check_utilities(target, guides)
        self.budgets_for(guides)
        self.completer.check_guides(guides)

    def decide(self, problem: Problem) -> Steps[Decision]:
        (n, m), pairs = problem.shape, self.budget.pairs(problem.shape, problem.drawn)
        if pairs >= n * m:
            return (yield from self.exact(problem, problem.target))
        if self.budget.reduction is not None and pairs < n:
            warnings.warn(
                f"reduction={self.budget.reduction:g} makes {pairs} target calls in all for "
                f"{problem.drawn[0]}×{problem.drawn[1]} samples, less than one per candidate, so the choice is mostly "
                "chance: the paper's rates are for 1,024 samples. Draw more, or give scores_per_row",
                PaperWarning,
                stacklevel=2,
            )
        budgets = (self.budget, *self.budgets_for(len(problem.guides)))
        scorers = (problem.target, *problem.guides)
        # All masks are known beforehand, so utilities on different devices score at the same time.
        observed, *guides = yield from problem.observe(
            [
                (scorer, self.observation.mask(problem.shape, each.pairs(problem.shape, problem.drawn), seed))
                for scorer, each, seed in zip(scorers, budgets, map(problem.seed_for, count()), strict=False)
            ]
        )
        gain = Gain.of(problem.target.utility, observed.values)
        gained = [Gain.of(s.utility, g.values).apply(g) for s, g in zip(problem.guides, guides, strict=True)]
        completion = self.completer.solve(gain.apply(observed), gained, problem.candidates.features, problem.seed)
        means = completion.expected(problem.references.weights).astype(np.float64, copy=False)
        ended = "converged" if completion.converged else "stopped"
        completed = partial(completed_scores, completion, gain)
        return self.decision(
            problem,
            gain.undo(means),
            f"completed, {ended} after {completion.sweeps} sweeps",
            deciding=problem.target,
            rates=[(s, each.rate(problem.drawn[1])) for s, each in zip(scorers, budgets, strict=True)],
            matrix=None if problem.full_matrix is None else completed(),
            observed=observed,
            guides=tuple(guides),
            completed=completed,
        )


@dataclass(frozen=True)
class AgreementPMBR(PMBR):
    """Score a small part of the pairs with the target, a larger part with each guide, and complete them together.

    "Agreement-Constrained Probabilistic Minimum Bayes Risk Decoding", https://arxiv.org/abs/2512.01316
    """

    completer: Completer = nested(
        COMPLETERS.check, lambda: COMPLETERS.build("transfer"), help="completes the matrix (`hf_acpmbr.completion`)."
    )
    budget: Budget = nested(Budget.check, lambda: Budget(scores_per_row=32), help="how many by the target.")
    guide_budgets: tuple[Budget, ...] = nested(
        several(Budget.check),
        lambda: (Budget(scores_per_row=512),),
        help="how many pairs by each guide; one for all guides, or one for each.",
    )

    name: ClassVar[str] = "acpmbr"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "guide"})
    any_guides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.completer.takes_guides:
            raise ValueError(
                f"completer {self.completer.name!r} would ignore the guides that are paid for: choose "
                "'transfer' or 'agreement-als', or decoder='pmbr' without a distilled utility"
            )

    def budgets_for(self, guides: int) -> tuple[Budget, ...]:
        return budget_each(self.guide_budgets, guides)


def completed_scores(completion: Completion, gain: Gain) -> FloatArray:
    """Return the (n, m) completed matrix on the utility's own scale."""
    return gain.undo(np.asarray(completion.matrix))
