"""One step of ancestral sampling for many prefixes at once, by inversion of the cumulative distribution."""

from __future__ import annotations

import itertools
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


def draw(
    log_p: torch.Tensor, scores: torch.Tensor, keep: torch.Tensor, row_of: IntArray, uniforms: FloatArray
) -> Children:
    """Next token of every sample.

    Args:
        log_p: (U, V) log-softmax of the raw logits, for the model's own log-probability.
        scores: (U, V) after processors and truncation.
        keep: (U, V) which tokens may be drawn.
        row_of: (c,) ascending prefix row of each sample.
        uniforms: (c,) in [0, 1).
    """
    vocabulary = scores.shape[1]
    tokens, log_q = _invert(scores, keep, row_of, uniforms)
    pairs, first, child_of = np.unique(row_of * vocabulary + tokens, return_index=True, return_inverse=True)
    parents, chosen = np.divmod(pairs, vocabulary)
    rows, columns = (torch.as_tensor(index, device=log_p.device) for index in (parents, chosen))
    chosen_log_p = log_p[rows, columns].double().cpu().numpy()
    return Children(parents, chosen, chosen_log_p, log_q[first], child_of.reshape(-1).astype(np.int64))


def _invert(
    scores: torch.Tensor, keep: torch.Tensor, row_of: IntArray, uniforms: FloatArray
) -> tuple[IntArray, FloatArray]:
    """(c,) token and its log-probability for every sample, in float64."""
    device = torch.device("cpu") if scores.device.type == "mps" else scores.device  # mps has no float64
    scores, keep = scores.to(device), keep.to(device)
    top = scores.amax(dim=-1)
    _check(top)
    kept = int(keep.count_nonzero())
    few = kept < keep.numel() // 4
    invert = _invert_few if few else _invert_many
    tokens = np.empty(row_of.shape, dtype=np.int64)
    log_q = np.empty(row_of.shape, dtype=np.float64)
    blocks = -(-(kept if few else keep.numel()) // _MAX_ENTRIES)
    edges = np.linspace(0, len(scores), min(blocks, len(scores)) + 1).astype(int)
    for start, end in itertools.pairwise(edges.tolist()):
        low, high = np.searchsorted(row_of, [start, end])
        row = torch.as_tensor(row_of[low:high] - start, device=device)
        u = torch.as_tensor(uniforms[low:high], device=device)
        tokens[low:high], log_q[low:high] = invert(scores[start:end], keep[start:end], top[start:end], row, u)
    return tokens, log_q


# In both, all rows share one ascending array, row + cumulative probability, so that one search serves every sample.


def _invert_few(
    scores: torch.Tensor, keep: torch.Tensor, top: torch.Tensor, row_of: torch.Tensor, uniforms: torch.Tensor
) -> tuple[IntArray, FloatArray]:
    """Where most tokens are cut: on the survivors alone."""
    rows, columns = keep.nonzero(as_tuple=True)
    values = scores[rows, columns].double() - top.double()[rows]
    running = values.exp().cumsum(0)
    ends = torch.bincount(rows, minlength=len(scores)).cumsum(0)
    before = torch.cat([running.new_zeros(1), running[ends - 1]])
    totals = before.diff()
    position = rows + (running - before[rows]) / totals[rows]
    hits = torch.searchsorted(position, row_of + uniforms, right=True)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    hits = torch.minimum(torch.maximum(hits, starts[row_of]), ends[row_of] - 1)
    log_q = values[hits] - totals.log()[row_of]
    return columns[hits].cpu().numpy(), log_q.cpu().numpy()


def _invert_many(
    scores: torch.Tensor, keep: torch.Tensor, top: torch.Tensor, row_of: torch.Tensor, uniforms: torch.Tensor
) -> tuple[IntArray, FloatArray]:
    """Where most tokens survive: on the whole vocabulary, without gathering. A token of probability 0 is never hit,
    since the array does not rise there."""
    size = scores.shape[1]
    scores = torch.where(keep, scores, -torch.inf).double() - top.double()[:, None]
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


def _check(top: torch.Tensor) -> None:
    """`top`: (U,) highest score of each row; NaN and +inf show here, and so does a row without any token."""
    empty = int((top == -torch.inf).sum())
    broken = int((~top.isfinite()).sum()) - empty
    if broken:
        raise ValueError(f"the logits of {broken} prefixes hold NaN or +inf: run the model in float32 or bfloat16")
    if empty:
        raise ValueError(
            f"the logits processors leave no token to draw for {empty} prefixes: loosen the constraints on the output"
        )
