"""Coarse-to-fine: a cheap utility chooses the candidates that the target scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..utilities import Scorer
from ._checks import check_whole
from ._draws import Draws
from ._kept import kept_decision
from ._ranking import gains, top
from .base import Decoder, Problem
from .decision import Decision


@dataclass(frozen=True)
class CoarseToFine(Decoder):
    """MBR with the first guide on all candidates, then MBR with the target on the best of them.

    "Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine Translation",
    https://arxiv.org/abs/2108.04718

    Args:
        keep: how many candidates the target scores.
        coarse_references: with how many of the drawn pseudo-references the guide judges; None for all.
        fine_references: with how many the target judges; None for all.
    """

    keep: int = 32
    coarse_references: int | None = None
    fine_references: int | None = None

    name: ClassVar[str] = "coarse-to-fine"
    needs: ClassVar[frozenset[str]] = frozenset({"target", "guide"})

    def __post_init__(self) -> None:
        check_whole("keep", self.keep, 1, "candidates that the target scores")
        for field in ("coarse_references", "fine_references"):
            if getattr(self, field) is not None:
                check_whole(field, getattr(self, field), 1, "pseudo-references, or None for all")

    def _decide(self, problem: Problem) -> Decision:
        assert problem.target is not None
        n, guide = problem.shape[0], problem.guides[0]
        if self.keep < n:
            coarse = sampled_means(problem, guide, np.arange(n), self.coarse_references, stage=0)
            coarse = gains(guide.utility, coarse)
        else:
            coarse = np.zeros(n)
        kept = top(coarse, self.keep)
        means = sampled_means(problem, problem.target, kept, self.fine_references, stage=1)
        return kept_decision(self, problem, kept, means, coarse)


def sampled_means(problem: Problem, scorer: Scorer, rows: IntArray, references: int | None, stage: int) -> FloatArray:
    """(len(rows),) mean scores of some candidates against so many of the drawn pseudo-references (None: all)."""
    draws = Draws.of(problem, stage)
    used = len(draws) if references is None else min(references, len(draws))
    columns, counts = draws.part(0, used)
    return problem.score_block(scorer, rows, columns) @ (counts / used)
