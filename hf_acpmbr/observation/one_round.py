"""A mask is a plan of one round."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import IntArray
from ..matrix import Pairs
from ..protocols import Plan, Posterior, View
from ..stage import Stage


@dataclass(frozen=True)
class Mask(Stage):
    """All pairs are chosen before anything is known; guides and target can be scored at the same time."""

    in_rounds: ClassVar[bool] = False

    @abstractmethod
    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """`budget` of the N·M pairs."""

    def plan(self, view: View, budget: int, seed: int) -> Plan:
        """The mask as a plan."""
        return OneRound(self.mask(view.shape, budget, seed))


@dataclass(eq=False)
class OneRound:
    """Asks for all its pairs at once; the candidates are ranked by their means."""

    pairs: Pairs
    status: str | None = None
    rounds: tuple[int, ...] = ()

    def next(self, posterior: Posterior) -> Pairs:
        """All pairs, then none."""
        pairs, self.pairs = self.pairs, Pairs.none(self.pairs.shape)
        return pairs

    def ranking(self, posterior: Posterior) -> IntArray:
        """(N,) candidates by mean, ties in the order of appearance."""
        return np.argsort(-posterior.mean, kind="stable")
