"""Distinct prefixes with the samples that run through them, and the sequences that they end as."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..candidates import FloatArray, IntArray, TokenIds
from ._draw import Children
from .base import Samples


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
        """The prefixes `keep` (ascending row numbers) alone."""
        if len(keep) == len(self):
            return self
        number = np.full(len(self), -1, dtype=np.int64)
        number[keep] = np.arange(len(keep))
        renumbered = number[self.row_of]
        here = renumbered >= 0
        return Prefixes(
            self.sources[keep],
            self.ids[keep],
            self.logprobs[keep],
            self.sampling_logprobs[keep],
            self.samples[here],
            renumbered[here],
        )

    def grown(self, children: Children) -> Prefixes:
        """One token further: row k continues row children.parents[k]."""
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


@dataclass(eq=False)
class Finished:
    """The distinct sequences of one source that have ended so far, after a prompt of `prompt` tokens."""

    prompt: int
    token_ids: list[TokenIds] = field(default_factory=list)
    _first_samples: list[IntArray] = field(default_factory=list)
    _counts: list[IntArray] = field(default_factory=list)
    _logprobs: list[FloatArray] = field(default_factory=list)
    _sampling_logprobs: list[FloatArray] = field(default_factory=list)

    def add(self, done: Prefixes) -> None:
        """Prefixes of this source."""
        counts = np.bincount(done.row_of)  # every prefix has a sample
        self.token_ids += map(tuple, done.ids[:, self.prompt :].tolist())
        self._first_samples.append(done.samples[counts.cumsum() - counts])
        self._counts.append(counts)
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
