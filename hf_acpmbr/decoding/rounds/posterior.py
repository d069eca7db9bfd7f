"""What is believed of every candidate's expected gain: a distribution each, from a prior that all of them share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...candidates import FloatArray, IntArray

# Resolution: twice the points or twice the steps change stated regrets by less than 2%.
_POINTS, _STEPS = 64, 20
# How many of the best rows say how far the next better one can be.
_TOP = 1 / 8


@dataclass(frozen=True, eq=False)
class Beliefs:
    """One distribution per candidate, on a grid of gains.

    Expected gains are not normal: most candidates are about as good as the best, some are far worse. A normal prior
    then promises candidates that nobody has seen yet, each better than the best. So the prior is estimated from the
    candidates themselves (Kiefer & Wolfowitz 1956, by a few steps of EM), and above the best row seen it has what
    exchangeability says: the next of n + 1 candidates is the best with probability 1 / (n + 1), and better by as much
    as the best rows differ.

    Args:
        grid: (G,) gains.
        chances: (N, G) of each candidate.
        center, deviation: (N,).
        sharp: (N,) candidates whose own scores tell more than the grid can; theirs are normal.
    """

    grid: FloatArray
    chances: FloatArray
    center: FloatArray
    deviation: FloatArray
    sharp: np.ndarray[tuple[int], np.dtype[np.bool_]]

    @classmethod
    def of(cls, means: FloatArray, errors: FloatArray, expected: FloatArray) -> Beliefs:
        """From (N,) measured means with the variances of their errors, infinite for candidates without scores.

        `expected` is what was known of each before: a second, noisy measurement, whose noise is learnt.
        """
        seen = np.isfinite(errors)
        grid, tail = _grid(means[seen])
        width = grid[1] - grid[0]
        logs = np.zeros((len(means), _POINTS))
        blur = np.maximum(errors[seen], (0.5 * width) ** 2)
        logs[seen] = -0.5 * np.square(means[seen, None] - grid) / blur[:, None]
        logs += _foreknown(means[seen], errors[seen], expected[seen], expected, grid)
        likely = np.exp(logs - logs.max(axis=1, keepdims=True))
        prior = np.full(_POINTS, 1.0 / _POINTS)
        for _ in range(_STEPS):
            prior = _normalised(likely * prior).mean(axis=0)
        chances = _normalised(likely * ((1.0 - tail.sum()) * prior + tail))
        center = chances @ grid
        variance = np.maximum(chances @ np.square(grid - grid[0]) - np.square(center - grid[0]), 0.0)
        sharp = errors < (2 * width) ** 2
        return cls(grid, chances, np.where(sharp, means, center), np.sqrt(np.where(sharp, errors, variance)), sharp)

    def draw(self, who: IntArray, normal: FloatArray) -> FloatArray:
        """(B, k) gains of the candidates `who`, from (B, k) standard normal numbers that may depend on each other."""
        from scipy.special import ndtr  # changes warning filters when it is imported

        edges = np.concatenate([self.grid[:1], (self.grid[1:] + self.grid[:-1]) / 2, self.grid[-1:]])
        gains = self.center[who] + self.deviation[who] * normal
        for k in np.flatnonzero(~self.sharp[who]).tolist():
            levels = np.concatenate([[0.0], np.cumsum(self.chances[who[k]])])
            gains[:, k] = np.interp(ndtr(normal[:, k]), levels / levels[-1], edges)
        return gains


def _grid(means: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Points from the worst row to beyond the best, and the chances of a new candidate beyond it."""
    ordered = np.sort(means)[::-1]
    best = ordered[: max(2, int(_TOP * len(ordered)))]
    beyond = max(float(best.mean() - best[-1]), 1e-9 * max(1.0, abs(float(best[0]))))
    grid = np.linspace(ordered[-1], ordered[0] + 3 * beyond, _POINTS)
    tail = np.where(grid > ordered[0], np.exp(-np.maximum(grid - ordered[0], 0.0) / beyond), 0.0)
    return grid, np.asarray(tail / tail.sum() / (len(ordered) + 1))


def _foreknown(
    means: FloatArray, errors: FloatArray, expected: FloatArray, of_all: FloatArray, grid: FloatArray
) -> FloatArray:
    """(N, G) log-likelihood of what was expected of each candidate, given its gain: a line plus noise."""
    spread, error = float(means.var()), float(errors.mean())
    if spread <= 0 or float(expected.var()) <= 0:
        return np.zeros((len(of_all), len(grid)))
    covariance = float(np.mean((expected - expected.mean()) * (means - means.mean())))
    slope = min(covariance / max(spread - error, 0.2 * spread), 1.0)
    start = float(expected.mean() - slope * means.mean())
    left = float(np.square(expected - start - slope * means).mean())
    noise = max(left - slope**2 * error, 0.3 * left, (slope * (grid[1] - grid[0])) ** 2, 1e-30)
    return np.asarray(-0.5 * np.square(of_all[:, None] - start - slope * grid) / noise)


def _normalised(rows: FloatArray) -> FloatArray:
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))
