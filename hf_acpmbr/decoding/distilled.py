"""MBR with the distilled utility alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Decoder, Need, exact_decision
from .decision import Decision
from .problem import Problem


@dataclass(frozen=True)
class DistilledMBR(Decoder):
    """Full MBR with the first guide in the target's place: what AC-PMBR must beat at equal cost.

    `expected` is on the guide's scale. https://arxiv.org/abs/2512.01316
    """

    name: ClassVar[str] = "distilled-mbr"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide"})

    def _decide(self, problem: Problem) -> Decision:
        return exact_decision(self, problem, problem.guides[0], status="exact on the distilled utility")
