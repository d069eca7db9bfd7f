"""Clipped n-gram matches of many text pairs: the common part of chrF and BLEU.

Every text is cut into n-grams once. The k-th occurrence of an n-gram in a text becomes the feature (n-gram, k), so the
clipped match count Σ min(count_h, count_r) of two texts is the number of features they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray

Symbols = Sequence[str]  # a text as characters or as words
_WORD = 8  # flags are summed eight at a time
_PRODUCT_GAIN = 60  # multiplications that cost as much as one gather; measured 58 to 500
_LARGEST_MATRIX = 1 << 26  # elements of the 0/1 matrices of one order


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
        gram = codes
        positions = np.arange(codes.size)
        for size in range(1, order + 1):
            if size > 1:
                inside = positions[positions + size <= last[positions]]
                kept = np.searchsorted(positions, inside)
                pair = gram[kept] * (int(codes.max(initial=0)) + 1) + codes[inside + size - 1]
                gram = np.unique(pair, return_inverse=True)[1].reshape(-1)
                positions = inside
            self._texts.append(owner[positions])
            self._grams.append(np.asarray(gram, dtype=np.int64))

    def aggregate(self, members: IntArray, weights: FloatArray) -> tuple[list[FloatArray], FloatArray]:
        """Mean n-gram counts of texts `members` under (K, m) weights: (K, grams) for each order, and totals (K, n)."""
        by_text = np.stack([np.bincount(members, weights=row, minlength=self.totals.shape[0]) for row in weights])
        means: list[FloatArray] = []
        for texts, grams in zip(self._texts, self._grams, strict=True):
            size = int(grams.max(initial=-1)) + 1
            rows = [np.bincount(grams, weights=row[texts], minlength=size) for row in by_text]
            means.append(np.stack(rows).astype(np.float64))
        return means, np.asarray(by_text @ self.totals, dtype=np.float64)

    def aggregate_matches(self, hypotheses: IntArray, means: list[FloatArray]) -> FloatArray:
        """(k, K, n) clipped matches Σ min(count_h, mean count) of texts against aggregated counts."""
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

    def features(self) -> list[tuple[IntArray, IntArray]]:
        """Per order (text, feature) of every occurrence, without features that only one text has."""
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
    """Shared features of text pairs, counted in one of two ways.

    Most pairs of a grid: each order is one product of 0/1 matrices (texts × features); texts that resemble each other,
    as candidates for one source do, have few features in all. Few pairs, or very many features: gathers.

    Args:
        counts: one or several kinds of n-grams over the same T texts.
    """

    def __init__(self, counts: Sequence[NGramCounts]) -> None:
        self.totals: IntArray = np.concatenate([kind.totals for kind in counts], axis=1)
        self._orders = [_by_text(*part) for kind in counts for part in kind.features()]
        self._sizes = [int(features.max(initial=-1)) + 1 for _, features in self._orders]
        self._widths = [_round_up(int(np.bincount(texts, minlength=1).max())) for texts, _ in self._orders]
        self._gathered: _Gathered | None = None

    def matches(self, hypotheses: IntArray, references: IntArray) -> IntArray:
        """(k, orders) clipped match counts of aligned text indices."""
        rows, i = np.unique(hypotheses, return_inverse=True)
        columns, j = np.unique(references, return_inverse=True)
        product = rows.size * columns.size * sum(self._sizes)
        small = (rows.size + columns.size) * max(self._sizes, default=0) < _LARGEST_MATRIX
        # A gather looks up a whole row of the padded table, which one long text makes wide for all.
        if small and product < _PRODUCT_GAIN * hypotheses.size * sum(self._widths):
            out = self._products(rows, columns, i.reshape(-1), j.reshape(-1))
        else:
            if self._gathered is None:
                self._gathered = _Gathered(self._orders, self._sizes, self._widths, self.totals.shape[0])
            out = self._gathered.matches(hypotheses, references)
        same = hypotheses == references
        out[same] = self.totals[hypotheses[same]]
        return out

    def _products(self, rows: IntArray, columns: IntArray, i: IntArray, j: IntArray) -> IntArray:
        out = np.zeros((i.size, self.totals.shape[1]), dtype=np.int64)
        for order, ((texts, features), size) in enumerate(zip(self._orders, self._sizes, strict=True)):
            left, right = (_indicators(texts, features, size, side, self.totals.shape[0]) for side in (rows, columns))
            out[:, order] = (left @ right.T)[i, j]
        return out


class _Gathered:
    """Features of each text in a padded table; a hypothesis marks its own, then its references look theirs up."""

    def __init__(
        self, orders: Sequence[tuple[IntArray, IntArray]], sizes: Sequence[int], widths: Sequence[int], texts: int
    ) -> None:
        self._bounds = np.concatenate([[0], np.cumsum(widths)])
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        self._nothing = int(offsets[-1])  # a feature no text has fills the gaps
        self._features: IntArray = np.full((texts, int(self._bounds[-1])), self._nothing, dtype=np.int64)
        for o, (t, f) in enumerate(orders):
            self._features[t, self._bounds[o] + np.arange(t.size) - np.searchsorted(t, t)] = f + offsets[o]
        self._marks: npt.NDArray[np.uint8] = np.zeros(self._nothing + 1, dtype=np.uint8)

    def matches(self, hypotheses: IntArray, references: IntArray) -> IntArray:
        out = np.zeros((hypotheses.size, self._bounds.size - 1), dtype=np.int64)
        by_row = np.argsort(hypotheses, kind="stable")
        rows = hypotheses[by_row]
        for pairs in np.split(by_row, np.flatnonzero(rows[1:] != rows[:-1]) + 1) if rows.size else ():
            out[pairs] = self._row(int(hypotheses[pairs[0]]), references[pairs])
        return out

    def _row(self, hypothesis: int, references: IntArray) -> IntArray:
        own = self._features[hypothesis]
        self._marks[own] = 1
        self._marks[self._nothing] = 0
        hits = self._marks.take(self._features[references])
        self._marks[own] = 0
        out = np.empty((references.size, self._bounds.size - 1), dtype=np.int64)
        for o in range(out.shape[1]):
            out[:, o] = _sum_flags(hits[:, self._bounds[o] : self._bounds[o + 1]])
        return out


def _by_text(texts: IntArray, features: IntArray) -> tuple[IntArray, IntArray]:
    order = np.argsort(texts, kind="stable")
    return texts[order], features[order]


def _indicators(
    texts: IntArray, features: IntArray, size: int, chosen: IntArray, total: int
) -> npt.NDArray[np.float32]:
    """(len(chosen), size) 1 where a text has a feature."""
    place = np.full(total, -1)
    place[chosen] = np.arange(chosen.size)
    kept = place[texts] >= 0
    out = np.zeros((chosen.size, size), dtype=np.float32)
    out[place[texts[kept]], features[kept]] = 1.0
    return out


def _sum_flags(flags: npt.NDArray[np.uint8]) -> IntArray:
    """Row sums of 0/1 bytes, eight bytes a step: a lane of a 64-bit word holds at most 255, so 255 words at a time."""
    total = np.zeros(flags.shape[0], dtype=np.int64)
    block = 255 * _WORD
    for start in range(0, flags.shape[1], block):
        words = np.ascontiguousarray(flags[:, start : start + block]).view(np.uint64)
        lanes = words.sum(axis=1, dtype=np.uint64)
        total += lanes.view(np.uint8).reshape(-1, _WORD).sum(axis=1, dtype=np.int64)
    return total


def _round_up(width: int) -> int:
    return -(-width // _WORD) * _WORD


def _symbol_codes(symbols: Sequence[Symbols]) -> IntArray:
    """One integer for each symbol of all texts, in order; equal symbols have equal integers."""
    if all(isinstance(text, str) for text in symbols):
        raw = "".join(symbols).encode("utf-32-le", "surrogatepass")  # type: ignore[arg-type]
        points = np.frombuffer(raw, dtype=np.uint32)
        return np.asarray(np.unique(points, return_inverse=True)[1], dtype=np.int64).reshape(-1)
    index: dict[str, int] = {}
    number: Callable[[str], int] = lambda symbol: index.setdefault(symbol, len(index))  # noqa: E731
    return np.fromiter((number(symbol) for text in symbols for symbol in text), dtype=np.int64)
