"""In which order pseudo-references are used, and how much each of the first d of them stands for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...candidates import FloatArray, IntArray
from ...config import Configured, integer, number, setting

# More profile columns than this change nothing and cost time.
_PROFILE = 64


@dataclass(frozen=True)
class Calibration(Configured):
    """How the first few pseudo-references are made to stand for all."""

    heavy: int = setting(
        4, integer(0), help="so many that were drawn most come first: a rare one can mislead when it is the only one."
    )
    ridge: float = setting(
        4.0,
        number(0, above=True),
        help="how far the weights may move from those of the sampling, less the larger it is.",
    )


@dataclass(eq=False)
class Columns:
    """The pseudo-references in the order in which they are used, and weights that make the first few stand for all.

    After the most drawn, they come as drawn by weight without replacement. The first d are then nearly a sample whose
    inclusion probabilities are known ("Summarizing data using bottom-k sketches", Cohen & Kaplan 2007), and `weights`
    starts from those. Where pseudo-references are candidates too, the scores of all candidates against the first few
    are a profile of every text, known for the whole population; `weights` are moved so that the sample's mean profile
    comes close to the population's: a calibration estimator ("Calibration estimators in survey sampling", Deville &
    Särndal 1992) in which the matrix itself is the auxiliary variable. A sample that has too many pseudo-references of
    one kind is corrected by that.

    Args:
        shares: (M,) how much every pseudo-reference counts, summing to 1.
        order: (M,) which pseudo-reference comes when.
        arrivals: (M + 1,) when, in that order; infinity at the end.
        candidate: (M,) which candidate has the same text, -1 for none.
        ridge: of the calibration.
    """

    shares: FloatArray
    order: IntArray
    arrivals: FloatArray
    candidate: IntArray
    ridge: float
    _profiles: FloatArray | None = None
    _known: dict[int, FloatArray] = field(default_factory=dict)

    @classmethod
    def draw(
        cls,
        shares: FloatArray,
        ties: IntArray,
        candidate: IntArray,
        random: np.random.Generator,
        calibration: Calibration,
    ) -> Columns:
        """A random order. `ties` is a rank of the texts that does not depend on the order in which they were given."""
        waiting = np.empty(len(shares))
        waiting[np.argsort(ties)] = random.exponential(size=len(shares))
        arrivals = waiting / shares
        arrivals[np.lexsort((arrivals, -shares))[: calibration.heavy]] = 0.0
        order = np.lexsort((waiting, -shares * (arrivals == 0), arrivals))
        return cls(shares, order, np.append(arrivals[order], np.inf), candidate, calibration.ridge)

    def __len__(self) -> int:
        return len(self.order)

    def inclusion(self, depth: int) -> FloatArray:
        """(depth,) how probable it was that each of the first came so early, by its weight."""
        with np.errstate(invalid="ignore", over="ignore"):
            chance = -np.expm1(-self.shares[self.order[:depth]] * self.arrivals[depth])
        return np.where(chance > 0, chance, 1.0)

    def learn(self, scores: FloatArray, rows: IntArray, size: int) -> None:
        """Take (k, d) scores of candidates `rows` (of `size`) against the first d as the profiles of their texts."""
        scores = scores[:, :_PROFILE]
        holds = np.full(size, -1)
        holds[rows] = np.arange(len(rows))
        place = np.where(self.candidate >= 0, holds[self.candidate], -1)
        known = place >= 0
        share = np.bincount(place[known], weights=self.shares[known], minlength=len(rows)).astype(np.float64)
        self._known.clear()
        self._profiles = None
        if share.sum() <= 0:
            return
        share /= share.sum()
        centred = scores - share @ scores
        spread = float(np.sqrt((share @ np.square(centred)).mean()))
        if spread > 1e-12 * max(1.0, float(np.abs(scores).max())):
            self._profiles = np.where(known[:, None], centred[place] / spread, 0.0)

    def weights(self, depth: int) -> FloatArray:
        """(depth,) what each of the first stands for, summing to 1; the shares themselves when all are used."""
        if depth not in self._known:
            self._known[depth] = self._calibrated(depth)
        return self._known[depth]

    def _calibrated(self, depth: int) -> FloatArray:
        start = self.shares[self.order[:depth]] / self.inclusion(depth)
        start /= start.sum()
        if self._profiles is None or depth in (1, len(self)):
            return start
        profiles = self._profiles[self.order[:depth]]
        width = profiles.shape[1]
        system = profiles.T @ profiles / width + self.ridge / depth * np.eye(width)
        moved = start - profiles @ np.linalg.solve(system, profiles.T @ start) / width
        return np.asarray(moved / moved.sum())

    def excess(self, depth: int) -> FloatArray:
        """(depth,) what each stands for beyond its own share."""
        return np.asarray(self.weights(depth) - self.shares[self.order[:depth]])

    def doubt(self, depth: int) -> float:
        """The variance of a weighted mean of the first few against that of all, for entries of variance 1."""
        unseen = self.shares[self.order[depth:]]
        return float(np.square(self.excess(depth)).sum() + np.square(unseen).sum())
