"""Full MBR: every candidate against every pseudo-reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Decoder, exact_decision
from .decision import Decision
from .problem import Problem


@dataclass(frozen=True)
class MBR(Decoder):
    """argmax_i (1/M) Σ_j u(y_i, ŷ_j), the choice that the others approximate.

    "Is MAP Decoding All You Need? The Inadequacy of the Mode in Neural Machine Translation",
    https://arxiv.org/abs/2005.10283
    """

    name: ClassVar[str] = "mbr"

    def _decide(self, problem: Problem) -> Decision:
        return exact_decision(self, problem, problem.target)
