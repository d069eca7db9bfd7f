"""N-by-S: every candidate against a sample of the pseudo-references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ._checks import check_whole
from ._draws import Draws
from .base import Decoder, Problem, exact_decision
from .decision import Decision


@dataclass(frozen=True)
class NByS(Decoder):
    """MBR with S of the M pseudo-references, the same for all candidates: N·S calls.

    "Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine Translation",
    https://arxiv.org/abs/2108.04718

    Args:
        num_references: S, how many of the drawn pseudo-references to use; all if there are no more.
    """

    num_references: int = 32

    name: ClassVar[str] = "n-by-s"

    def __post_init__(self) -> None:
        check_whole("num_references", self.num_references, 1, "pseudo-references for each candidate")

    def _decide(self, problem: Problem) -> Decision:
        assert problem.target is not None
        draws = Draws.of(problem)
        if self.num_references >= len(draws):
            return exact_decision(self, problem, problem.target)
        columns, counts = draws.part(0, self.num_references)
        scores = problem.score_block(problem.target, np.arange(problem.shape[0]), columns)
        return self._decision(
            problem,
            scores @ (counts / self.num_references),
            f"{self.num_references} of {len(draws)} pseudo-references",
            deciding=problem.target,
            rates=[(problem.target, len(draws) / self.num_references)],
        )
