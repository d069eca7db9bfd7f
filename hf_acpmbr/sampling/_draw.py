"""One step of ancestral sampling for many prefixes at once, by inversion of the cumulative distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..candidates import FloatArray, IntArray

_MAX_ENTRIES = 1 << 22  # handled at once: 32 MB a float64 array, whatever the vocabulary


@dataclass(frozen=True, eq=False)
class Children:
    """The distinct (prefix, next token) pairs that were drawn, sorted by prefix row and then token id.

    parents, tokens, logprobs, sampling_logprobs: (k,); child_of: (c,) the child that each of the c samples went to.
    """

    parents: IntArray
    tokens: IntArray
    logprobs: FloatArray
    sampling_logprobs: FloatArray
    child_of: IntArray


def draw(logits: torch.Tensor, scores: torch.Tensor, row_of: IntArray, uniforms: FloatArray) -> Children:
    """Next token of every sample.

    Args:
        logits: (U, V) raw logits, for the model's own log-probability.
        scores: (U, V) after processors and truncation; -inf where a token may not be drawn.
        row_of: (c,) ascending prefix row of each sample.
        uniforms: (c,) in [0, 1).
    """
    vocabulary = scores.shape[1]
    tokens, log_q = _invert(scores, row_of, uniforms)
    pairs, first, child_of = np.unique(row_of * vocabulary + tokens, return_index=True, return_inverse=True)
    parents, chosen = np.divmod(pairs, vocabulary)
    rows, columns = (torch.as_tensor(index, device=logits.device) for index in (parents, chosen))
    log_p = logits[rows, columns] - logits.logsumexp(dim=-1)[rows]
    return Children(parents, chosen, log_p.double().cpu().numpy(), log_q[first], child_of.reshape(-1).astype(np.int64))


def _invert(scores: torch.Tensor, row_of: IntArray, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
    """(c,) token and its log-probability for every sample, in float64."""
    device = torch.device("cpu") if scores.device.type == "mps" else scores.device  # mps has no float64
    scores = scores.to(device)
    top = scores.amax(dim=-1, keepdim=True)
    _check(top)
    keep = scores > -torch.inf
    survivors = keep.sum(dim=-1)
    few = int(survivors.sum()) < keep.numel() // 4
    tokens = np.empty(row_of.shape, dtype=np.int64)
    log_q = np.empty(row_of.shape, dtype=np.float64)
    entries = survivors.cpu().numpy() if few else np.full(len(scores), scores.shape[1])
    for start, end in _row_blocks(entries):
        low, high = np.searchsorted(row_of, [start, end])
        row = torch.as_tensor(row_of[low:high] - start, device=device)
        u = torch.as_tensor(uniforms[low:high], device=device)
        invert = _invert_few if few else _invert_many
        tokens[low:high], log_q[low:high] = invert(scores[start:end] - top[start:end], keep[start:end], row, u)
    return tokens, log_q


# In both, all rows share one ascending array, row + cumulative probability, so that one search serves every sample.


def _invert_few(
    scores: torch.Tensor, keep: torch.Tensor, row_of: torch.Tensor, uniforms: torch.Tensor
) -> tuple[IntArray, FloatArray]:
    """Where most tokens are cut: on the survivors alone."""
    rows, columns = keep.nonzero(as_tuple=True)
    values = scores[rows, columns].double()
    running = values.exp().cumsum(0)
    ends = keep.sum(dim=-1).cumsum(0)
    before = torch.cat([running.new_zeros(1), running[ends - 1]])
    totals = before.diff()
    position = rows + (running - before[rows]) / totals[rows]
    hits = torch.searchsorted(position, row_of + uniforms, right=True)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    hits = torch.minimum(torch.maximum(hits, starts[row_of]), ends[row_of] - 1)
    log_q = values[hits] - totals.log()[row_of]
    return columns[hits].cpu().numpy(), log_q.cpu().numpy()


def _invert_many(
    scores: torch.Tensor, keep: torch.Tensor, row_of: torch.Tensor, uniforms: torch.Tensor
) -> tuple[IntArray, FloatArray]:
    """Where most tokens survive: on the whole vocabulary, without gathering. A token of probability 0 is never hit,
    since the array does not rise there."""
    size = scores.shape[1]
    scores = scores.double()
    position = scores.exp().cumsum_(dim=-1)
    totals = position[:, -1].clone()
    position.div_(totals[:, None]).add_(torch.arange(len(scores), device=scores.device)[:, None])
    hits = torch.searchsorted(position.view(-1), row_of + uniforms, right=True)
    tokens = hits - row_of * size
    if bool((tokens >= size).any()):  # row + u was rounded up to row + 1
        last = size - 1 - keep.flip(-1).int().argmax(dim=-1)
        tokens = torch.minimum(tokens, last[row_of])
    log_q = scores[row_of, tokens] - totals.log()[row_of]
    return tokens.cpu().numpy(), log_q.cpu().numpy()


def _row_blocks(entries: IntArray) -> list[tuple[int, int]]:
    """Consecutive rows that together have at most _MAX_ENTRIES entries (at least one row each)."""
    blocks, start, held = [], 0, 0
    for row, count in enumerate(entries.tolist()):
        if held and held + count > _MAX_ENTRIES:
            blocks.append((start, row))
            start, held = row, 0
        held += count
    blocks.append((start, len(entries)))
    return blocks


def _check(top: torch.Tensor) -> None:
    """`top`: (U, 1) highest score of each row; NaN and +inf show here, and so does a row without any token."""
    empty = int((top == -torch.inf).sum())
    broken = int((~top.isfinite()).sum()) - empty
    if broken:
        raise ValueError(f"the logits of {broken} prefixes hold NaN or +inf: run the model in float32 or bfloat16")
    if empty:
        raise ValueError(
            f"the logits processors leave no token to draw for {empty} prefixes: loosen the constraints on the output"
        )
