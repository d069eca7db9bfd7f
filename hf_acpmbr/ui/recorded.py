"""Who took part in which round: an observation that keeps what its plan asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ..candidates import IntArray
from ..decoding.base import Decoder
from ..decoding.completing import PMBR
from ..matrix import Pairs
from ..protocols import Observation, Plan, Posterior, View


@dataclass(frozen=True)
class Round:
    """One round: the candidates that took part and how many pairs of each were scored."""

    candidates: IntArray
    pairs: IntArray


@dataclass(eq=False)
class _RecordedPlan:
    plan: Plan
    log: list[Round]

    @property
    def status(self) -> str | None:
        return self.plan.status

    @property
    def rounds(self) -> tuple[int, ...]:
        return self.plan.rounds

    def next(self, posterior: Posterior) -> Pairs:
        pairs = self.plan.next(posterior)
        if len(pairs):
            self.log.append(Round(*np.unique(pairs.rows, return_counts=True)))
        return pairs

    def ranking(self, posterior: Posterior) -> IntArray:
        return self.plan.ranking(posterior)


@dataclass(eq=False)
class Recorded:
    """An observation in rounds that does what `inner` does, and keeps who took part; it has the same signature."""

    inner: Observation
    log: list[Round] = field(default_factory=list)

    name: ClassVar[str] = "recorded"
    in_rounds: ClassVar[bool] = True

    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        return self.inner.mask(shape, budget, seed)

    def plan(self, view: View, budget: int, seed: int) -> _RecordedPlan:
        return _RecordedPlan(self.inner.plan(view, budget, seed), self.log)

    def __str__(self) -> str:
        return str(self.inner)


def recorded(decoder: Decoder) -> tuple[Decoder, list[Round]]:
    """The decoder with its rounds kept in the list, which stays empty for decoders without rounds."""
    if not isinstance(decoder, PMBR) or not decoder.observation.in_rounds:
        return decoder, []
    observation = Recorded(decoder.observation)
    return replace(decoder, observation=observation), observation.log
