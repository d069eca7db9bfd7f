"""Oracle: the candidate with the best target score against the real reference. An upper bound, not a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Decoder, Need, exact_decision
from .decision import Decision
from .problem import Problem


@dataclass(frozen=True)
class Oracle(Decoder):
    """argmax_i of the target's mean score against the real references, which must be given as `references`."""

    name: ClassVar[str] = "oracle"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "references"})

    def _decide(self, problem: Problem) -> Decision:
        return exact_decision(self, problem, problem.target, status="best against the real references")
