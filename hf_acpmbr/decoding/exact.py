"""The choices that score everything or nothing: full MBR, the distilled utility alone, the oracle, MAP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..decision import Decision
from ..scoring import Utility
from .base import AUTO_REGRET, Decoder, Need, Problem, Steps


@dataclass(frozen=True)
class MBR(Decoder):
    """argmax_i (1/M) Σ_j u(y_i, ŷ_j), the choice that the others approximate.

    "Is MAP Decoding All You Need? The Inadequacy of the Mode in Neural Machine Translation",
    https://arxiv.org/abs/2005.10283
    """

    name: ClassVar[str] = "mbr"

    def loss_bound(self, target: Utility) -> float:
        return AUTO_REGRET * target.scale

    def decide(self, problem: Problem) -> Steps[Decision]:
        return (yield from self.exact(problem, problem.target))


@dataclass(frozen=True)
class DistilledMBR(Decoder):
    """Full MBR with the first guide in the target's place: what AC-PMBR must beat at equal cost.

    `expected` is on the guide's scale. https://arxiv.org/abs/2512.01316
    """

    name: ClassVar[str] = "distilled-mbr"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide"})

    def decide(self, problem: Problem) -> Steps[Decision]:
        return (yield from self.exact(problem, problem.guides[0], "exact on the distilled utility"))


@dataclass(frozen=True)
class Oracle(Decoder):
    """The candidate with the best target score against the real references: an upper bound, not a decoder.

    The real references must be given as `references`; of several the mean score counts.
    """

    name: ClassVar[str] = "oracle"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "references"})

    def decide(self, problem: Problem) -> Steps[Decision]:
        return (yield from self.exact(problem, problem.target, "best against the real references"))


@dataclass(frozen=True)
class MAP(Decoder):
    """The candidate with the highest log-probability; `expected` holds the log-probabilities. No utility is called."""

    name: ClassVar[str] = "map"
    needs: ClassVar[frozenset[Need]] = frozenset({"logprobs"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logprob_weight:
            raise ValueError(f"{self.name} chooses by log-probability alone: leave logprob_weight out")

    def decide(self, problem: Problem) -> Steps[Decision]:
        yield []
        return self.decision(problem, problem.logprobs, "most probable", deciding=None)
