"""The tokens that may be drawn, taken out of rows × vocabulary, where they are few."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..candidates import FloatArray, IntArray
from ._step import Step

_CACHED = 1 << 18  # entries worked on at a time on the host, so that a block stays in the processor's cache


@dataclass(frozen=True, eq=False)
class Survivors:
    """k tokens on the host, sorted by row and then token id; every row has at least one.

    rows, tokens: (k,); scores: (k,) to draw from; logprobs: (k,) under the model.
    """

    rows: IntArray
    tokens: IntArray
    scores: FloatArray
    logprobs: FloatArray


def on_host(step: Step) -> Survivors:
    """For scores on the CPU: block by block, so that each entry is read from memory once per normalisation."""
    size, vocabulary = step.scores.shape
    block = max(1, _CACHED // vocabulary)
    starts = range(0, size, block)
    parts = [_of_block(step.rows(start, start + block)) for start in starts]
    places = np.concatenate([found + start * vocabulary for (found, _), start in zip(parts, starts, strict=True)])
    logprobs = np.concatenate([part for _, part in parts])
    rows, tokens = np.divmod(places, vocabulary)
    if step.removed is not None:  # so far without the banned tokens' share of the model's probability
        one = np.searchsorted(rows, np.arange(size))
        normaliser = _at(step.logits, places[one]) - logprobs[one]
        logprobs -= np.logaddexp(0.0, step.removed.double().numpy() - normaliser)[rows]
    return Survivors(rows, tokens, _at(step.scores, places), logprobs)


def _of_block(step: Step) -> tuple[IntArray, FloatArray]:
    """Places in the flat block, and log-probabilities there."""
    scores = step.scores
    if step.epsilon is None:
        check_tops(scores.amax(dim=-1).numpy())
        places = np.flatnonzero(scores.numpy() > -np.inf)
        return places, _at(step.logits.log_softmax(dim=-1), places)
    shares = scores.softmax(dim=-1)
    keep = shares.numpy() >= np.float32(step.epsilon)  # numpy compares several times faster than torch
    places = np.flatnonzero(keep)
    lost = np.bincount(places // scores.shape[1], minlength=len(scores)) == 0
    if lost.any():
        places = _with_best(keep, lost, scores.numpy())
    if step.unchanged:
        return places, np.log(_at(shares, places))
    return places, _at(step.logits.log_softmax(dim=-1), places)


def _with_best(keep: npt.NDArray[np.bool_], lost: npt.NDArray[np.bool_], scores: npt.NDArray[np.float32]) -> IntArray:
    """As in transformers' warper: where no token reaches ε, the most probable one (all, if equal)."""
    tops = scores[lost].max(axis=1)
    check_tops(tops)
    keep[lost] = scores[lost] == tops[:, None]
    return np.flatnonzero(keep)


def _at(values: torch.Tensor, places: IntArray) -> FloatArray:
    return values.numpy().reshape(-1)[places].astype(np.float64)


def among_top(step: Step) -> Survivors | None:
    """For scores on an accelerator, in one read: at most 1/ε tokens of a row can reach ε.

    None without ε, and where more tokens than that are equally probable and none reaches it: all may be drawn.
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
    return Survivors(rows, ids[rows, columns].astype(np.int64), top[rows, columns].astype(np.float64), logprobs)


def check_tops(tops: npt.NDArray[np.floating]) -> None:
    """`tops`: (U,) highest score of each row; NaN and +inf show here, and so does a row without any token."""
    empty = np.count_nonzero(tops == -np.inf)
    broken = np.count_nonzero(~np.isfinite(tops)) - empty
    if broken:
        raise ValueError(f"the logits of {broken} prefixes hold NaN or +inf: run the model in float32 or bfloat16")
    if empty:
        raise ValueError(
            f"the logits processors leave no token to draw for {empty} prefixes: loosen the constraints on the output"
        )
