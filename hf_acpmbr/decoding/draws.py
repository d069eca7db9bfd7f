"""Pseudo-references one after the other: a random order of all that were drawn, duplicates included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Problem


@dataclass(frozen=True, eq=False)
class Draws:
    """The M drawn pseudo-references in random order, as indices of unique ones.

    A part of them is a sample without replacement, so a decoder that takes them in turn sees what it would see on the
    expanded list, and a reference that comes again costs no new utility call.

    Args:
        columns: (M,) which unique pseudo-reference each draw is.
        unique: m, how many unique ones there are.
    """

    columns: IntArray
    unique: int

    @classmethod
    def of(cls, problem: Problem, stage: int = 0) -> Draws:
        """Shuffled by the problem's seed. The order in which the texts were given has no influence."""
        texts, counts = problem.references.texts, problem.references.counts
        by_text = np.array(sorted(range(len(texts)), key=texts.__getitem__), dtype=np.int64)
        random = np.random.default_rng(problem.seed_for(stage))
        return cls(random.permutation(np.repeat(by_text, counts[by_text])), len(texts))

    def __len__(self) -> int:
        return int(self.columns.size)

    def part(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Unique pseudo-references among draws start..stop-1, in the order they come, and how often each was drawn."""
        columns, first, counts = np.unique(self.columns[start:stop], return_index=True, return_counts=True)
        order = np.argsort(first)
        return columns[order], counts[order]

    def reach(self, unique: int) -> int:
        """How many draws can be taken before more than `unique` different pseudo-references have been seen."""
        new = np.zeros(len(self), dtype=np.int64)
        new[np.unique(self.columns, return_index=True)[1]] = 1
        return int(np.searchsorted(np.cumsum(new), unique, side="right"))

    def split(self, parts: int) -> FloatArray:
        """(parts, m) how often each pseudo-reference was drawn in each of `parts` equal parts (up to one draw)."""
        pieces = np.array_split(self.columns, parts)
        return np.stack([np.bincount(piece, minlength=self.unique) for piece in pieces]).astype(np.float64)
