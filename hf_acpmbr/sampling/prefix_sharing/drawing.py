"""One step of ancestral sampling for many prefixes at once, by inversion of the cumulative distribution.

Rows × vocabulary is the largest array of a step, so passes over it that change nothing are left out: the logits are
read once if only ε and constant bans stand between them and the draw. The host waits for the device once per step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import LogitNormalization, LogitsProcessor, LogitsProcessorList

from ...candidates import FloatArray, IntArray
from ...devices import has_float64
from ..processors import for_rows, split_bans, writes_into_scores
from ..rows import Rows
from ..truncation import Truncation

_CACHED = 1 << 18  # entries per block on the host: 1 MB of float32 stays in the processor's cache
_MAX_ENTRIES = 1 << 22  # of rows × vocabulary at once: 32 MB per float64 array, whatever the vocabulary
_ZERO = np.zeros(1)


@dataclass(frozen=True, eq=False)
class Step:
    """What U prefixes draw from, one row each, over a vocabulary of V.

    Args:
        logits: (U, V) of the model, with -inf for tokens that are always banned.
        scores: (U, V) to draw from; the same object as `logits` if nothing changed them.
        removed: (U,) logsumexp of the logits that the bans replaced; None without bans.
        epsilon: cut tokens below this probability; None if none are left to cut.
        cuts: True if ε or the warpers probably cut most tokens.
    """

    logits: torch.Tensor
    scores: torch.Tensor
    removed: torch.Tensor | None = None
    epsilon: float | None = None
    cuts: bool = True

    @property
    def unchanged(self) -> bool:
        """True if one normalisation serves the model's log-probabilities and the sampling distribution."""
        return self.scores is self.logits

    def with_removed(self, normaliser: torch.Tensor) -> torch.Tensor:
        """Return the (U,) logsumexp of the model's own logits, from that of `logits`."""
        return normaliser if self.removed is None else torch.logaddexp(normaliser, self.removed.to(normaliser.dtype))

    def part(self, start: int, end: int) -> Step:
        """Take the rows from `start` to `end`."""
        return self.each(lambda tensor: tensor[start:end])

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Step:
        """Change every tensor alike."""
        logits = change(self.logits)
        scores = logits if self.unchanged else change(self.scores)
        removed = None if self.removed is None else change(self.removed)
        return Step(logits, scores, removed, self.epsilon, self.cuts)


class Scoring:
    """From the logits of prefixes to the Step that is drawn from: a request's processors, then the truncation.

    `count` is the number of sources that the processors were made for.
    """

    def __init__(
        self, processors: LogitsProcessorList, truncation: Truncation, device: torch.device, count: int = 1
    ) -> None:
        self._count = count
        warpers, self._epsilon = truncation.up_to_epsilon(str(device))
        if self._epsilon and not warpers:  # depends on differences of scores alone
            while processors and type(processors[-1]) is LogitNormalization:
                processors = LogitsProcessorList(processors[:-1])
        banned, constraints = split_bans(processors)
        self._copy = any(map(writes_into_scores, constraints))
        self._cuts = bool(self._epsilon) or bool(warpers)
        # One by one: a LogitsProcessorList looks up each signature at every call, which a small model notices.
        self._all: list[LogitsProcessor] = [*constraints, *warpers]
        self._banned = banned
        self._columns: torch.Tensor | None = None  # of those in the vocabulary

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor, sources: Rows) -> Step:
        """Make the Step of the prefixes `ids` (U, P + t) of `sources`; may write into `logits` (U, V), float32."""
        removed = None
        if self._banned:
            if self._columns is None:
                known = [token for token in self._banned if token < logits.shape[1]]
                self._columns = torch.tensor(known, device=logits.device)
            removed = logits[:, self._columns].logsumexp(dim=-1)
            logits[:, self._columns] = -torch.inf
        scores = logits.clone() if self._copy else logits
        for process in self._all:
            scores = for_rows(process, sources, self._count)(ids, scores)
        return Step(logits, scores, removed, self._epsilon, self._cuts)


class Children(NamedTuple):
    """The distinct (prefix, next token) pairs that were drawn, sorted by prefix row and then token id.

    parents, tokens, logprobs, sampling_logprobs: (k,); child_of: (c,) the child that each sample went to.
    """

    parents: IntArray
    tokens: IntArray
    logprobs: FloatArray
    sampling_logprobs: FloatArray
    child_of: IntArray


def draw(step: Step, row_of: IntArray, uniforms: FloatArray) -> Children:
    """Draw the next token of every sample: among the survivors if they are few, else among all tokens.

    Args:
        step: (U, V) scores to draw from.
        row_of: (c,) ascending prefix row of each sample.
        uniforms: (c,) in [0, 1).
    """
    device = step.scores.device.type
    if not reads_are_free(device):
        if (found := among_top(step)) is not None:
            return _from_survivors(found, row_of, uniforms)
        if step.epsilon is None and has_float64(device):
            return _from_all(step, row_of, uniforms)
        step = step.each(torch.Tensor.cpu)
    if step.epsilon is not None:  # at most 1/ε tokens of a row
        return _from_survivors(on_host(step), row_of, uniforms)
    if not step.cuts:
        return _from_all(step, row_of, uniforms)
    parts, done = [], 0
    for start, end, here in _groups(step, row_of):
        part, rows, u = step.part(start, end), row_of[here] - start, uniforms[here]
        found = on_host(part)
        few = len(found.rows) < part.scores.numel() // 4
        parents, *own, child_of = _from_survivors(found, rows, u) if few else _from_all(part, rows, u)
        parts.append((parents + start, *own, child_of + done))
        done += len(parents)
    return Children(*map(np.concatenate, zip(*parts, strict=True)))


def reads_are_free(device: str) -> bool:
    """Return whether the host reads the device's memory without waiting."""
    return device == "cpu"


def _groups(step: Step, row_of: IntArray) -> Iterator[tuple[int, int, slice]]:
    """Yield (first row, end, slice of their samples) of groups of at most _MAX_ENTRIES entries, or of one row."""
    size, entries = len(step.scores), step.scores.numel()
    edges = np.linspace(0, size, min(-(-entries // _MAX_ENTRIES), size) + 1).astype(int)
    samples = np.searchsorted(row_of, edges).tolist()
    for (start, end), (low, high) in zip(itertools.pairwise(edges.tolist()), itertools.pairwise(samples), strict=True):
        yield start, end, slice(low, high)


class Survivors(NamedTuple):
    """k tokens of U rows on the host, sorted by row and then token id; every row has at least one.

    rows, tokens: (k,); counts: (U,) tokens of each row; scores: (k,) to draw from; logprobs: (k,) under the model.
    """

    rows: IntArray
    tokens: IntArray
    counts: IntArray
    scores: FloatArray
    logprobs: FloatArray


def on_host(step: Step) -> Survivors:
    """Find the survivors of scores on the CPU, block by block, reading memory once per normalisation."""
    size, vocabulary = step.scores.shape
    block = max(1, _CACHED // vocabulary)
    if size > block:
        starts = range(0, size, block)
        parts = [on_host(step.part(start, start + block)) for start in starts]
        found = Survivors(*map(np.concatenate, zip(*parts, strict=True)))
        return found._replace(rows=np.repeat(np.arange(size), found.counts))
    scores, shares = step.scores.numpy(), None
    if step.epsilon is None:
        check_tops(scores.max(axis=1))
        keep = scores > -np.inf
    else:
        shares = step.scores.softmax(dim=-1)
        keep = shares.numpy() >= np.float32(step.epsilon)  # numpy compares several times faster than torch
    while True:
        places = keep.reshape(-1).nonzero()[0]
        rows = places // vocabulary
        counts = np.bincount(rows, minlength=size)
        if counts.all():
            break
        # As transformers' warper does, keep the most probable token (all, if equal) of rows where none reaches ε.
        lost = counts == 0
        tops = scores[lost].max(axis=1)
        check_tops(tops)
        keep[lost] = scores[lost] == tops[:, None]

    def at(values: npt.NDArray[np.float32], where: IntArray) -> FloatArray:
        return values.reshape(-1)[where].astype(np.float64)

    if shares is not None and step.unchanged:
        logprobs = np.log(at(shares.numpy(), places))
    else:
        logprobs = at(step.logits.log_softmax(dim=-1).numpy(), places)
    if step.removed is not None:  # so far without the banned tokens' share of the model's probability
        one = counts.cumsum() - counts
        normaliser = at(step.logits.numpy(), places[one]) - logprobs[one]
        logprobs -= np.logaddexp(0.0, step.removed.double().numpy() - normaliser)[rows]
    return Survivors(rows, places - rows * vocabulary, counts, at(scores, places), logprobs)


def among_top(step: Step) -> Survivors | None:
    """Find the survivors of scores on an accelerator in one read: at most 1/ε tokens of a row can reach ε.

    None without ε, and if no token of a row reaches it and more than that are equally probable: all may be drawn.
    """
    if step.epsilon is None:
        return None
    vocabulary = step.scores.shape[1]
    width = min(vocabulary, math.floor(1 / step.epsilon) + 2)
    values, tokens = step.scores.topk(width, dim=-1)
    normaliser = step.scores.logsumexp(dim=-1)
    logits, own = values, normaliser
    if not step.unchanged:
        logits, own = step.logits.gather(1, tokens), step.logits.logsumexp(dim=-1)
    own = step.with_removed(own)
    # Token ids are exact in float32 below 2^24.
    read = torch.cat([values, logits, tokens.float(), normaliser[:, None], own[:, None]], dim=1).cpu().numpy()
    top, raw, ids = (read[:, k * width : (k + 1) * width] for k in range(3))
    check_tops(top[:, 0])
    keep = top.astype(np.float64) >= read[:, -2:-1].astype(np.float64) + math.log(step.epsilon)
    lost = ~keep[:, 0]
    keep[lost] = top[lost] == top[lost, :1]
    if width < vocabulary and keep[lost, -1].any():
        return None
    rows, columns = np.nonzero(keep)
    order = np.lexsort((ids[rows, columns], rows))
    rows, columns = rows[order], columns[order]
    logprobs = raw[rows, columns].astype(np.float64) - read[rows, -1]
    scores = top[rows, columns].astype(np.float64)
    return Survivors(rows, ids[rows, columns].astype(np.int64), keep.sum(axis=1), scores, logprobs)


def check_tops(tops: npt.NDArray[np.floating]) -> None:
    """Refuse `tops`, the (U,) highest scores of rows, with NaN or +inf, or of a row without any token."""
    empty = np.count_nonzero(tops == -np.inf)
    broken = np.count_nonzero(~np.isfinite(tops)) - empty
    if broken:
        raise ValueError(f"the logits of {broken} prefixes hold NaN or +inf: run the model in float32 or bfloat16")
    if empty:
        raise ValueError(
            f"the logits processors leave no token to draw for {empty} prefixes: loosen the constraints on the output"
        )


# In both functions all rows share one ascending array, row + cumulative probability: one search serves all samples.


def _from_survivors(found: Survivors, row_of: IntArray, uniforms: FloatArray) -> Children:
    """Draw among the survivors, on the host."""
    rows = found.rows
    if len(rows) == len(found.counts):  # one per row
        return Children(rows, found.tokens, found.logprobs, np.zeros(len(rows)), row_of)
    lasts = found.counts.cumsum() - 1
    values = found.scores - np.maximum.reduceat(found.scores, lasts + 1 - found.counts)[rows]
    running = np.exp(values).cumsum()
    ends = running[lasts]
    before = np.concatenate([_ZERO, ends[:-1]])
    totals = ends - before
    position = rows + (running - before[rows]) / totals[rows]
    # The last survivor of a row stands at row + 1 exactly; row + u may be rounded up to it.
    hits = np.minimum(position.searchsorted(row_of + uniforms, side="right"), lasts[row_of])
    chosen = np.zeros(len(rows), dtype=np.bool_)
    chosen[hits] = True
    children = chosen.nonzero()[0]
    parents = rows[children]
    number = np.empty(len(rows), dtype=np.int64)
    number[children] = np.arange(len(children))
    log_q = values[children] - np.log(totals)[parents]
    return Children(parents, found.tokens[children], found.logprobs[children], log_q, number[hits])


def _from_all(step: Step, row_of: IntArray, uniforms: FloatArray) -> Children:
    """Draw among the whole vocabulary on the device, with one read at the end."""
    count = len(row_of)
    packed = torch.as_tensor(np.stack([row_of, uniforms]), device=step.scores.device)  # one upload
    rows, u = packed[0].long(), packed[1]
    groups = _groups(step, row_of)
    parts = [_of_group(step.part(start, end), rows[here] - start, u[here]) for start, end, here in groups]
    drawn, tops = (torch.cat(column, dim=-1) for column in zip(*parts, strict=True))
    read = torch.cat([drawn, tops.expand(3, -1)], dim=1).cpu().numpy()
    check_tops(read[0, count:])
    vocabulary = step.scores.shape[1]
    pairs = row_of * vocabulary + read[0, :count].astype(np.int64)
    distinct, first, child_of = np.unique(pairs, return_index=True, return_inverse=True)
    parents, tokens = np.divmod(distinct, vocabulary)
    return Children(parents, tokens, read[1, first], read[2, first], child_of.reshape(-1).astype(np.int64))


def _of_group(step: Step, row_of: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (3, c) tokens, log-probabilities and sampling log-probabilities, and the (U,) highest scores.

    A token of probability 0 is never hit, since the array does not rise there.
    """
    scores = step.scores.double()
    size, vocabulary = scores.shape
    tops = scores.amax(dim=-1)
    scores = scores - tops[:, None]
    position = scores.exp().cumsum_(dim=-1)
    totals = position[:, -1].clone()
    position.div_(totals[:, None]).add_(torch.arange(size, device=scores.device)[:, None])
    # row + u may be rounded up to row + 1, which only the next row exceeds.
    sought = torch.minimum(row_of + uniforms, torch.nextafter(row_of + 1.0, torch.zeros_like(uniforms)))
    tokens = torch.searchsorted(position.view(-1), sought, right=True) - row_of * vocabulary
    tokens = tokens.clamp_(0, vocabulary - 1)  # rows of NaN alone fall outside, and are reported
    own = tops + totals.log() if step.unchanged else step.logits.logsumexp(dim=-1).double()
    raw = step.logits[row_of, tokens].double() - step.with_removed(own)[row_of]
    return torch.stack([tokens.double(), raw, scores[row_of, tokens] - totals.log()[row_of]]), tops
