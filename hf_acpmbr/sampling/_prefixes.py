"""Distinct prefixes with the samples that run through them, and the sequences that they end as."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from ..candidates import FloatArray, IntArray, TokenIds
from ._draw import Children
from .base import Samples


@dataclass(frozen=True, eq=False)
class Prefixes:
    """U distinct prefixes of equal length with the c samples that run through them.

    sources: (U,); ids: (U, P + t) prompt and tokens, on the model's device; tokens: (U, t) on the host, so that
    finished sequences need not be read back; logprobs, sampling_logprobs: (U,) so far; samples, row_of: (c,) number of
    each sample within its source, and its row (ascending).
    """

    sources: IntArray
    ids: torch.Tensor
    tokens: IntArray
    logprobs: FloatArray
    sampling_logprobs: FloatArray
    samples: IntArray
    row_of: IntArray

    def __len__(self) -> int:
        return len(self.sources)

    def rows(self, keep: IntArray) -> Prefixes:
        """The prefixes `keep` (ascending row numbers) alone."""
        if len(keep) == len(self):
            return self
        number = np.full(len(self), -1, dtype=np.int64)
        number[keep] = np.arange(len(keep))
        renumbered = number[self.row_of]
        here = renumbered >= 0
        return Prefixes(
            self.sources[keep],
            self.ids[torch.as_tensor(keep, device=self.ids.device)],
            self.tokens[keep],
            self.logprobs[keep],
            self.sampling_logprobs[keep],
            self.samples[here],
            renumbered[here],
        )

    def grown(self, children: Children) -> Prefixes:
        """One token further: row k continues row children.parents[k]."""
        parents = children.parents
        index, last = (torch.as_tensor(part, device=self.ids.device) for part in (parents, children.tokens))
        order = np.argsort(children.child_of, kind="stable")
        return Prefixes(
            sources=self.sources[parents],
            ids=torch.cat([self.ids[index], last[:, None].to(self.ids.dtype)], dim=1),
            tokens=np.concatenate([self.tokens[parents], children.tokens[:, None]], axis=1),
            logprobs=self.logprobs[parents] + children.logprobs,
            sampling_logprobs=self.sampling_logprobs[parents] + children.sampling_logprobs,
            samples=self.samples[order],
            row_of=children.child_of[order],
        )


@dataclass(eq=False)
class Finished:
    """The distinct sequences of one source that have ended so far."""

    token_ids: list[TokenIds] = field(default_factory=list)
    _first_samples: list[IntArray] = field(default_factory=list)
    _counts: list[IntArray] = field(default_factory=list)
    _logprobs: list[FloatArray] = field(default_factory=list)
    _sampling_logprobs: list[FloatArray] = field(default_factory=list)

    def add(self, done: Prefixes) -> None:
        """Prefixes of this source."""
        starts = np.searchsorted(done.row_of, np.arange(len(done)))  # every prefix has a sample
        self.token_ids += map(tuple, done.tokens.tolist())
        self._first_samples.append(done.samples[starts])
        self._counts.append(np.diff(starts, append=len(done.row_of)))
        self._logprobs.append(done.logprobs)
        self._sampling_logprobs.append(done.sampling_logprobs)

    def samples(self, eos: frozenset[int], model_rows: int) -> Samples:
        """All of them, in the order in which they were first drawn."""
        order = np.argsort(np.concatenate(self._first_samples))
        token_ids = tuple(self.token_ids[k] for k in order.tolist())
        return Samples(
            token_ids=token_ids,
            counts=np.concatenate(self._counts)[order],
            logprobs=np.concatenate(self._logprobs)[order],
            sampling_logprobs=np.concatenate(self._sampling_logprobs)[order],
            finished=np.array([ids[-1] in eos for ids in token_ids], dtype=np.bool_),
            model_rows=model_rows,
        )
