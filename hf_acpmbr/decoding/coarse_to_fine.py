"""Coarse-to-fine: a cheap utility chooses the candidates that the target scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import integer, optional, setting
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


def sampled_means(
    problem: Problem, scorer: Scorer, rows: IntArray, references: int | None, stage: int
) -> Steps[FloatArray]:
    """Ask for (len(rows),) mean scores of candidates against a number of the drawn pseudo-references (None: all)."""
    draws = Draws.of(problem, stage)
    used = len(draws) if references is None else min(references, len(draws))
    columns, counts = draws.part(0, used)
    scores = yield Ask.block(scorer, rows, columns)
    return np.asarray(scores @ (counts / counts.sum()))
