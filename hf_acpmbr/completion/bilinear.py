"""Variational Bayes for a matrix with row effects, column effects and a low-rank part.

    x_ij = a_i + c_j + u_iᵀv_j + ε_ij,   ε ~ N(0, σ²),
    a_i ~ N(ā_i, τ_a),  c_j ~ N(c̄_j, τ_c),  u_ik ~ N(ū_ik, τ_k),  v_jk ~ N(v̄_jk, τ′_k)

with q(rows)·q(columns) in the place of the posterior. A half-sweep is the one of ALS with Σ E[v vᵀ] instead of Σ v vᵀ
and with a ridge of its own for every factor; the variances are the expected squares under q, so a factor that the
scores do not support shrinks away ("Variational Bayesian Approach to Movie Rating Prediction", Lim & Teh 2007).

Rows are kept as (a_i, u_i, 1) and columns as (1, v_j, c_j): their inner product is the whole prediction. The long axis
comes last, (d+2, N), as in `normal_equations`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from .normal_equations import DenseSums, Observations, SparseSums

_CHUNK = 2**18  # entries predicted at a time: 20 MB of vectors per side at rank 8
_INVERSE_CHUNK = 256  # systems inverted at a time, so that they stay in the processor's cache
_FLOOR = 1e-9  # of variances of scores whose variance is 1, so that no division is by 0
# The noise starts at this share of what is left to explain: at 1 the low-rank part comes too late, and without a guide
# the error was 1.9 times as high at r=32 and 1.5 times at r=128 (docs/beyond_the_paper.md has the matrices).
_NOISE_SHARE = 0.1


@cache
def _triangle(size: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return rows and columns of a packed upper triangle, and the (size, size) places of all entries in it."""
    first, second = np.triu_indices(size)
    place = np.empty((size, size), dtype=np.intp)
    place[first, second] = place[second, first] = np.arange(len(first))
    return first, second, place


@dataclass(frozen=True, eq=False)
class Prior:
    """Means (d+1, n) of one side's effect and factors, and their variances (d+1,)."""

    mean: FloatArray
    variance: FloatArray


@dataclass(frozen=True, eq=False)
class Block:
    """The posterior of one side: means (d+1, n) and covariances (d+1, d+1, n) of its effect and its factors.

    Rows have the effect first and the fixed 1 last, columns the fixed 1 first and the effect last.
    """

    mean: FloatArray
    covariance: FloatArray
    is_rows: bool

    @classmethod
    def at(cls, mean: FloatArray, is_rows: bool) -> Block:
        """Make a block without uncertainty."""
        d, n = mean.shape
        return cls(mean, np.zeros((d, d, n)), is_rows)

    @cached_property
    def vectors(self) -> FloatArray:
        """(d+2, n) with the fixed 1."""
        one = np.ones((1, self.mean.shape[1]))
        return np.concatenate([self.mean, one] if self.is_rows else [one, self.mean])

    @cached_property
    def packed_moments(self) -> FloatArray:
        """((d+2)(d+3)/2, n) the upper triangle of E[vector vectorᵀ]."""
        size = len(self.vectors)
        first, second, _ = _triangle(size)
        moments = self.vectors[first] * self.vectors[second]
        fixed = size - 1 if self.is_rows else 0
        free = (first != fixed) & (second != fixed)
        shift = 0 if self.is_rows else 1
        moments[free] += self.covariance[first[free] - shift, second[free] - shift]
        return np.asarray(moments)


@dataclass(frozen=True, eq=False)
class Sums:
    """Σ_j E[vector vectorᵀ] (packed) and Σ_j x_ij E[vector] over the observed entries of every row (or column)."""

    packed: FloatArray
    moment: FloatArray

    @classmethod
    def over(cls, side: SparseSums | DenseSums, fixed: Block) -> Sums:
        packed, moment = side.sums(fixed.packed_moments, fixed.vectors)
        return cls(np.asarray(packed, dtype=np.float64), np.asarray(moment, dtype=np.float64))

    def posterior(self, prior: Prior, noise: float, seen: npt.NDArray[np.bool_], is_rows: bool) -> Block:
        """Return means and covariances of the moving side; rows without a score keep their prior."""
        size = len(self.moment)
        free = np.arange(size - 1) + (0 if is_rows else 1)
        constant = size - 1 if is_rows else 0
        place = _triangle(size)[2]
        every = bool(seen.all())
        packed, moment, center = (a if every else a[:, seen] for a in (self.packed, self.moment, prior.mean))
        precision = 1.0 / prior.variance
        covariance = packed[place[np.ix_(free, free)]]
        covariance /= noise
        covariance.reshape(-1, covariance.shape[2])[::size] += precision[:, None]
        invert(covariance)
        right = (moment[free] - packed[place[free, constant]]) / noise + center * precision[:, None]
        mean = np.einsum("abn,bn->an", covariance, right)
        if every:
            return Block(mean, covariance, is_rows)
        block = Block(prior.mean.copy(), np.diag(prior.variance)[:, :, None].repeat(len(seen), axis=2), is_rows)
        block.mean[:, seen], block.covariance[:, :, seen] = mean, covariance
        return block

    def squared_error(self, moving: Block, square_sum: float) -> float:
        """Return E Σ_obs (x − prediction)², from the sums alone."""
        first, second, _ = _triangle(len(self.moment))
        twice = np.where(first == second, 1.0, 2.0)
        quadratic = twice @ np.einsum("pn,pn->p", self.packed, moving.packed_moments)
        return max(square_sum + float(quadratic - 2 * np.vdot(self.moment, moving.vectors)), 0.0)


@dataclass(frozen=True, eq=False)
class Bilinear:
    """The state of a fit: both sides, their priors and the noise. `sweep` moves rows, columns, then the variances."""

    rows: Block
    columns: Block
    row_prior: Prior
    column_prior: Prior
    noise: float

    @classmethod
    def start(cls, rows: FloatArray, columns: FloatArray, factors: FloatArray, unexplained: float) -> Bilinear:
        """Start from prior means (d+1, N) and (d+1, M), column factors (d, M) and the variance left to explain."""
        variance = np.full(len(rows), unexplained / np.sqrt(len(factors)))
        variance[0] = unexplained
        moving = Block.at(np.concatenate([factors, columns[-1:]]), False)
        prior, column_prior = Prior(rows, variance), Prior(columns, variance[::-1])
        return cls(Block.at(rows, True), moving, prior, column_prior, _NOISE_SHARE * unexplained)

    def sweep(self, data: Observations, learn_variances: bool) -> tuple[Bilinear, float]:
        """Return the state after one sweep, and the mean expected squared error of the observed entries."""
        sums = Sums.over(data.rows, self.columns)
        rows = sums.posterior(self.row_prior, self.noise, data.seen[0], True)
        sums = Sums.over(data.columns, rows)
        columns = sums.posterior(self.column_prior, self.noise, data.seen[1], False)
        error = sums.squared_error(columns, data.square_sum) / data.count
        moved = replace(self, rows=rows, columns=columns)
        if learn_variances:
            moved = replace(
                moved,
                noise=max(error, _FLOOR),
                row_prior=Prior(self.row_prior.mean, _spread(rows, self.row_prior)),
                column_prior=Prior(self.column_prior.mean, _spread(columns, self.column_prior)),
            )
        return moved, error

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Return the (k,) predictions of single entries, computed in chunks that bound the memory."""
        out = np.empty(len(rows))
        by_row, by_column = (np.ascontiguousarray(side.vectors.T) for side in (self.rows, self.columns))
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            out[part] = np.einsum("kd,kd->k", by_row[rows[part]], by_column[columns[part]])
        return out


def _spread(block: Block, prior: Prior) -> FloatArray:
    """Return the (d+1,) expected squared deviations from the prior means: the variances that fit best."""
    squares = np.square(block.mean - prior.mean) + np.einsum("aan->an", block.covariance)
    return np.asarray(squares.mean(axis=1) + _FLOOR)


def invert(systems: FloatArray) -> None:
    """Invert a batch of symmetric positive definite (d, d, n) systems in place.

    Gauss-Jordan sweeps without pivoting, vectorised over the batch in pieces that stay in the cache: calling LAPACK for
    each small system takes several times as long.
    """
    for start in range(0, systems.shape[2], _INVERSE_CHUNK):
        view = systems[:, :, start : start + _INVERSE_CHUNK]
        work, update = view.copy(), np.empty_like(view)
        for k in range(len(work)):
            pivot = 1.0 / work[k, k]
            column = work[:, k] * pivot
            np.multiply(column[:, None], work[k], out=update)
            work -= update
            work[k] = work[:, k] = column
            work[k, k] = -pivot
        np.negative(work, out=view)
