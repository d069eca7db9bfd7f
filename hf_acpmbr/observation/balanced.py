"""Masks that give every row and every column as equal a share of the scores as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import IntArray
from ..matrix import Pairs
from .base import Mask

_MIXING_ROUNDS = 8


@dataclass(frozen=True)
class Balanced(Mask):
    """A random mask in which rows differ by at most one score, and so do columns."""

    name: ClassVar[str] = "balanced"

    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """See `balanced`."""
        return balanced(shape, budget, seed)


def balanced(shape: tuple[int, int], budget: int, seed: int) -> Pairs:
    """`budget` of the N·M pairs such that rows differ by at most one score, and so do columns.

    O(budget) memory. A square mask is a random circulant: layer t gives row i the column i + s_t mod N, with the shifts
    s_t in random order. Otherwise position k is row k mod N and column k mod M, shifted by one after every lcm(N, M)
    positions: all pairs once, by the Chinese remainder theorem, and every run of them is even; but neighbouring rows
    then see nearly the same columns, so random swaps that keep all row and column counts mix them.
    """
    n, m = shape
    if budget >= n * m:
        return Pairs.full(shape)
    random = np.random.default_rng(seed)
    position = np.arange(budget, dtype=np.int64)
    rows = position % n
    if n == m:
        columns = (rows + random.permutation(m)[position // n]) % m
    else:
        columns = _mixed(rows, (position + position // np.lcm(n, m)) % m, m, random)
    return Pairs(random.permutation(n)[rows], random.permutation(m)[columns], shape)


def _mixed(rows: IntArray, columns: IntArray, m: int, random: np.random.Generator) -> IntArray:
    """Exchange the columns of random pairs of entries wherever that makes no entry twice."""
    columns = columns.copy()
    for _ in range(_MIXING_ROUNDS):
        one, other = np.array_split(random.permutation(rows.size)[: rows.size // 2 * 2], 2)
        present = np.sort(rows * m + columns)
        first, second = rows[one] * m + columns[other], rows[other] * m + columns[one]
        proposed, times = np.unique(np.concatenate([first, second]), return_counts=True)
        taken = np.union1d(proposed[times > 1], proposed[_contains(present, proposed)])
        swap = ~(_contains(taken, first) | _contains(taken, second))
        columns[one[swap]], columns[other[swap]] = columns[other[swap]], columns[one[swap]]
    return columns


def _contains(sorted_values: IntArray, queries: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if not sorted_values.size:
        return np.zeros(queries.size, dtype=np.bool_)
    place = np.minimum(np.searchsorted(sorted_values, queries), sorted_values.size - 1)
    return np.asarray(sorted_values[place] == queries)
