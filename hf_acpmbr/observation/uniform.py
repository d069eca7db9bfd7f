"""The paper's masks: a uniform random subset of all pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import IntArray
from ..matrix import Pairs
from .base import Mask


@dataclass(frozen=True)
class Uniform(Mask):
    """The paper's masks: every subset of the pairs is equally likely, and rows may stay empty."""

    name: ClassVar[str] = "uniform"

    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """See `uniform`."""
        return uniform(shape, budget, seed)


def uniform(shape: tuple[int, int], budget: int, seed: int) -> Pairs:
    """`budget` of the N·M pairs, every subset of that size equally likely. O(budget) memory.

    Rows and columns may stay empty: at r=512 and N=M=1,024 about one row in seven has no score.
    """
    size = shape[0] * shape[1]
    if budget >= size:
        return Pairs.full(shape)
    return Pairs.from_flat(np.sort(_sample(np.random.default_rng(seed), size, budget)), shape)


def _sample(random: np.random.Generator, size: int, count: int) -> IntArray:
    """`count` different numbers below `size`. A permutation of a large range would need O(size) memory."""
    if count > size // 4:
        return random.permutation(size)[:count].astype(np.int64)
    kept = np.empty(0, dtype=np.int64)
    while kept.size < count:  # no more are drawn than are missing, so every subset stays equally likely
        kept = np.sort(np.concatenate([kept, random.integers(0, size, count - kept.size)]))
        kept = kept[np.append(True, kept[1:] != kept[:-1])]
    return kept
