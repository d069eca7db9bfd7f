"""Which pairs a decoder that completes scores: masks, drawn before anything is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import IntArray
from ..config import Stage
from ..matrix import Pairs

# Each round tries to move every entry once, and fails where a swap would make a pair twice: with several, rows of a
# 60 × 50 mask share no more columns than by chance (tests/completion/test_observation.py).
_MIXING_ROUNDS = 8
# A budget of at most 1 in 4 pairs is drawn with repetitions, which are drawn again: few, and in memory for the budget
# alone, where a permutation needs it for all pairs.
_REDRAWN_SHARE = 4


class Observation(Stage, ABC):
    """Candidates → pairs to score.

    The pairs are chosen before anything is known, so guides and target can be scored at the same time.
    """

    @abstractmethod
    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """Choose `budget` of the N·M pairs, all of them if there are no more."""


@dataclass(frozen=True)
class Balanced(Observation):
    """A random mask in which rows differ by at most one score, and so do columns.

    A square mask is a random circulant: layer t gives row i the column i + s_t mod N, with the shifts
    s_t in random order. Otherwise position k is row k mod N and column k mod M, shifted by one after
    every lcm(N, M) positions: all pairs once, by the Chinese remainder theorem, and every run of them
    is even; but neighbouring rows then see nearly the same columns, so random swaps that keep all row
    and column counts mix them.
    """

    name: ClassVar[str] = "balanced"

    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """Choose `budget` of the N·M pairs, in O(budget) memory."""
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


@dataclass(frozen=True)
class Uniform(Observation):
    """The paper's masks: every subset of the pairs is equally likely.

    Rows and columns may stay empty: at r=512 and N=M=1,024 about one row in seven has no score.
    """

    name: ClassVar[str] = "uniform"

    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """Choose `budget` of the N·M pairs, in O(budget) memory."""
        size = shape[0] * shape[1]
        if budget >= size:
            return Pairs.full(shape)
        random = np.random.default_rng(seed)
        if budget > size // _REDRAWN_SHARE:
            return Pairs.from_flat(np.sort(random.permutation(size)[:budget].astype(np.int64)), shape)
        kept = np.empty(0, dtype=np.int64)
        # No more are drawn than are missing, so every subset stays equally likely.
        while kept.size < budget:
            drawn = random.integers(0, size, budget - kept.size)
            kept = np.sort(np.concatenate([kept, drawn]))
            kept = kept[np.append(True, kept[1:] != kept[:-1])]
        return Pairs.from_flat(kept, shape)


def _mixed(rows: IntArray, columns: IntArray, m: int, random: np.random.Generator) -> IntArray:
    """Exchange the columns of random pairs of entries unless that makes an entry twice."""
    columns = columns.copy()
    for _ in range(_MIXING_ROUNDS):
        one, other = np.array_split(random.permutation(rows.size)[: rows.size // 2 * 2], 2)
        present = rows * m + columns
        first, second = rows[one] * m + columns[other], rows[other] * m + columns[one]
        proposed, times = np.unique(np.concatenate([first, second]), return_counts=True)
        taken = np.union1d(proposed[times > 1], proposed[np.isin(proposed, present)])
        swap = ~(np.isin(first, taken) | np.isin(second, taken))
        columns[one[swap]], columns[other[swap]] = columns[other[swap]], columns[one[swap]]
    return columns
