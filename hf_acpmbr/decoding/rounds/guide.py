"""A guide beside the rounds: its scores of all candidates against more and more pseudo-references."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...candidates import FloatArray, IntArray
from ...matrix import ObservedScores
from ...scoring import Ask, Scorer
from ..base import Problem, Steps, gains


@dataclass(eq=False)
class Guide:
    """The scorer, the (N, k) gains of all candidates against the first k columns, and how large k may get."""

    scorer: Scorer
    block: FloatArray
    most: int

    @property
    def width(self) -> int:
        return int(self.block.shape[1])

    def scores(self, order: IntArray, columns: int) -> ObservedScores:
        """Its scores so far, with the columns (of so many) in this order."""
        n = len(self.block)
        rows, places = np.repeat(np.arange(n), self.width), np.tile(order[: self.width], n)
        values = gains(self.scorer.utility, self.block).ravel()
        return ObservedScores.unsorted(rows, places, values, (n, columns))

    def extend(self, problem: Problem, order: IntArray, share: float) -> Steps[None]:
        """Score the columns of `order` that are new, or as many as a share of the time limit allows, at least one."""
        n, meter = len(self.block), problem.meter
        new = len(order) - self.width if meter.limit == math.inf else 1
        while new:
            block = yield Ask.block(self.scorer, np.arange(n), order[self.width : self.width + new])
            self.block = np.concatenate([self.block, gains(self.scorer.utility, block)], axis=1)
            new = meter.affords(self.scorer, (len(order) - self.width) * n, share) // n

    def agreement(self, values: FloatArray, rows: IntArray, places: IntArray) -> float:
        """Correlation with the target's gains, within columns; 1 before there is anything to compare."""
        both = places < self.width
        if not both.any():
            return 1.0
        places = places[both]
        pair = np.stack([values[both], self.block[rows[both], places]])
        sums = np.stack([np.bincount(places, each) for each in pair])
        pair -= (sums / np.maximum(np.bincount(places), 1))[:, places]
        size = float(np.sqrt(np.square(pair).sum(axis=1).prod()))
        return float(pair[0] @ pair[1]) / size if size > 0 else 0.0
