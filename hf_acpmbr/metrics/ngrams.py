"""What the string metrics share: sacrebleu's words, and clipped n-gram matches of many text pairs (chrF, BLEU).

Every text is cut into n-grams once. The k-th occurrence of an n-gram in a text becomes the feature (n-gram, k), so the
clipped match count Σ min(count_h, count_r) of two texts is the number of features they share.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class NGramCounts:
    """N-grams of T texts, for orders 1..n of one kind of symbol (characters or words).

    Args:
        symbols: per text its symbols.
        order: longest n-gram.
    """

    def __init__(self, symbols: Sequence[Symbols], order: int) -> None:
        self.order = order
        lengths = np.fromiter((len(text) for text in symbols), dtype=np.int64, count=len(symbols))
        n = np.arange(1, order + 1)
        self.totals: IntArray = np.maximum(lengths[:, None] - n + 1, 0)
        owner = np.repeat(np.arange(len(symbols)), lengths)
        last = np.repeat(np.cumsum(lengths), lengths)
        codes = _symbol_codes(symbols)
        self._texts: list[IntArray] = []
        self._grams: list[IntArray] = []
        self.sizes: list[int] = []  # different n-grams per order
        base = int(codes.max(initial=0)) + 1
        gram, ends = codes, np.arange(codes.size)  # of each n-gram, and where it ends
        for size in range(1, order + 1):
            if size > 1:
                longer = ends + 1 < last
                ends, owner, last = ends[longer] + 1, owner[longer], last[longer]
                pair = gram[longer] * base + codes[ends]
                gram = np.unique(pair, return_inverse=True)[1].reshape(-1)
            self._texts.append(owner)
            self._grams.append(np.asarray(gram, dtype=np.int64))
            self.sizes.append(int(gram.max(initial=-1)) + 1)

    def aggregate(self, members: IntArray, weights: FloatArray) -> tuple[list[FloatArray], FloatArray]:
        """Average the n-gram counts of texts `members` under (K, m) weights.

        Returns:
            (K, grams) means per order, and (K, n) totals.
        """
        by_text = np.stack([np.bincount(members, weights=row, minlength=self.totals.shape[0]) for row in weights])
        means: list[FloatArray] = []
        for texts, grams, size in zip(self._texts, self._grams, self.sizes, strict=True):
            rows = [np.bincount(grams, weights=row[texts], minlength=size) for row in by_text]
            means.append(np.stack(rows).astype(np.float64))
        return means, np.asarray(by_text @ self.totals, dtype=np.float64)

    def aggregate_matches(self, hypotheses: IntArray, means: list[FloatArray]) -> FloatArray:
        """Return (k, K, n) clipped matches Σ min(count_h, mean count) of texts against aggregated counts."""
        out = np.zeros((hypotheses.size, means[0].shape[0], self.order))
        place = np.full(self.totals.shape[0], -1)
        place[hypotheses] = np.arange(hypotheses.size)
        for n, (texts, grams, mean) in enumerate(zip(self._texts, self._grams, means, strict=True)):
            keep = place[texts] >= 0
            size = mean.shape[1]
            keys, counts = np.unique(place[texts[keep]] * max(size, 1) + grams[keep], return_counts=True)
            rows, gram = np.divmod(keys, max(size, 1))
            for k in range(mean.shape[0]):
                clipped = np.minimum(counts, mean[k, gram])
                out[:, k, n] = np.bincount(rows, weights=clipped, minlength=hypotheses.size)
        # `hypotheses` may repeat: only the last place of each text was filled.
        return np.asarray(out[place[hypotheses]])

    def grid(self) -> IntArray:
        """Return (T, T, n) clipped matches of all pairs, from T × T × grams minima: for a few short texts."""
        total = self.totals.shape[0]
        # One column more than an order has n-grams, so that none is empty.
        starts = np.cumsum([0, *(size + 1 for size in self.sizes)])
        cells = [t * starts[-1] + g + start for t, g, start in zip(self._texts, self._grams, starts[:-1], strict=True)]
        counts = np.bincount(np.concatenate(cells), minlength=total * starts[-1]).reshape(total, starts[-1])
        return np.asarray(np.add.reduceat(np.minimum(counts[:, None], counts[None]), starts[:-1], axis=2))

    def features(self) -> list[tuple[IntArray, IntArray]]:
        """Return per order (text, feature) of every occurrence, without features that only one text has."""
        out = []
        for texts, grams in zip(self._texts, self._grams, strict=True):
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
            out.append((t[shared], np.asarray(feature, dtype=np.int64)))
        return out


class MatchTable:
    """Shared features of text pairs, from 0/1 matrices (texts × features), one for each order.

    Products of these matrices count the features of a whole grid of pairs: dense ones for texts that resemble each
    other, as long candidates for one source do, sparse ones for texts that share little. A few pairs are compared one
    by one. The cheapest way is chosen for each order. For a few short texts all pairs are counted at once.

    Args:
        counts: one or several kinds of n-grams over the same T texts.
    """

    def __init__(self, counts: Sequence[NGramCounts]) -> None:
        self.totals: IntArray = np.concatenate([kind.totals for kind in counts], axis=1)
        self._grid: IntArray | None = None
        if self.totals.shape[0] ** 2 * sum(sum(kind.sizes) for kind in counts) <= _SMALL_GRID:
            self._grid = np.concatenate([kind.grid() for kind in counts], axis=2)
            return
        parts = [part for kind in counts for part in kind.features()]
        self._orders = [_indicators(texts, features, self.totals.shape[0]) for texts, features in parts]

    def matches(self, hypotheses: IntArray, references: IntArray) -> IntArray:
        """Return (k, orders) clipped match counts of aligned text indices."""
        if self._grid is not None:
            return np.asarray(self._grid[hypotheses, references])
        rows, i = np.unique(hypotheses, return_inverse=True)
        columns, j = np.unique(references, return_inverse=True)
        out = np.zeros((hypotheses.size, len(self._orders)), dtype=np.int64)
        for order, matrix in enumerate(self._orders):
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


def _indicators(texts: IntArray, features: IntArray, total: int) -> csr_array:
    """Return a (total, features) matrix with 1 where a text has a feature."""
    ones = np.ones(texts.size, dtype=np.float32)
    return csr_array((ones, (texts, features)), shape=(total, int(features.max(initial=-1)) + 1))


def _symbol_codes(symbols: Sequence[Symbols]) -> IntArray:
    """Number the symbols of all texts, in order; equal symbols have equal numbers."""
    strings = [text for text in symbols if isinstance(text, str)]
    if len(strings) == len(symbols):
        raw = "".join(strings).encode("utf-32-le", "surrogatepass")
        points = np.frombuffer(raw, dtype=np.uint32)
        return np.asarray(np.unique(points, return_inverse=True)[1], dtype=np.int64).reshape(-1)
    index: dict[str, int] = {}
    return np.fromiter((index.setdefault(word, len(index)) for text in symbols for word in text), dtype=np.int64)
