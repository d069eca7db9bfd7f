"""N-by-S: every candidate against a sample of the pseudo-references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..config import integer, setting
from ..decision import Decision
from ..scoring import Ask
from .base import Decoder, Problem, Steps
from .draws import Draws


@dataclass(frozen=True)
class NByS(Decoder):
    """MBR with S of the M pseudo-references, the same for all candidates: N·S calls.

    "Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine Translation",
    https://arxiv.org/abs/2108.04718
    """

    num_references: int = setting(
        32, integer(1), help="S, how many of the drawn pseudo-references to use; all if there are no more."
    )

    name: ClassVar[str] = "n-by-s"

    def decide(self, problem: Problem) -> Steps[Decision]:
        draws = Draws.of(problem)
        if self.num_references >= len(draws):
            return (yield from self.exact(problem, problem.target))
        columns, counts = draws.part(0, self.num_references)
        used = int(counts.sum())
        scores = yield Ask.block(problem.target, np.arange(problem.shape[0]), columns)
        return self.decision(
            problem,
            scores @ (counts / used),
            f"{used} of {len(draws)} pseudo-references",
            deciding=problem.target,
            rates=[(problem.target, len(draws) / used)],
        )
