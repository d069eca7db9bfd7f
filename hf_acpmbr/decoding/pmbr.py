"""PMBR: some of the pairs scored, the rest completed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..matrix import ObservedScores
from ..utilities import Scorer
from .base import Decoder, Gain, Problem, exact_decision
from .decision import Decision
from .stages import BudgetLike, CompleterLike, LearningCompleter, ObservationLike


@dataclass(frozen=True)
class PMBR(Decoder):
    """Score a random part of the pairs with the target and complete the matrix by low-rank factorisation.

    "Efficient Minimum Bayes Risk Decoding using Low-Rank Matrix Completion Algorithms", https://arxiv.org/abs/2406.02832

    Args:
        completer: completes the matrix from the target's scores (`hf_acpmbr.completion`).
        observe: which pairs to score (`hf_acpmbr.observation`).
        budget: how many.
    """

    completer: CompleterLike
    observe: ObservationLike
    budget: BudgetLike

    name: ClassVar[str] = "pmbr"

    def __post_init__(self) -> None:
        if hasattr(self.observe, "plan"):
            raise ValueError(
                f"observation {_name(self.observe)} needs a guide to start from: give a distilled utility, or choose "
                "observation='balanced'"
            )

    def options(self) -> Mapping[str, object]:
        return {"budget": self.budget, "observation": _name(self.observe), "completer": _settings(self.completer)}

    def _decide(self, problem: Problem) -> Decision:
        assert problem.target is not None
        pairs = self.budget.pairs(problem.shape, problem.drawn)
        plan = self.observe(problem.shape, pairs, problem.seed_for(0))
        if plan.complete:
            return exact_decision(self, problem, problem.target)
        observed = problem.score(problem.target, plan)
        rates = [(problem.target, self.budget.rate(problem.drawn[1]))]
        return completed_decision(self, problem, self.completer, observed, (), rates)


def completed_decision(
    decoder: Decoder,
    problem: Problem,
    completer: CompleterLike,
    observed: ObservedScores,
    guides: Sequence[ObservedScores],
    rates: Sequence[tuple[Scorer, float]],
) -> Decision:
    """Complete the target's matrix, with the guides' scores if there are any, and choose from it."""
    assert problem.target is not None
    gain = Gain.of(problem.target.utility, observed.values)
    with problem.timed("completion"):
        gains, helpers = observed.with_values(gain.apply(observed.values)), guide_gains(problem, guides)
        if isinstance(completer, LearningCompleter):
            completion = completer.learn(helpers).complete(gains, row_features=problem.candidates.features)
        else:
            completion = completer.complete(gains, None, helpers or None)
        expected = gain.undo(completion.expected(problem.references.weights))
        matrix = None if problem.full_matrix is None else gain.undo(completion.matrix)
    ended = "converged" if completion.converged else "stopped"
    return decoder._decision(
        problem,
        expected,
        f"completed, {ended} after {completion.sweeps} sweeps",
        deciding=problem.target,
        rates=rates,
        matrix=matrix,
        observed=observed,
        guides=tuple(guides),
        details={"completion": completion, "gain": gain},
    )


def guide_gains(problem: Problem, guides: Sequence[ObservedScores]) -> list[ObservedScores]:
    """The guides' scores as gains."""
    return [
        scores.with_values(Gain.of(scorer.utility, scores.values).apply(scores.values))
        for scorer, scores in zip(problem.guides, guides, strict=False)
    ]


def _name(stage: object) -> str:
    """A plan's name: that of a function, or with its settings that of an object."""
    return str(getattr(stage, "__name__", stage))


def _settings(completer: object) -> str:
    """The completer and its settings in one word, e.g. als(rank=8,regularization=0.1,…)."""
    return repr(completer).replace(" ", "")
