"""MAP: the most probable candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Decoder, Need
from .decision import Decision
from .problem import Problem


@dataclass(frozen=True)
class MAP(Decoder):
    """The candidate with the highest log-probability; `expected` holds the log-probabilities. No utility is called."""

    name: ClassVar[str] = "map"
    needs: ClassVar[frozenset[Need]] = frozenset({"logprobs"})

    def _decide(self, problem: Problem) -> Decision:
        return self._decision(problem, problem.logprobs, "most probable", deciding=None)
