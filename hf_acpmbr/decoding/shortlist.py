"""A cheap utility chooses the candidates that the target scores: coarse-to-fine and quality estimation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import flag, integer, optional, setting
from ..decision import Decision
from ..scoring import Ask, Scorer
from .base import Decoder, Need, Problem, Steps, gains
from .draws import Draws


@dataclass(frozen=True)
class CoarseToFine(Decoder):
    """MBR with the first guide on all candidates, then MBR with the target on the best of them.

    "Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine Translation",
    https://arxiv.org/abs/2108.04718
    """

    keep: int = setting(32, integer(1), help="how many candidates the target scores.")
    coarse_references: int | None = setting(
        None, optional(integer(1)), help="with how many of the drawn pseudo-references the guide judges; None for all."
    )
    fine_references: int | None = setting(
        None, optional(integer(1)), help="with how many the target judges; None for all."
    )

    name: ClassVar[str] = "coarse-to-fine"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "guide"})

    def decide(self, problem: Problem) -> Steps[Decision]:
        n, guide = problem.shape[0], problem.guides[0]
        if self.keep < n:
            coarse = yield from sampled_means(problem, guide, np.arange(n), self.coarse_references, stage=0)
            coarse = gains(guide.utility, coarse)
        else:
            coarse = np.zeros(n)
        shortlist = problem.shortlist(coarse, guide, self.keep)
        means = yield from sampled_means(problem, problem.target, shortlist, self.fine_references, stage=1)
        return self.shortlist_decision(problem, shortlist, means, coarse)


@dataclass(frozen=True)
class QERerank(Decoder):
    """The candidate with the best reference-free score: N calls, no pseudo-references.

    "Quality-Aware Decoding for Neural Machine Translation", https://arxiv.org/abs/2205.00978
    """

    name: ClassVar[str] = "qe"

    def decide(self, problem: Problem) -> Steps[Decision]:
        scores = yield ask_quality(self.name, problem.target, "target")
        return self.decision(
            problem,
            scores[:, 0],
            "reference-free scores",
            deciding=problem.target,
            rates=[(problem.target, float(problem.drawn[1]))],
        )


@dataclass(frozen=True)
class QEFilterMBR(Decoder):
    """Keep the best candidates by a reference-free utility (the first guide), then MBR with the target among them.

    "Quality-Aware Decoding for Neural Machine Translation", https://arxiv.org/abs/2205.00978
    """

    keep: int = setting(32, integer(1), help="how many candidates stay.")
    filter_references: bool = setting(
        True,
        flag,
        help="the candidates that stay are also the only pseudo-references, as in the paper: keep² "
        "calls. With False, or where other pseudo-references were given, they meet all "
        "pseudo-references.",
    )

    name: ClassVar[str] = "qe-filter"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "guide"})

    def decide(self, problem: Problem) -> Steps[Decision]:
        guide = problem.guides[0]
        scores = yield ask_quality(self.name, guide, "first guide")
        judged = gains(guide.utility, scores[:, 0])
        shortlist = problem.shortlist(judged, guide, self.keep)
        both = self.filter_references and problem.references is problem.candidates
        columns = shortlist if both else np.arange(problem.shape[1])
        weights = problem.references.weights[columns]
        scores = yield Ask.block(problem.target, shortlist, columns)
        return self.shortlist_decision(problem, shortlist, scores @ (weights / weights.sum()), judged)


def sampled_means(
    problem: Problem, scorer: Scorer, rows: IntArray, references: int | None, stage: int
) -> Steps[FloatArray]:
    """Ask for (len(rows),) mean scores of candidates against a number of the drawn pseudo-references (None: all)."""
    draws = Draws.of(problem, stage)
    used = len(draws) if references is None else min(references, len(draws))
    columns, counts = draws.part(0, used)
    scores = yield Ask.block(scorer, rows, columns)
    return np.asarray(scores @ (counts / counts.sum()))


def ask_quality(decoder: str, scorer: Scorer, role: str) -> Ask:
    """Ask for (n, 1) reference-free scores, whose column is a formality; refuse a utility that compares."""
    if scorer.utility.needs_reference:
        raise ValueError(
            f"{decoder} needs a reference-free utility (quality estimation) as its {role}, but "
            f"{scorer.utility.name!r} compares with a reference: give one such as 'cometkiwi', "
            "or set needs_reference = False on your own Utility"
        )
    return Ask.block(scorer, columns=np.zeros(1, dtype=np.int64))
