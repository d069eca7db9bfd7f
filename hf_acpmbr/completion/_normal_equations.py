"""The half-sweep that all ALS variants share: N independent d×d systems, without an N×M×d array.

Row i of a half-sweep solves (Σ_{j∈Obs(i)} v_j v_jᵀ + ρI) u_i = Σ_{j∈Obs(i)} o_ij v_j + p_i, with ρ the total ridge and
p_i the pull of other factors. The left sums are one product of the 0/1 observation matrix with the table of packed
v_j v_jᵀ (M × d(d+1)/2), the right sums one product of the scores with V: dense products for dense observations, a
weighted bag-sum over the stored indices for thin ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ..matrix import ObservedScores

# Measured crossing points of the two products: the bag-sum has a vectorised kernel for float32 only.
_DENSE_FROM = {torch.float32: 0.5, torch.float64: 0.1}
_DENSE_BYTES = 128 * 2**20


class Bags:
    """One side's view (by row or by column) of thin observations: indices and values grouped into bags."""

    def __init__(self, groups: Tensor, members: Tensor, values: Tensor, size: int) -> None:
        self.members, self.values, self.ones = members, values, torch.ones_like(values)
        self.offsets = torch.searchsorted(groups, torch.arange(size))

    def sums(self, packed: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """(Σ packed[j], Σ value·factors[j]) of every bag."""
        return self._sum(packed, self.ones), self._sum(factors, self.values)

    def _sum(self, table: Tensor, weights: Tensor) -> Tensor:
        if not self.members.numel():
            return table.new_zeros(len(self.offsets), table.shape[1])
        return embedding_bag(self.members, table, self.offsets, mode="sum", per_sample_weights=weights)


class DenseSide:
    """One side's view of dense observations: the 0/1 matrix and the scores with 0 where unobserved."""

    def __init__(self, mask: Tensor, scores: Tensor) -> None:
        self.mask, self.scores = mask, scores

    def sums(self, packed: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        return self.mask @ packed, self.scores @ factors


Side: TypeAlias = "Bags | DenseSide"


@dataclass(frozen=True, eq=False)
class Observations:
    """A score matrix prepared for sweeps over rows and over columns.

    `offset` was subtracted from every value; `seen` tells the rows (N,) and the columns (M,) with any score.
    """

    rows: Side
    columns: Side
    shape: tuple[int, int]
    offset: float
    square_sum: float
    count: int
    dtype: torch.dtype
    seen: tuple[Tensor, Tensor]

    @classmethod
    def prepare(cls, scores: ObservedScores, center: bool) -> Observations:
        offset = float(scores.values.mean(dtype="float64")) if center and len(scores) else 0.0
        values = torch.as_tensor(scores.values - offset if offset else scores.values)
        # Copies, because from_numpy on read-only arrays warns.
        rows, columns = torch.tensor(scores.rows), torch.tensor(scores.columns)
        n, m = scores.shape
        dense = len(scores) >= _DENSE_FROM[values.dtype] * n * m and n * m * values.element_size() <= _DENSE_BYTES
        by_row: Side
        by_column: Side
        if dense:
            mask, filled = torch.zeros(n, m, dtype=values.dtype), torch.zeros(n, m, dtype=values.dtype)
            mask[rows, columns] = 1.0
            filled[rows, columns] = values
            by_row, by_column = DenseSide(mask, filled), DenseSide(mask.T, filled.T)
        else:
            order = torch.sort(columns, stable=True).indices
            by_row = Bags(rows, columns, values, n)
            by_column = Bags(columns[order], rows[order], values[order], m)
        square_sum = float(values.double().square().sum())
        seen = torch.zeros(n, dtype=torch.bool), torch.zeros(m, dtype=torch.bool)
        seen[0][rows] = seen[1][columns] = True
        return cls(by_row, by_column, (n, m), offset, square_sum, len(scores), values.dtype, seen)


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """Σ v vᵀ (n, d, d) and Σ o v (n, d) of every row (or column)."""

    gram: Tensor
    moment: Tensor

    @classmethod
    def build(cls, side: Side, factors: Tensor) -> NormalEquations:
        rank = factors.shape[1]
        first, second = torch.triu_indices(rank, rank)
        gram, moment = side.sums(factors[:, first] * factors[:, second], factors)
        unpack = torch.empty(rank, rank, dtype=torch.long)
        unpack[first, second] = unpack[second, first] = torch.arange(len(first))
        return cls(gram[:, unpack.view(-1)].view(-1, rank, rank), moment)

    def solve(self, ridge: float, pull: Tensor) -> Tensor:
        """(n, d) minimisers of the row objectives with total ridge `ridge` and `pull` = Σ_k γ_k (other factors).

        With ridge 0 a row may have fewer observations than factors; then the minimiser of least norm is taken.
        """
        right = self.moment + pull
        if ridge > 0:
            system = self.gram.clone()
            system.diagonal(dim1=1, dim2=2).add_(ridge)
            lower, info = torch.linalg.cholesky_ex(system)
            if not bool(info.any()):
                return torch.cholesky_solve(right.unsqueeze(-1), lower).squeeze(-1)
        else:
            system = self.gram
        least_norm: Tensor = torch.linalg.pinv(system, hermitian=True) @ right.unsqueeze(-1)
        return least_norm.squeeze(-1)

    def squared_error(self, factors: Tensor, square_sum: float) -> float:
        """Σ_obs (o − uᵀv)² from the sums alone: Σo² + Σ_i (u_iᵀ G_i u_i − 2 u_iᵀ b_i)."""
        quadratic = torch.einsum("nd,nde,ne->n", factors, self.gram, factors) - 2 * (factors * self.moment).sum(1)
        return max(square_sum + float(quadratic.double().sum()), 0.0)
