"""One step of ancestral sampling for many prefixes at once, by inversion of the cumulative distribution.

The logits are read as few times as the settings allow: once, if nothing but ε and constant bans stand between them and
the draw. What comes back from the device comes in one read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ...candidates import FloatArray, IntArray
from .step import Step, Survivors, among_top, check_tops, on_host

_MAX_ENTRIES = 1 << 22  # of rows × vocabulary handled at once: 32 MB per float64 array, whatever the vocabulary

_ZERO = np.zeros(1)


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


def draw(step: Step, row_of: IntArray, uniforms: FloatArray) -> Children:
    """Draw the next token of every sample: among the survivors if they are few, else among all tokens.

    Args:
        step: (U, V) scores to draw from.
        row_of: (c,) ascending prefix row of each sample.
        uniforms: (c,) in [0, 1).
    """
    device = step.scores.device.type
    if reads_are_free(device):
        return _by_groups(step, row_of, uniforms) if step.cuts else _from_all(step, row_of, uniforms)
    if (found := among_top(step)) is not None:
        return _from_survivors(found, row_of, uniforms)
    if step.epsilon is not None or device == "mps":  # mps has no float64
        return draw(step.to("cpu"), row_of, uniforms)
    return _from_all(step, row_of, uniforms)


def reads_are_free(device: str) -> bool:
    """Whether the host sees the device's memory without waiting."""
    return device == "cpu"


def _by_groups(step: Step, row_of: IntArray, uniforms: FloatArray) -> Children:
    """Draw on the CPU, where it costs nothing to look how many tokens survive."""
    if step.epsilon is not None:  # at most 1/ε tokens of a row
        return _from_survivors(on_host(step), row_of, uniforms)
    parts = []
    for start, end, here in _groups(step, row_of):
        part, rows, u = step.rows(start, end), row_of[here] - start, uniforms[here]
        found = on_host(part)
        few = len(found.rows) < part.scores.numel() // 4
        parts.append((start, _from_survivors(found, rows, u) if few else _from_all(part, rows, u)))
    return parts[0][1] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[tuple[int, Children]]) -> Children:
    """Join the children of consecutive groups of rows, each given with its first row."""
    sizes = np.cumsum([0, *(len(children.tokens) for _, children in parts)])
    return Children(
        np.concatenate([children.parents + start for start, children in parts]),
        np.concatenate([children.tokens for _, children in parts]),
        np.concatenate([children.logprobs for _, children in parts]),
        np.concatenate([children.sampling_logprobs for _, children in parts]),
        np.concatenate([children.child_of + size for (_, children), size in zip(parts, sizes, strict=False)]),
    )


def _groups(step: Step, row_of: IntArray) -> Iterator[tuple[int, int, slice]]:
    """Yield (first row, end, their samples) of groups of at most _MAX_ENTRIES entries, or of one row."""
    size = len(step.scores)
    if step.scores.numel() <= _MAX_ENTRIES:
        yield 0, size, slice(None)
        return
    edges = np.linspace(0, size, min(-(-step.scores.numel() // _MAX_ENTRIES), size) + 1).astype(int)
    samples = np.searchsorted(row_of, edges).tolist()
    for (start, end), (low, high) in zip(itertools.pairwise(edges.tolist()), itertools.pairwise(samples), strict=True):
        yield start, end, slice(low, high)


# In both, all rows share one ascending array, row + cumulative probability, so that one search serves every sample.


def _from_survivors(found: Survivors, row_of: IntArray, uniforms: FloatArray) -> Children:
    """Draw among the survivors alone, on the host."""
    rows = found.rows
    if len(rows) == len(found.counts):  # one for each row
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
    """Draw among the whole vocabulary on the device, without gathering; one read at the end."""
    device, count = step.scores.device, len(row_of)
    rows, u = (torch.as_tensor(part, device=device) for part in (row_of, uniforms))
    groups = _groups(step, row_of)
    parts = [_of_group(step.rows(start, end), rows[here] - start, u[here]) for start, end, here in groups]
    drawn, tops = (torch.cat(column, dim=-1) for column in zip(*parts, strict=True))
    read = torch.cat([drawn, tops.expand(3, -1)], dim=1).cpu().numpy()
    check_tops(read[0, count:])
    vocabulary = step.scores.shape[1]
    pairs = row_of * vocabulary + read[0, :count].astype(np.int64)
    distinct, first, child_of = np.unique(pairs, return_index=True, return_inverse=True)
    parents, tokens = np.divmod(distinct, vocabulary)
    return Children(parents, tokens, read[1, first], read[2, first], child_of.reshape(-1).astype(np.int64))


def _of_group(step: Step, row_of: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(3, c) tokens, log-probabilities and sampling log-probabilities; (U,) highest score of each row.

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
