"""Pseudo-references one after the other: a random order of all that were drawn, duplicates included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Problem

# Draws that are put in order one by one; every decoder looks at far fewer of them, or at all.
_IN_ORDER = 2**20


@dataclass(frozen=True, eq=False)
class Draws:
    """The M drawn pseudo-references in random order, as indices of unique ones.

    A part of them is a sample without replacement, so a decoder that takes them in turn sees what it would see on the
    expanded list, and a reference that comes again costs no new utility call. Beyond the first million the order is
    left open: memory and time go with the unique pseudo-references, whatever their counts.

    Args:
        columns: (at most M,) which unique pseudo-reference each of the first draws is.
        counts: (m,) how often each of the unique ones was drawn.
    """

    columns: IntArray
    counts: IntArray

    @classmethod
    def of(cls, problem: Problem, stage: int = 0) -> Draws:
        """Shuffle by the problem's seed. The order in which the texts were given has no influence."""
        texts, counts = problem.references.texts, problem.references.counts
        by_text = np.array(sorted(range(len(texts)), key=texts.__getitem__), dtype=np.int64)
        random = np.random.default_rng(problem.seed_for(stage))
        first = counts[by_text]
        if (total := first.sum()) > _IN_ORDER:
            # With replacement: of a million draws hardly one comes too often, and the minimum takes that one back.
            first = np.minimum(random.multinomial(_IN_ORDER, first / total), first)
        return cls(random.permutation(np.repeat(by_text, first)), counts)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def part(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return the unique ones among draws start..stop-1, in the order they come, and how often each was drawn.

        A part that ends where the order is open, before the last draw, ends with the draws in order.
        """
        columns, first, counts = np.unique(self.columns[start:stop], return_index=True, return_counts=True)
        order = np.argsort(first)
        columns, counts = columns[order], counts[order]
        if stop >= len(self) > self.columns.size:
            left = self._left()
            left[columns] += counts
            columns = np.concatenate([columns, np.setdiff1d(np.flatnonzero(left), columns)])
            counts = left[columns]
        return columns, counts

    def reach(self, unique: int) -> int:
        """Count the draws that can be taken before more than `unique` different pseudo-references have been seen."""
        if unique >= self.counts.size:
            return len(self)
        new = np.zeros(self.columns.size, dtype=np.int64)
        new[np.unique(self.columns, return_index=True)[1]] = 1
        return int(np.searchsorted(np.cumsum(new), unique, side="right"))

    def split(self, parts: int) -> FloatArray:
        """Count each pseudo-reference in each of `parts` equal parts of the draws (up to one draw): (parts, m).

        There are at most as many parts as draws in order; what is not in order is in all parts alike.
        """
        pieces = np.array_split(self.columns, min(parts, self.columns.size))
        counts = np.stack([np.bincount(piece, minlength=self.counts.size) for piece in pieces])
        return np.asarray(counts + self._left() / len(pieces))

    def _left(self) -> IntArray:
        """Count the draws of each pseudo-reference beyond those in order: (m,)."""
        return np.asarray(self.counts - np.bincount(self.columns, minlength=self.counts.size))
