"""What is known beforehand of a square score matrix: u(y, y) is no ordinary score, and some utilities are symmetric."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...candidates import FloatArray, IntArray
from ...matrix import ObservedScores, Pairs

_TWINS_NEEDED = 4  # pairs seen both ways round: fewer could agree by chance
_ROUNDING = 1e-3  # share of the scores' variance above which differences between twins are no rounding


@dataclass(frozen=True, eq=False)
class Split:
    """Scores between different texts, and the scores of texts with themselves.

    Args:
        between: the entries off the diagonal (all of them where the matrix is not square).
        own: (k,) candidates whose score with themselves was observed.
        own_values: (k,) these scores.
    """

    between: ObservedScores
    own: IntArray
    own_values: FloatArray

    @classmethod
    def of(cls, scores: ObservedScores) -> Split:
        diagonal = scores.rows == scores.columns
        n, m = scores.shape
        if n != m or diagonal.all():
            return cls(scores, np.empty(0, dtype=np.int64), np.empty(0))
        keep = ~diagonal
        pairs = Pairs(scores.rows[keep], scores.columns[keep], scores.shape)
        return cls(ObservedScores(pairs, scores.values[keep]), scores.rows[diagonal], scores.values[diagonal])

    def scaled(self, center: float, scale: float) -> Split:
        """Subtract `center` from every score and divide by `scale`."""
        between = self.between.with_values((self.between.values - center) / scale)
        return Split(between, self.own, (self.own_values - center) / scale)


def own_scores(split: Split, predicted: FloatArray) -> FloatArray | None:
    """Return the (N,) diagonal from a few observed entries of it; None without any.

    Either all texts score about the same with themselves, or each scores about a constant more than the model of the
    other entries says (`predicted`, (N,)): whichever leaves less variance.
    """
    if not len(split.own):
        return None
    excess = split.own_values - predicted[split.own]
    if split.own_values.var() <= excess.var():
        diagonal = np.full(len(predicted), split.own_values.mean())
    else:
        diagonal = predicted + excess.mean()
    diagonal[split.own] = split.own_values
    return diagonal


def mirrored(scores: ObservedScores) -> ObservedScores:
    """Add the transposed entries, if pairs seen both ways round show that the utility is symmetric up to rounding."""
    n, m = scores.shape
    flat, twin = scores.pairs.flat, scores.columns * m + scores.rows
    if n != m or not len(scores):
        return scores
    place = np.minimum(np.searchsorted(flat, twin), len(flat) - 1)
    known = flat[place] == twin
    pairs = known & (scores.rows < scores.columns)
    if np.count_nonzero(pairs) < _TWINS_NEEDED:
        return scores
    difference = scores.values[pairs] - scores.values[place[pairs]]
    if np.square(difference).mean() / 2 > _ROUNDING * scores.values.var():
        return scores
    both = np.concatenate([flat, twin[~known]])
    values = np.concatenate([scores.values, scores.values[~known]])
    order = np.argsort(both, kind="stable")
    return ObservedScores(Pairs.from_flat(both[order], scores.shape), values[order])
