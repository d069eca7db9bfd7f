"""What the string metrics share: sacrebleu's words, and clipped n-gram matches of many text pairs (chrF, BLEU).

Every text is cut into n-grams once. The k-th occurrence of an n-gram in a text becomes the feature (n-gram, k), so the
clipped match count Σ min(count_h, count_r) of two texts is the number of features they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from ..candidates import FloatArray, IntArray

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.ter import TER

# Prices per pair and per text (see `Utility.price_per_pair`) from CPU seconds: on 256 candidates of 112 characters a
# pair took 0.4 µs (chrF) and 0.3 µs (BLEU), a text 67 and 34 µs; a pair of the embedded networks takes 1 to 1.6 ns
# per parameter.
STRING_PRICES = (400.0, 50_000.0)
Symbols = Sequence[str]  # a text as characters or as words
# Nanoseconds, measured on candidates of 30 to 2,000 characters: for a cell of a dense product times its features, a
# feature that two texts share in a sparse product, a cell of its result, a feature of a pair on its own.
_DENSE, _SPARSE, _CELL, _PAIR = 0.045, 2.0, 3.0, 10.0
_LARGEST_MATRIX = 1 << 26  # elements of the dense matrices of one order
_BLOCK = 1 << 22  # features of the pairs that are compared at a time
# Texts × texts × n-grams up to which the whole grid is counted at once: the making of matrices would take longer.
_SMALL_GRID = 1 << 20


def words(metric: BLEU | TER, texts: Sequence[str]) -> list[list[str]]:
    """Split each text by the metric's own tokenisation.

    The only use of sacrebleu's private functions; checked with 2.6.
    """
    return [metric._preprocess_segment(text).split() for text in texts]


class NGrams:
    """N-grams of T texts, counted by pair, for all orders 1..n of one kind of symbol or several.

    The features that all texts have form 0/1 matrices (texts × features), one per order. Products of these matrices
    count the features of a whole grid of pairs: dense ones for texts that resemble each other, as long candidates for
    one source do, sparse ones for texts that share little. A few pairs are compared one by one. The cheapest way is
    chosen for each order. For a few short texts all pairs are counted at once.

    Args:
        kinds: per kind the symbols of each text (characters, words), and its longest n-gram.

    Attributes:
        totals: (T, orders) n-grams of each text.
    """

    def __init__(self, *kinds: tuple[Sequence[Symbols], int]) -> None:
        self._orders: list[tuple[IntArray, IntArray, int]] = []  # texts and numbers of all n-grams; how many differ
        totals: list[IntArray] = []
        for symbols, longest in kinds:
            lengths = np.fromiter((len(text) for text in symbols), dtype=np.int64, count=len(symbols))
            totals.append(np.maximum(lengths[:, None] - np.arange(longest), 0))
            owner = np.repeat(np.arange(len(symbols)), lengths)
            last = np.repeat(np.cumsum(lengths), lengths)
            codes = _numbered(symbols)
            base = int(codes.max(initial=0)) + 1
            gram, ends = codes, np.arange(codes.size)  # of each n-gram, and where it ends
            for size in range(1, longest + 1):
                if size > 1:
                    longer = ends + 1 < last
                    ends, owner, last = ends[longer] + 1, owner[longer], last[longer]
                    gram = np.unique(gram[longer] * base + codes[ends], return_inverse=True)[1].reshape(-1)
                self._orders.append((owner, gram, int(gram.max(initial=-1)) + 1))
        self.totals: IntArray = np.concatenate(totals, axis=1)

    def matches(self, hypotheses: IntArray, references: IntArray) -> IntArray:
        """Return (k, orders) clipped match counts of aligned text indices."""
        if self._grid is not None:
            return np.asarray(self._grid[hypotheses, references])
        rows, i = np.unique(hypotheses, return_inverse=True)
        columns, j = np.unique(references, return_inverse=True)
        out = np.zeros((hypotheses.size, len(self._orders)), dtype=np.int64)
        for order, matrix in enumerate(self._features):
            left, right = matrix[rows], matrix[columns]
            way = _cheapest(left, right, np.diff(matrix.indptr), hypotheses, references)
            if way == "dense":
                out[:, order] = (left.toarray() @ right.toarray().T)[i.reshape(-1), j.reshape(-1)]
            elif way == "sparse":
                out[:, order] = (left @ right.T).toarray()[i.reshape(-1), j.reshape(-1)]
            else:
                out[:, order] = _one_by_one(matrix, hypotheses, references)
        same = hypotheses == references
        out[same] = self.totals[hypotheses[same]]
        return out

    @cached_property
    def _grid(self) -> IntArray | None:
        """(T, T, orders) matches of all pairs, from T × T × grams minima, if that is little."""
        total = self.totals.shape[0]
        # One column more than an order has n-grams, so that none is empty.
        starts = np.cumsum([0, *(size + 1 for _, _, size in self._orders)])
        if total**2 * starts[-1] > _SMALL_GRID:
            return None
        cells = [t * starts[-1] + g + start for (t, g, _), start in zip(self._orders, starts[:-1], strict=True)]
        counts = np.bincount(np.concatenate(cells), minlength=total * starts[-1]).reshape(total, starts[-1])
        return np.asarray(np.add.reduceat(np.minimum(counts[:, None], counts[None]), starts[:-1], axis=2))

    @cached_property
    def _features(self) -> list[csr_array]:
        """Per order the 0/1 matrix of which text has which feature, without features that only one text has."""
        out = []
        for texts, grams, _ in self._orders:
            order = np.lexsort((texts, grams))
            t, g = texts[order], grams[order]
            new_run = np.ones(t.size, dtype=bool)
            new_run[1:] = (t[1:] != t[:-1]) | (g[1:] != g[:-1])
            starts = np.flatnonzero(new_run)
            rank = np.arange(t.size) - np.repeat(starts, np.diff(np.append(starts, t.size)))
            key = g * (int(rank.max(initial=0)) + 1) + rank
            _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
            shared = counts[inverse.reshape(-1)] > 1
            feature = np.unique(key[shared], return_inverse=True)[1].reshape(-1)
            ones = np.ones(feature.size, dtype=np.float32)
            shape = self.totals.shape[0], int(feature.max(initial=-1)) + 1
            out.append(csr_array((ones, (t[shared], feature)), shape=shape))
        return out

    def aggregate_matches(
        self, hypotheses: IntArray, members: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Compare texts with mean n-gram counts of the texts `members` (m,) under (K, m) weights.

        Returns:
            (k, K, orders) clipped matches Σ min(count_h, mean count), and (K, orders) total n-grams of the means.
        """
        by_text = np.stack([np.bincount(members, weights=row, minlength=len(self.totals)) for row in weights])
        out = np.zeros((hypotheses.size, len(weights), len(self._orders)))
        place = np.full(len(self.totals), -1)
        place[hypotheses] = np.arange(hypotheses.size)
        for order, (texts, grams, size) in enumerate(self._orders):
            keep = place[texts] >= 0
            keys, counts = np.unique(place[texts[keep]] * max(size, 1) + grams[keep], return_counts=True)
            rows, gram = np.divmod(keys, max(size, 1))
            for k, row in enumerate(by_text):
                mean = np.bincount(grams, weights=row[texts], minlength=size)
                clipped = np.minimum(counts, mean[gram])
                out[:, k, order] = np.bincount(rows, weights=clipped, minlength=hypotheses.size)
        # `hypotheses` may repeat: only the last place of each text was filled.
        return np.asarray(out[place[hypotheses]]), np.asarray(by_text @ self.totals, dtype=np.float64)


def _cheapest(left: csr_array, right: csr_array, sizes: IntArray, hypotheses: IntArray, references: IntArray) -> str:
    """Choose how to count, "dense", "sparse" or "pairs", by measured costs in nanoseconds."""
    rows, columns, features = left.shape[0], right.shape[0], left.shape[1]
    met = [np.bincount(side.indices, minlength=features).astype(np.float64) for side in (left, right)]
    costs = {
        "dense": _DENSE * rows * columns * features + (rows + columns) * features,
        "sparse": _SPARSE * float(met[0] @ met[1]) + _CELL * rows * columns,
        "pairs": _PAIR * float((sizes[hypotheses] + sizes[references]).sum()),
    }
    if (rows + columns) * features > _LARGEST_MATRIX:
        del costs["dense"]
    return min(costs, key=costs.__getitem__)


def _one_by_one(matrix: csr_array, hypotheses: IntArray, references: IntArray) -> IntArray:
    """Count the shared features of single pairs, in blocks of about equal memory."""
    sizes = np.diff(matrix.indptr)
    ends = np.cumsum(sizes[hypotheses] + sizes[references])
    blocks = np.split(np.arange(hypotheses.size), np.searchsorted(ends, np.arange(_BLOCK, int(ends[-1]), _BLOCK)))
    parts = [
        matrix[hypotheses[block]].multiply(matrix[references[block]]).sum(axis=1) for block in blocks if block.size
    ]
    return np.concatenate(parts).astype(np.int64)


def _numbered(symbols: Sequence[Symbols]) -> IntArray:
    """Number the symbols of all texts, in order; equal symbols have equal numbers."""
    strings = [text for text in symbols if isinstance(text, str)]
    if len(strings) == len(symbols):
        raw = "".join(strings).encode("utf-32-le", "surrogatepass")
        points = np.frombuffer(raw, dtype=np.uint32)
        return np.asarray(np.unique(points, return_inverse=True)[1], dtype=np.int64).reshape(-1)
    index: dict[str, int] = {}
    return np.fromiter((index.setdefault(word, len(index)) for text in symbols for word in text), dtype=np.int64)
