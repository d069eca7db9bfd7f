"""MAP: the most probable candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Decoder, Problem
from .decision import Decision


@dataclass(frozen=True)
class MAP(Decoder):
    """The candidate with the highest log-probability; `expected` holds the log-probabilities. No utility is called."""

    name: ClassVar[str] = "map"
    needs: ClassVar[frozenset[str]] = frozenset({"logprobs"})

    def _decide(self, problem: Problem) -> Decision:
        assert problem.candidates.logprobs is not None
        return self._decision(problem, problem.candidates.logprobs, "most probable", deciding=None)
