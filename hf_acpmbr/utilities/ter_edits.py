"""TER's number of edits for many pairs at once: beamed edit distances and greedy block shifts, as Tercom and sacrebleu.

All pairs advance together. Each round finds an alignment of every pair, lists the shifts it allows, scores all shifted
hypotheses of all pairs in one batch of edit distances, and applies the best shift of each pair that improves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..candidates import IntArray

MAX_SHIFT_SIZE = 10
MAX_SHIFT_DISTANCE = 50
BEAM_WIDTH = 25
MAX_CANDIDATES = 1000
_CELLS = 1 << 18  # cells of one row of a batch of distance matrices: what fits into the cache
_SIMILAR = np.log(1.2)  # sizes of one batch differ by no more than a fifth,
_FEW = 16  # unless there are only so many
_FAR = 8000  # "infinite" distance in 16 bits
Table = npt.NDArray[np.int16] | npt.NDArray[np.int32]
Words = npt.NDArray[np.int32]
Shift = tuple[int, int, int]  # start and length of the block, and the position it is put before


@dataclass
class _Pair:
    """A pair on its way: the hypothesis as shifted so far."""

    words: IntArray
    reference: IntArray
    places: dict[int, list[int]]
    shifts: int = 0
    checked: int = 0
    edits: int = -1
    candidates: list[Shift] = field(default_factory=list)


@dataclass(frozen=True)
class _Alignments:
    """Per row of a batch: distance, aligned hypothesis word of each reference word, and running error counts."""

    distances: IntArray
    align: IntArray
    reference_errors: IntArray
    hypothesis_errors: IntArray


def count_edits(pairs: Sequence[tuple[IntArray, IntArray]]) -> IntArray:
    """(k,) edits of (hypothesis, reference) word numbers; references must not be empty."""
    places = [_positions(reference) for _, reference in pairs]
    states = [_Pair(h, r, place) for (h, r), place in zip(pairs, places, strict=True)]
    active = states
    while active:
        for batch in _batches([(pair.words, pair.reference) for pair in active], table=True):
            _list_shifts([active[k] for k in batch])
        shifted = [(pair, shift) for pair in active for shift in pair.candidates]
        words = _shifted_words(shifted)
        scores = np.zeros(len(shifted), dtype=np.int64)
        for batch in _batches([(words[k], pair.reference) for k, (pair, _) in enumerate(shifted)], table=False):
            rows = [(words[k], shifted[k][0].reference) for k in batch]
            scores[batch] = _distances(*_padded(rows))[0]
        active = _apply_best(active, shifted, words, scores)
    return np.array([pair.shifts + pair.edits for pair in states], dtype=np.int64)


def _apply_best(
    active: list[_Pair], shifted: list[tuple[_Pair, Shift]], words: list[IntArray], scores: IntArray
) -> list[_Pair]:
    """Shift each pair by its best candidate (most edits saved, longest, earliest); give back those that improved."""
    best: dict[int, tuple[tuple[int, int, int, int], int]] = {}
    for k, (pair, (start, length, target)) in enumerate(shifted):
        rank = (pair.edits - int(scores[k]), length, -start, -target)
        if rank[0] > 0 and (id(pair) not in best or rank > best[id(pair)][0]):
            best[id(pair)] = (rank, k)
    going = [pair for pair in active if id(pair) in best]
    for pair in going:
        pair.words = words[best[id(pair)][1]]
        pair.shifts += 1
    return going


def _list_shifts(pairs: list[_Pair]) -> None:
    """Set `edits` and `candidates` of each pair from an optimal alignment of its present words."""
    hypotheses, h_sizes, references, r_sizes = _padded([(pair.words, pair.reference) for pair in pairs])
    distances, table = _distances(hypotheses, h_sizes, references, r_sizes, keep=True)
    found = _alignments(distances, table, hypotheses, h_sizes, references, r_sizes)
    for k, pair in enumerate(pairs):
        pair.edits = int(found.distances[k])
        pair.candidates = []
        if pair.edits == 0:
            continue
        chosen = dict.fromkeys(_shifts(pair, found.align[k], found.reference_errors[k], found.hypothesis_errors[k]))
        # Past the limit the search ends with the words as they are.
        pair.candidates = list(chosen) if pair.checked < MAX_CANDIDATES else []


def _shifts(pair: _Pair, align: IntArray, reference_errors: IntArray, hypothesis_errors: IntArray) -> Iterator[Shift]:
    """Shifts of blocks that match the reference elsewhere, where both places are wrong in the alignment."""
    aligned, wrong_r, wrong_h = align.tolist(), reference_errors.tolist(), hypothesis_errors.tolist()
    words, reference = pair.words.tolist(), pair.reference.tolist()
    for start, word in enumerate(words):
        for place in pair.places.get(word, ()):
            if abs(place - start) > MAX_SHIFT_DISTANCE:
                continue
            longest = min(MAX_SHIFT_SIZE, len(words) - start, len(reference) - place)
            for length in range(1, longest + 1):
                if words[start + length - 1] != reference[place + length - 1]:
                    break
                if wrong_h[start + length] == wrong_h[start] or wrong_r[place + length] == wrong_r[place]:
                    continue
                if start <= aligned[place] < start + length:
                    continue
                previous = -1
                for offset in range(-1, length):
                    target = 0 if place + offset < 0 else aligned[place + offset] + 1
                    if target != previous:
                        previous = target
                        pair.checked += 1
                        yield start, length, target
                if pair.checked >= MAX_CANDIDATES:
                    return


def _shifted_words(shifted: list[tuple[_Pair, Shift]]) -> list[IntArray]:
    """The words of each pair after its shift."""
    out = []
    for pair, (start, length, target) in shifted:
        words = pair.words
        if target > start + length:
            target -= length
        target = min(target, words.size - length)
        rest = np.concatenate([words[:start], words[start + length :]])
        out.append(np.concatenate([rest[:target], words[start : start + length], rest[target:]]))
    return out


def _distances(
    hypotheses: Words, h_sizes: IntArray, references: Words, r_sizes: IntArray, keep: bool = False
) -> tuple[IntArray, Table]:
    """(B,) edit distances within a beam around the diagonal; with `keep` also the tables (L_h + 1, L_r + 1, B).

    Row i needs min(diagonal, above + 1, left + 1). The chain along `left` is a running minimum of (cost − j), so a row
    is a few operations on whole arrays, with the batch on the contiguous axis.
    """
    longest_h, longest_r = hypotheses.shape[0], references.shape[0]
    kind = np.int16 if max(longest_h, longest_r) < _FAR // 2 else np.int32
    far = _FAR if kind is np.int16 else 1 << 28
    j = np.arange(longest_r + 1, dtype=kind)[:, None]
    row = np.repeat(j, h_sizes.size, axis=1)
    table = np.empty((longest_h + 1 if keep else 1, *row.shape), dtype=kind)
    table[0] = row
    out = r_sizes.copy()
    low, high = _beams(h_sizes, r_sizes, longest_h)
    bounds = zip(low.min(axis=1), low.max(axis=1), high.min(axis=1), high.max(axis=1), strict=True)
    ends = {int(size): np.flatnonzero(h_sizes == size) for size in np.unique(h_sizes)}
    for i, (first, first_max, last_min, last) in enumerate(bounds, start=1):
        # Nothing is computed outside the widest beam of the batch.
        new = np.full_like(row, far)
        band, inside = new[first:last], j[first:last]
        np.add(row[first:last], 1, out=band)
        skip = int(first == 0)
        differ = references[first + skip - 1 : last - 1] != hypotheses[i - 1]
        np.minimum(band[skip:], row[first + skip - 1 : last - 1] + differ, out=band[skip:])
        if first_max > first:
            band[inside < low[i - 1]] = far
        band -= inside
        np.minimum.accumulate(band, axis=0, out=band)
        band += inside
        if first_max > first or last_min < last:
            band[(inside < low[i - 1]) | (inside >= high[i - 1])] = far
        row = new
        if keep:
            table[i] = row
        if i in ends:
            out[ends[i]] = row[r_sizes[ends[i]], ends[i]]
    return out, table


def _beams(h_sizes: IntArray, r_sizes: IntArray, rows: int) -> tuple[IntArray, IntArray]:
    """(rows, B) first column of each row's beam and the one after its last; the last row reaches the end."""
    ratio = r_sizes / np.maximum(h_sizes, 1)
    width = np.where(ratio / 2 > BEAM_WIDTH, np.ceil(ratio / 2 + BEAM_WIDTH), BEAM_WIDTH)
    i = np.arange(1, rows + 1)[:, None]
    diagonal = np.floor(i * ratio)
    high = np.where(h_sizes == i, r_sizes + 1, np.minimum(r_sizes + 1, diagonal + width))
    low = np.minimum(np.maximum(diagonal - width, 0), r_sizes)  # rows past a hypothesis's end are not used
    return low.astype(np.int64), np.maximum(high, low + 1).astype(np.int64)


def _alignments(
    distances: IntArray, table: Table, hypotheses: Words, h_sizes: IntArray, references: Words, r_sizes: IntArray
) -> _Alignments:
    """Walk all tables back together, preferring match or substitution, then deletion, then insertion."""
    batch = np.arange(h_sizes.size)
    align = np.full((h_sizes.size, references.shape[0] + 1), -1, dtype=np.int64)
    wrong_r, wrong_h = np.zeros_like(align), np.zeros((h_sizes.size, hypotheses.shape[0] + 1), dtype=np.int64)
    i, j = h_sizes.copy(), r_sizes.copy()
    while (going := (i > 0) | (j > 0)).any():
        b, y, x = batch[going], i[going], j[going]
        here = table[y, x, b]
        both = (y > 0) & (x > 0)
        differ = hypotheses[y - 1, b] != references[x - 1, b]
        diagonal = both & (table[y - 1, x - 1, b] + differ == here)
        deletion = ~diagonal & ((x == 0) | ((y > 0) & (table[y - 1, x, b] + 1 == here)))
        insertion = ~diagonal & ~deletion
        consumes_r = diagonal | insertion
        align[b[consumes_r], x[consumes_r] - 1] = y[consumes_r] - 1
        wrong_r[b[consumes_r], x[consumes_r]] = (differ | insertion)[consumes_r]
        consumes_h = diagonal | deletion
        wrong_h[b[consumes_h], y[consumes_h]] = (differ | deletion)[consumes_h]
        i[going], j[going] = y - consumes_h, x - consumes_r
    return _Alignments(distances, align, np.cumsum(wrong_r, axis=1), np.cumsum(wrong_h, axis=1))


def _padded(rows: Sequence[tuple[IntArray, IntArray]]) -> tuple[Words, IntArray, Words, IntArray]:
    """Words with the batch on the last axis, and their sizes; padding never matches."""
    words, counts = [], []
    for side, filler in ((0, -1), (1, -2)):
        sizes = np.array([row[side].size for row in rows], dtype=np.int64)
        padded = np.full((len(rows), int(sizes.max(initial=1))), filler, dtype=np.int32)
        padded[np.arange(padded.shape[1]) < sizes[:, None]] = np.concatenate([row[side] for row in rows])
        words.append(np.ascontiguousarray(padded.T))
        counts.append(sizes)
    return words[0], counts[0], words[1], counts[1]


def _batches(rows: Sequence[tuple[IntArray, IntArray]], table: bool) -> Iterator[IntArray]:
    """Indices of rows of similar size on both sides, as many as a batch may hold."""
    h = np.array([row[0].size for row in rows], dtype=np.int64)
    r = np.array([row[1].size for row in rows], dtype=np.int64)
    steps_h, steps_r = (np.floor(np.log(np.maximum(size, 1)) / _SIMILAR).astype(np.int64) for size in (h, r))
    order = np.lexsort((r, h, steps_r, steps_h))
    start = 0
    while start < order.size:
        stop, cells = start, 0
        while stop < order.size:
            k, first = order[stop], order[start]
            cells += (int(r[k]) + 1) * (int(h[k]) + 1 if table else 1)
            alike = steps_h[k] == steps_h[first] and steps_r[k] == steps_r[first]
            if stop > start and (cells > _CELLS * (16 if table else 1) or not (alike or stop - start < _FEW)):
                break
            stop += 1
        yield order[start:stop]
        start = stop


def _positions(reference: IntArray) -> dict[int, list[int]]:
    places: dict[int, list[int]] = defaultdict(list)
    for position, word in enumerate(reference.tolist()):
        places[word].append(position)
    return dict(places)
