"""PMBR and AC-PMBR: some of the pairs are scored, the rest is completed; with no guide, one, or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..budget import Budget
from ..checks import several
from ..matrix import ObservedScores, Pairs
from ..protocols import Completer, Observation, Plan, Posterior
from ..registry import COMPLETERS, OBSERVATIONS
from ..stage import nested
from ..utilities import Scorer
from .base import Decoder, Need, exact_decision
from .decision import Completed, Decision
from .gain import Gain
from .problem import Problem


@dataclass(frozen=True)
class PMBR(Decoder):
    """Score a random part of the pairs with the target and complete the matrix by low-rank factorisation.

    "Efficient Minimum Bayes Risk Decoding using Low-Rank Matrix Completion Algorithms", https://arxiv.org/abs/2406.02832

    Args:
        completer: completes the matrix (`hf_acpmbr.completion`).
        observation: which pairs to score (`hf_acpmbr.observation`).
        budget: how many by the target.
    """

    completer: Completer = nested(COMPLETERS.check, lambda: COMPLETERS.build("als"))
    observation: Observation = nested(OBSERVATIONS.check, lambda: OBSERVATIONS.build("balanced"))
    budget: Budget = nested(Budget.check, lambda: Budget(scores_per_row=64))

    name: ClassVar[str] = "pmbr"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.observation.in_rounds and not self.completer.knows_deviations:
            raise ValueError(
                f"observation {self.observation.name!r} needs a completer that knows how sure it is, "
                f"got {self.completer.name!r}: choose completer='transfer', or observation='balanced'"
            )

    def budgets_for(self, guides: int) -> tuple[Budget, ...]:
        """The budget of every guide."""
        return ()

    def check_utilities(self, target: bool, guides: int) -> None:
        super().check_utilities(target, guides)
        self.budgets_for(guides)
        self.completer.check_guides(guides)

    def _decide(self, problem: Problem) -> Decision:
        budget = self.budget.pairs(problem.shape, problem.drawn)
        if budget >= problem.shape[0] * problem.shape[1]:
            return exact_decision(self, problem, problem.target)
        plan = self.observation.plan(problem.view, budget, problem.seed_for(0))
        # A mask does not wait for the guides, so all utilities are scored together.
        pairs = None if self.observation.in_rounds else plan.next(Posterior.flat(problem.shape[0]))
        jobs = self._guide_jobs(problem)
        guides = problem.score_all(jobs if pairs is None else [*jobs, (problem.target, pairs)])
        observed = None if pairs is None else guides.pop()
        with problem.timed("completion"):
            gained = [Gain.of(s.utility, g.values).apply(g) for s, g in zip(problem.guides, guides, strict=True)]
            fitted = self.completer.fit(gained, problem.seed)
        trials = []
        if observed is None:
            trials.append(plan.next(fitted.prior(problem.references.weights, len(problem))))
            observed = problem.score(problem.target, trials[0])
        # The first round's for all, so that the plan can compare the posteriors of different rounds.
        gain = Gain.of(problem.target.utility, observed.values)
        while True:
            with problem.timed("completion"):
                completion = fitted.complete(gain.apply(observed), problem.candidates.features)
                posterior = completion.posterior(problem.references.weights)
            if not len(pairs := plan.next(posterior)):
                completed = Completed(completion, gain)
                return self._completed(problem, plan, posterior, completed, observed, guides, tuple(trials))
            trials.append(pairs)
            observed = observed.merged(problem.score(problem.target, pairs))

    def _guide_jobs(self, problem: Problem) -> list[tuple[Scorer, Pairs]]:
        """Which pairs each guide scores."""
        jobs = []
        for k, (guide, budget) in enumerate(zip(problem.guides, self.budgets_for(len(problem.guides)), strict=True), 1):
            count = budget.pairs(problem.shape, problem.drawn)
            jobs.append((guide, self.observation.mask(problem.shape, count, problem.seed_for(k))))
        return jobs

    def _completed(
        self,
        problem: Problem,
        plan: Plan,
        posterior: Posterior,
        completed: Completed,
        observed: ObservedScores,
        guides: list[ObservedScores],
        trials: tuple[Pairs, ...],
    ) -> Decision:
        budgets = (self.budget, *self.budgets_for(len(problem.guides)))
        scorers = (problem.target, *problem.guides)
        return self._decision(
            problem,
            completed.gain.undo(posterior.mean),
            plan.status or completed.status,
            deciding=problem.target,
            rates=[(s, budget.rate(problem.drawn[1])) for s, budget in zip(scorers, budgets, strict=True)],
            matrix=None if problem.full_matrix is None else completed.matrix,
            observed=observed,
            guides=tuple(guides),
            order=plan.ranking(posterior),
            completed=completed,
            rounds=plan.rounds,
            trials=trials,
            deviation=None if posterior.deviation is None else posterior.deviation * completed.gain.scale,
        )


@dataclass(frozen=True)
class AgreementPMBR(PMBR):
    """Score a small part of the pairs with the target, a larger part with each guide, and complete them together.

    "Agreement-Constrained Probabilistic Minimum Bayes Risk Decoding", https://arxiv.org/abs/2512.01316

    Args:
        guide_budgets: how many pairs by each guide; one for all guides, or one for each.
    """

    completer: Completer = nested(COMPLETERS.check, lambda: COMPLETERS.build("transfer"))
    observation: Observation = nested(OBSERVATIONS.check, lambda: OBSERVATIONS.build("adaptive"))
    budget: Budget = nested(Budget.check, lambda: Budget(scores_per_row=32))
    guide_budgets: tuple[Budget, ...] = nested(several(Budget.check), lambda: (Budget(scores_per_row=512),))

    name: ClassVar[str] = "acpmbr"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "guide"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.completer.takes_guides:
            raise ValueError(
                f"completer {self.completer.name!r} would ignore the guides that are paid for: choose "
                "'transfer' or 'agreement-als', or decoder='pmbr' without a distilled utility"
            )

    def most_guides(self) -> int | None:
        return None

    def budgets_for(self, guides: int) -> tuple[Budget, ...]:
        if len(self.guide_budgets) not in (1, guides):
            raise ValueError(
                f"guide_budgets has {len(self.guide_budgets)} budgets for {guides} guides: give one or one each"
            )
        return self.guide_budgets if len(self.guide_budgets) == guides else self.guide_budgets * guides
