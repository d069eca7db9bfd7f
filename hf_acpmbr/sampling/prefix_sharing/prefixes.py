"""Distinct prefixes with the samples that run through them, which of them have ended, and what they end as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

from ...candidates import FloatArray, IntArray, TokenIds
from ..base import BoolArray, Samples
from .drawing import Children


@dataclass(frozen=True, eq=False)
class Prefixes:
    """U distinct prefixes of equal length with the c samples that run through them, all on the host.

    sources: (U,) ascending; ids: (U, P + t) prompt and tokens; logprobs, sampling_logprobs: (U,) so far; samples,
    row_of: (c,) number of each sample within its source, and its row (ascending).
    """

    sources: IntArray
    ids: IntArray
    logprobs: FloatArray
    sampling_logprobs: FloatArray
    samples: IntArray
    row_of: IntArray

    def __len__(self) -> int:
        return len(self.sources)

    def rows(self, keep: IntArray) -> Prefixes:
        """Return the prefixes `keep` (ascending row numbers) alone."""
        if len(keep) == len(self):
            return self
        number = np.full(len(self), -1, dtype=np.int64)
        number[keep] = np.arange(len(keep))
        renumbered = number[self.row_of]
        here = renumbered >= 0
        logprobs, sampling_logprobs = self.logprobs[keep], self.sampling_logprobs[keep]
        samples, row_of = self.samples[here], renumbered[here]
        return Prefixes(self.sources[keep], self.ids[keep], logprobs, sampling_logprobs, samples, row_of)

    def grown(self, children: Children) -> Prefixes:
        """Go one token further: row k continues row children.parents[k]."""
        parents = children.parents
        ids = np.empty((len(parents), self.ids.shape[1] + 1), dtype=self.ids.dtype)
        ids[:, :-1], ids[:, -1] = self.ids[parents], children.tokens
        samples, row_of = self.samples, self.row_of
        if len(parents) > len(self):  # else every row has one child, which all its samples went to
            order = np.argsort(children.child_of, kind="stable")
            samples, row_of = samples[order], children.child_of[order]
        return Prefixes(
            sources=self.sources[parents],
            ids=ids,
            logprobs=self.logprobs[parents] + children.logprobs,
            sampling_logprobs=self.sampling_logprobs[parents] + children.sampling_logprobs,
            samples=samples,
            row_of=row_of,
        )


class Finished:
    """The distinct sequences of one source that have ended so far, after a prompt of `prompt` tokens."""

    def __init__(self, prompt: int) -> None:
        self._prompt = prompt
        self._token_ids: list[TokenIds] = []
        self._parts: list[tuple[IntArray, IntArray, FloatArray, FloatArray]] = []

    def add(self, done: Prefixes) -> None:
        """Add prefixes of this source."""
        counts = np.bincount(done.row_of)  # every prefix has a sample
        self._token_ids += map(tuple, done.ids[:, self._prompt :].tolist())
        first = done.samples[counts.cumsum() - counts]
        self._parts.append((first, counts, done.logprobs, done.sampling_logprobs))

    def samples(self, eos: frozenset[int], model_rows: int) -> Samples:
        """Return all of them, in the order in which they were first drawn."""
        first, counts, logprobs, sampling_logprobs = map(np.concatenate, zip(*self._parts, strict=True))
        order = np.argsort(first)
        token_ids = tuple(self._token_ids[k] for k in order.tolist())
        finished = np.array([ids[-1] in eos for ids in token_ids], dtype=np.bool_)
        return Samples(token_ids, counts[order], logprobs[order], sampling_logprobs[order], finished, model_rows)


class Stopping:
    """A request's stopping criteria: end-of-sequence tokens and lengths on the host, all others on the device."""

    def __init__(self, criteria: StoppingCriteriaList, device: torch.device) -> None:
        self._device = device
        self._ends: set[int] = set()
        self._max_length = np.inf
        self._asked = StoppingCriteriaList()
        for item in criteria:
            if type(item) is EosTokenCriteria:
                self._ends.update(item.eos_token_id.reshape(-1).tolist())
            elif _is_length_alone(item):
                self._max_length = min(self._max_length, item.max_length)
            else:
                self._asked.append(item)

    def __call__(self, ids: IntArray) -> BoolArray:
        """(U,) whether each of the sequences `ids` (U, P + t) ends with its last token."""
        done = np.full(len(ids), ids.shape[1] >= self._max_length)
        for token in self._ends:
            done |= ids[:, -1] == token
        if self._asked:
            done |= self._asked(torch.as_tensor(ids, device=self._device), None).cpu().numpy()
        return done


def _is_length_alone(item: StoppingCriteria) -> TypeGuard[MaxLengthCriteria]:
    """Tell a maximum length within the model's positions; one beyond them warns when they are passed."""
    if type(item) is not MaxLengthCriteria:
        return False
    return item.max_position_embeddings is None or item.max_length <= item.max_position_embeddings + 1
