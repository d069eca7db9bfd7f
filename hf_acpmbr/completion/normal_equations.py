"""The half-sweep that all ALS variants share: N independent d×d systems, without an N×M×d array.

Row i of a half-sweep solves (Σ_{j∈Obs(i)} v_j v_jᵀ + ρI) u_i = Σ_{j∈Obs(i)} o_ij v_j + p_i, with ρ the total ridge and
p_i the pull of other factors. The left sums are one product of the 0/1 observation matrix with the table of packed
v_j v_jᵀ (d(d+1)/2 × M), the right sums one product of the scores with V: dense products for dense observations, sparse
ones for thin. Factors are kept as in the paper, U (d, N) and V (d, M), so that all arithmetic runs along the long axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..candidates import IntArray
from ..matrix import ObservedScores
from .base import Floats

# Learned metrics on a scale of 1 differ by about this much between pairs of samples (0.06 to 0.12 on stored matrices):
# for them λ means what it means to the paper, whatever unit and offset a metric has.
TYPICAL_SPREAD = 0.1
_ROUNDING = 1e-9  # of double precision, a few sums later
_DENSE_FROM = 0.12  # share of observed pairs from which the dense product is faster than the sparse one, measured
_DENSE_BYTES = 128 * 2**20  # a larger dense matrix is not worth its memory, whatever the share
_SOLVE_ELEMENTS = 2**17  # of the packed systems solved at a time, so that a piece stays in the processor's cache


class SparseSums:
    """Sums over the observed entries of every row, as two sparse matrices."""

    def __init__(self, groups: IntArray, members: IntArray, values: Floats, shape: tuple[int, int]) -> None:
        from scipy.sparse import csr_matrix

        ends = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=shape[0]))])
        self.mask = csr_matrix((np.ones_like(values), members, ends), shape)
        self.scores = csr_matrix((values, members, ends), shape)

    def sums(self, packed: Floats, factors: Floats) -> tuple[Floats, Floats]:
        """Return Σ packed[:, j], (d(d+1)/2, N), and Σ value·factors[:, j], (d, N), of every row."""
        gram = self.mask @ np.ascontiguousarray(packed.T)
        moment = self.scores @ np.ascontiguousarray(factors.T)
        return np.ascontiguousarray(gram.T), np.ascontiguousarray(moment.T)


class DenseSums:
    """The same sums from the 0/1 matrix and the scores with 0 where unobserved, by torch's matrix product."""

    def __init__(self, mask: torch.Tensor, scores: torch.Tensor) -> None:
        self.mask, self.scores = mask, scores

    def sums(self, packed: Floats, factors: Floats) -> tuple[Floats, Floats]:
        gram = torch.from_numpy(packed) @ self.mask.T
        moment = torch.from_numpy(factors) @ self.scores.T
        return gram.numpy(), moment.numpy()


def mean_and_spread(values: Floats) -> tuple[float, float]:
    """Return mean and standard deviation; 0 for a deviation that is nothing but rounding."""
    center, spread = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    return center, spread if spread > _ROUNDING * max(abs(center), np.finfo(float).tiny) else 0.0


@dataclass(frozen=True, eq=False)
class Observations:
    """A score matrix prepared for sweeps over rows and over columns.

    Args:
        offset, scale: value = scale · prepared value + offset.
        seen: the rows (N,) and the columns (M,) with any score.
    """

    rows: SparseSums | DenseSums
    columns: SparseSums | DenseSums
    shape: tuple[int, int]
    offset: float
    scale: float
    square_sum: float
    count: int
    dtype: np.dtype[np.floating]
    seen: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]

    @classmethod
    def prepare(cls, scores: ObservedScores, standard: bool) -> Observations:
        """Prepare them as they are, or with mean 0 and the standard deviation that λ = 0.1 is for."""
        if not len(scores):
            raise ValueError("there is no observed score to complete: score at least one pair")
        offset, scale, values = 0.0, 1.0, scores.values
        if standard:
            offset, spread = mean_and_spread(values)
            scale = spread / TYPICAL_SPREAD if spread else 1.0
            values = (values - values.dtype.type(offset)) / values.dtype.type(scale)
        n, m = scores.shape
        sides: tuple[SparseSums | DenseSums, SparseSums | DenseSums]
        if len(scores) >= _DENSE_FROM * n * m and n * m * values.itemsize <= _DENSE_BYTES:
            mask, filled = np.zeros((2, n, m), dtype=values.dtype)
            mask[scores.rows, scores.columns] = 1.0
            filled[scores.rows, scores.columns] = values
            by_row = torch.from_numpy(mask), torch.from_numpy(filled)
            sides = DenseSums(*by_row), DenseSums(by_row[0].T, by_row[1].T)
        else:
            order = np.argsort(scores.columns, kind="stable")
            sides = (
                SparseSums(scores.rows, scores.columns, values, (n, m)),
                SparseSums(scores.columns[order], scores.rows[order], values[order], (m, n)),
            )
        seen = np.zeros(n, dtype=np.bool_), np.zeros(m, dtype=np.bool_)
        seen[0][scores.rows] = seen[1][scores.columns] = True
        square_sum = float(np.square(values, dtype=np.float64).sum())
        return cls(sides[0], sides[1], (n, m), offset, scale, square_sum, len(scores), values.dtype, seen)


def solve_rows(gram: Floats, right: Floats, ridge: float) -> Floats:
    """Return the (d, n) solutions of (G + ridge·I) x = right, the upper triangles packed in `gram` (d(d+1)/2, n).

    With ridge 0 a row may have fewer observations than factors; then the minimiser of least norm is taken.
    """
    if ridge > 0:
        solution = right.copy()
        step = max(1, _SOLVE_ELEMENTS // len(gram))
        chunks = [slice(k, k + step) for k in range(0, right.shape[1], step)]
        if all(_eliminate(gram[:, chunk].copy(), ridge, solution[:, chunk]) for chunk in chunks):
            return solution
    rank = len(right)
    first, second = np.triu_indices(rank)
    system = np.empty((right.shape[1], rank, rank), dtype=right.dtype)
    system[:, first, second] = system[:, second, first] = gram.T
    system += system.dtype.type(ridge) * np.eye(rank, dtype=system.dtype)
    return np.ascontiguousarray((np.linalg.pinv(system, hermitian=True) @ right.T[:, :, None])[:, :, 0].T)


def _eliminate(upper: Floats, ridge: float, x: Floats) -> bool:
    """Solve (G + ridge·I) x = right for n packed symmetric systems, in place of `upper` and of the right sides in `x`.

    LDLᵀ without pivoting, which positive definite systems do not need, vectorised over the systems: calling LAPACK for
    each 8×8 system takes half as long again. False if a system is not definite; then `x` is spoilt.
    """
    rank = len(x)
    ends = np.cumsum(np.arange(rank, 0, -1))
    rows = np.split(upper, ends[:-1])  # row k holds entries (k, k), (k, k+1), …
    scaled, product = np.empty_like(x), np.empty_like(x)
    for k, row in enumerate(rows):
        row[0] += row.dtype.type(ridge)
        if not row[0].min() > 0:
            return False
        left = rank - 1 - k
        below = np.divide(row[1:], row[0], out=scaled[:left])
        for i in range(left):
            rows[k + 1 + i] -= np.multiply(row[1 + i :], below[i], out=product[: left - i])
        x[k + 1 :] -= np.multiply(below, x[k], out=product[:left])
        x[k] /= row[0]
        row[1:] = below
    for k in range(rank - 2, -1, -1):
        x[k] -= np.multiply(rows[k][1:], x[k + 1 :], out=product[: rank - 1 - k]).sum(0)
    return True
