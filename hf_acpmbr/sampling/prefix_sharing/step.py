"""What one step draws from: logits after processors and truncation, and the few tokens that survive them.

Rows × vocabulary is the largest array of a step, so passes over it that change nothing are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from ...candidates import FloatArray, IntArray
from ..base import BoolArray
from ..processors import for_rows, holds_value_per_source, split_bans, without_normalisation, writes_into_scores
from ..truncation import Truncation

_CACHED = 1 << 18  # entries worked on at a time on the host, so that a block stays in the processor's cache


@dataclass(frozen=True, eq=False)
class Step:
    """One row for each of U prefixes, over a vocabulary of V.

    Args:
        logits: (U, V) of the model, except that the constant bans stand in them as -inf.
        scores: (U, V) to draw from; the very same tensor where nothing changed the logits.
        removed: (U,) logsumexp of the logits that the bans replaced; None without bans.
        epsilon: tokens below this probability are still to be cut; None where nothing is.
        cuts: whether most tokens are likely to be cut, by ε or in the scores.
    """

    logits: torch.Tensor
    scores: torch.Tensor
    removed: torch.Tensor | None = None
    epsilon: float | None = None
    cuts: bool = True

    @property
    def unchanged(self) -> bool:
        """Whether one normalisation serves the model's log-probabilities and the sampling distribution."""
        return self.scores is self.logits

    def with_removed(self, normaliser: torch.Tensor) -> torch.Tensor:
        """Return the (U,) logsumexp of the model's own logits, from that of `logits`."""
        return normaliser if self.removed is None else torch.logaddexp(normaliser, self.removed.to(normaliser.dtype))

    def rows(self, start: int, end: int) -> Step:
        """Take a part of the rows."""
        if start == 0 and end >= len(self.scores):
            return self
        return self._each(lambda tensor: tensor[start:end])

    def to(self, device: str) -> Step:
        """Move it to another device."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Step:
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
        if self._epsilon and not warpers:
            processors = without_normalisation(processors)
        banned, constraints = split_bans(processors)
        self._copy = any(map(writes_into_scores, constraints))
        self._cuts = bool(self._epsilon) or bool(warpers)
        # One by one: a LogitsProcessorList looks up each signature at every call, which a small model notices.
        self._all: list[LogitsProcessor] = [*constraints, *warpers]
        self._keyed = any(map(holds_value_per_source, self._all))
        self._banned = torch.tensor(banned, device=device) if banned else None

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor, sources: IntArray) -> Step:
        """`ids`: (U, P + t); `logits`: (U, V), float32, which this may write into; `sources`: (U,)."""
        removed = None
        if self._banned is not None:
            removed = logits[:, self._banned].logsumexp(dim=-1)
            logits[:, self._banned] = -torch.inf
        scores = logits.clone() if self._copy else logits
        for process in [for_rows(item, sources, self._count) for item in self._all] if self._keyed else self._all:
            scores = process(ids, scores)
        return Step(logits, scores, removed, self._epsilon, self._cuts)


@dataclass(frozen=True, eq=False)
class Survivors:
    """k tokens of U rows on the host, sorted by row and then token id; every row has at least one.

    rows, tokens: (k,); counts: (U,) tokens of each row; scores: (k,) to draw from; logprobs: (k,) under the model.
    """

    rows: IntArray
    tokens: IntArray
    counts: IntArray
    scores: FloatArray
    logprobs: FloatArray


def on_host(step: Step) -> Survivors:
    """Take the survivors of scores on the CPU, block by block: memory is read once per normalisation."""
    size, vocabulary = step.scores.shape
    block = max(1, _CACHED // vocabulary)
    if size <= block:
        return _of_block(step)
    starts = range(0, size, block)
    parts = [_of_block(step.rows(start, start + block)) for start in starts]
    return Survivors(
        np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=True)]),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("tokens", "counts", "scores", "logprobs")
        ),
    )


def _of_block(step: Step) -> Survivors:
    scores, shares = step.scores.numpy(), None
    if step.epsilon is None:
        check_tops(scores.max(axis=1))
        keep = scores > -np.inf
    else:
        shares = step.scores.softmax(dim=-1)
        keep = shares.numpy() >= np.float32(step.epsilon)  # numpy compares several times faster than torch
    places, rows, counts = _places(keep)
    if not counts.all():
        places, rows, counts = _places(_with_best(keep, counts == 0, scores))
    if shares is not None and step.unchanged:
        logprobs = np.log(_at(shares, places))
    else:
        logprobs = _at(step.logits.log_softmax(dim=-1), places)
    if step.removed is not None:  # so far without the banned tokens' share of the model's probability
        one = counts.cumsum() - counts
        normaliser = _at(step.logits, places[one]) - logprobs[one]
        logprobs -= np.logaddexp(0.0, step.removed.double().numpy() - normaliser)[rows]
    return Survivors(rows, places - rows * scores.shape[1], counts, _at(step.scores, places), logprobs)


def _places(keep: BoolArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the places in the flat block that are True, the row of each, and how many each row has."""
    places = keep.reshape(-1).nonzero()[0]
    rows = places // keep.shape[1]
    return places, rows, np.bincount(rows, minlength=len(keep))


def _with_best(keep: BoolArray, lost: BoolArray, scores: npt.NDArray[np.float32]) -> BoolArray:
    """Add, as transformers' warper does, the most probable token (all, if equal) of rows where none reaches ε."""
    tops = scores[lost].max(axis=1)
    check_tops(tops)
    keep[lost] = scores[lost] == tops[:, None]
    return keep


def _at(values: torch.Tensor, places: IntArray) -> FloatArray:
    return values.numpy().reshape(-1)[places].astype(np.float64)


def among_top(step: Step) -> Survivors | None:
    """Take the survivors of scores on an accelerator in one read: at most 1/ε tokens of a row can reach ε.

    None without ε, and if more tokens than that are equally probable and none reaches it: all may be drawn.
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
