"""One step of ancestral sampling for many prefixes at once, by inversion of the cumulative distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..candidates import FloatArray, IntArray

_MAX_ENTRIES = 1 << 22  # survivors handled at once: 32 MB a float64 array, whatever the vocabulary


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
    device = torch.device("cpu") if scores.device.type == "mps" else scores.device  # mps has no float64
    scores = scores.to(device)
    keep = scores > -torch.inf
    survivors = keep.sum(dim=-1)
    _check(scores, survivors)
    tokens = np.empty(row_of.shape, dtype=np.int64)
    log_q = np.empty(row_of.shape, dtype=np.float64)
    for start, end in _row_blocks(survivors.cpu().numpy()):
        low, high = np.searchsorted(row_of, [start, end])
        tokens[low:high], log_q[low:high] = _invert_block(
            scores[start:end],
            keep[start:end],
            survivors[start:end],
            torch.as_tensor(row_of[low:high] - start, device=device),
            torch.as_tensor(uniforms[low:high], device=device),
        )
    return tokens, log_q


def _invert_block(
    scores: torch.Tensor, keep: torch.Tensor, survivors: torch.Tensor, row_of: torch.Tensor, uniforms: torch.Tensor
) -> tuple[IntArray, FloatArray]:
    """All rows share one sorted array: row + cumulative probability, so that one search serves every sample."""
    rows, columns = keep.nonzero(as_tuple=True)
    values = scores[rows, columns].double()
    values = values - scores.amax(dim=-1).double()[rows]
    running = values.exp().cumsum(0)
    ends = survivors.cumsum(0)
    before = torch.cat([running.new_zeros(1), running[ends - 1]])
    totals = before.diff()
    position = rows + (running - before[rows]) / totals[rows]
    hits = torch.searchsorted(position, row_of + uniforms, right=True)
    hits = torch.minimum(torch.maximum(hits, (ends - survivors)[row_of]), ends[row_of] - 1)
    log_q = values[hits] - totals.log()[row_of]
    return columns[hits].cpu().numpy(), log_q.cpu().numpy()


def _row_blocks(survivors: IntArray) -> list[tuple[int, int]]:
    """Consecutive rows that together have at most _MAX_ENTRIES survivors (at least one row each)."""
    blocks, start, held = [], 0, 0
    for row, count in enumerate(survivors.tolist()):
        if held and held + count > _MAX_ENTRIES:
            blocks.append((start, row))
            start, held = row, 0
        held += count
    blocks.append((start, len(survivors)))
    return blocks


def _check(scores: torch.Tensor, survivors: torch.Tensor) -> None:
    if bool((survivors == 0).any()) or bool((scores == torch.inf).any()):
        bad = int((torch.isnan(scores) | (scores == torch.inf)).any(dim=-1).sum())
        cause = (
            f"{bad} rows hold NaN or +inf: run the model in float32 or bfloat16"
            if bad
            else "the logits processors leave no token to draw: loosen the constraints"
        )
        raise ValueError(f"the next-token distribution is empty for {int((survivors == 0).sum())} prefixes; {cause}")
