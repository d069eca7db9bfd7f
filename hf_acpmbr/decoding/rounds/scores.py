"""Scores of one utility so far: a prefix of the columns for every candidate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...candidates import FloatArray, IntArray

_SWEEPS, _STEPS = 2, 4
# Candidates differ at least this share of what their means vary.
_LEAST_ROWS = 0.02
_TINY = 1e-18


def unit_of(values: FloatArray) -> float:
    """Return the power of 2 next to what values differ by, or to their size if they do not."""
    size = float(np.abs(values - values.mean()).max()) or float(np.abs(values).max())
    return 2.0 ** math.floor(math.log2(size)) if size > 0 else 1.0


@dataclass(eq=False)
class RaggedScores:
    """Gains of candidate `rows[k]` against the pseudo-reference at place `places[k]`, by row and then place.

    Args:
        depth: (n,) how many columns each candidate has.
    """

    depth: IntArray
    rows: IntArray
    places: IntArray
    values: FloatArray

    @classmethod
    def none(cls, candidates: int) -> RaggedScores:
        """Make the start: nothing is scored."""
        empty = np.empty(0, dtype=np.int64)
        return cls(np.zeros(candidates, dtype=np.int64), empty, empty, np.empty(0))

    def __post_init__(self) -> None:
        self.start = np.cumsum(self.depth) - self.depth

    def missing(self, rows: IntArray, depth: IntArray) -> tuple[IntArray, IntArray]:
        """Return rows and places of what candidates need to reach a depth each."""
        counts = np.maximum(depth - self.depth[rows], 0)
        new = np.repeat(rows, counts)
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return new, places + self.depth[new]

    def with_new(self, rows: IntArray, places: IntArray, values: FloatArray) -> RaggedScores:
        """Return it with more scores; with them every candidate must have a prefix again."""
        rows = np.concatenate([self.rows, rows])
        places = np.concatenate([self.places, places])
        order = np.argsort(rows * (1 + places.max(initial=0)) + places, kind="stable")  # merges what is sorted
        depth = np.bincount(rows, minlength=len(self.depth))
        return RaggedScores(depth, rows[order], places[order], np.concatenate([self.values, values])[order])

    def without(self, places: IntArray) -> RaggedScores:
        """Leave out columns; those behind them move up."""
        kept = ~np.isin(self.places, places)
        rows, left = self.rows[kept], self.places[kept]
        moved = left - np.searchsorted(np.sort(places), left)
        return RaggedScores(np.bincount(rows, minlength=len(self.depth)), rows, moved, self.values[kept])

    def block(self, rows: IntArray, depth: int, values: FloatArray | None = None) -> FloatArray:
        """Return (k, depth) the first values of candidates that have so many; default: their scores."""
        values = self.values if values is None else values
        if len(rows) == len(self.depth) and len(values) == depth * len(rows) and (np.diff(rows) > 0).all():
            return values.reshape(-1, depth)  # without a copy
        return np.asarray(values[self.start[rows, None] + np.arange(depth)])

    def at(self, other: RaggedScores) -> FloatArray:
        """Return the scores at the entries of `other`, all of which must be here."""
        return np.asarray(self.values[self.start[other.rows] + other.places])


@dataclass(eq=False)
class Effects:
    """score = mean + candidate + column + noise, the candidates and columns as random effects.

    Those that look good on the first columns meet the later ones, so later columns look easy: what they are compared
    with is a selection. Least squares takes the selection's luck for quality. With effects that have a distribution
    (Henderson's mixed model) luck is expected to be luck, and later columns are held against all of the earlier ones.

    The scores of texts against themselves follow another rule: typical ones are put in their places.

    Args:
        row: (n,) mean and effect of the candidates, by their own scores alone.
        column: (K,) effects of the columns.
        mean, noise, of_rows, of_columns: the mean, and the variances.
    """

    row: FloatArray
    column: FloatArray
    mean: float = 0.0
    noise: float = 0.0
    of_rows: float = 0.0
    of_columns: float = 0.0

    @classmethod
    def fit(
        cls,
        scores: RaggedScores,
        values: FloatArray,
        own: IntArray,
        before: Effects | None,
        sweeps: int = _SWEEPS,
        steps: int = _STEPS,
    ) -> Effects:
        """Fit by a few sweeps over effects, means and variances, starting from the effects of before.

        Each sweep takes the variances as known and solves the mixed model's equations by steps of backfitting.
        """
        depth, rows, places = scores.depth, scores.rows, scores.places
        n, width, seen = len(depth), int(depth.max()), depth > 0
        itself = places == own[rows]
        per_row, per_column = np.maximum(depth, 1), np.bincount(places, minlength=width)
        now = before or _start(scores, values, itself)
        column = np.append(now.column, np.zeros(width))[:width]
        row = now.row
        filled = values.copy()
        for _ in range(sweeps):
            filled[itself] = (row[rows] + column[places])[itself]
            noise = max(now.noise, _TINY)
            row_ridge = noise / max(now.of_rows, _TINY * noise)
            column_ridge = noise / max(now.of_columns, _TINY * noise)
            row_sum = np.bincount(rows, filled - now.mean, n)
            column_sum = np.bincount(places, filled - now.mean, width)
            for _ in range(steps):
                effect = (row_sum - np.append(0.0, np.cumsum(column))[depth]) / (per_row + row_ridge)
                left = column_sum - np.bincount(places, effect[rows], width)
                column = left / (per_column + column_ridge)
            mean = now.mean + float(column.mean())  # the equations leave none; a guide's slope may have changed
            of_columns = max(float((np.square(left / per_column) - noise / per_column).mean()), 0.0)
            column = column - column.mean()
            total = np.append(0.0, np.cumsum(column))[depth]
            row = mean + np.where(seen, (row_sum + depth * (now.mean - mean) - total) / per_row, 0.0)
            residual = (filled - row[rows] - column[places])[~itself]
            degrees = max(len(residual) - int(seen.sum()) - int((per_column > 1).sum()), 1)
            noise = float(residual @ residual) / degrees
            error, varied = noise / per_row[seen], float(row[seen].var())
            of_rows = max(varied - float(error.mean()), _LEAST_ROWS * varied)
            mean = float(np.average(row[seen], weights=1 / (of_rows + error + _TINY)))
            now = cls(row, column, mean, noise, of_rows, of_columns)
        return now

    def times(self, slope: float) -> Effects:
        """Return the effects of scores times `slope`."""
        return Effects(slope * self.row, slope * self.column)


def _start(scores: RaggedScores, values: FloatArray, itself: npt.NDArray[np.bool_]) -> Effects:
    width = int(scores.depth.max())
    rows, places, others = scores.rows[~itself], scores.places[~itself], values[~itself]
    mean = float(others.mean()) if len(others) else 0.0
    column = np.bincount(places, others - mean, width) / np.maximum(np.bincount(places, minlength=width), 1)
    left, n = others - mean - column[places], len(scores.depth)
    row = mean + np.bincount(rows, left, n) / np.maximum(np.bincount(rows, minlength=n), 1)
    variance = float(left.var()) if len(left) else 0.0
    return Effects(row, column, mean, variance, variance, float(column.var()) + variance)
