"""Distinct prefixes with the samples that run through them, and which of them have ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from ...candidates import FloatArray, IntArray
from ..base import BoolArray
from ..rows import Rows
from .drawing import Children


@dataclass(frozen=True, eq=False)
class Prefixes:
    """U distinct prefixes of equal length with the c samples that run through them, all on the host.

    sources: (U,) ascending; tokens: (U, t) after the prompt; logprobs, sampling_logprobs: (U,) so far; samples,
    row_of: (c,) number of each sample (source · n + its number within the source), and its row (ascending).
    """

    sources: IntArray
    tokens: IntArray
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
        return Prefixes(self.sources[keep], self.tokens[keep], logprobs, sampling_logprobs, samples, row_of)

    def grown(self, children: Children) -> Prefixes:
        """Go one token further: row k continues row children.parents[k]."""
        parents = children.parents
        samples, row_of = self.samples, self.row_of
        if len(parents) > len(self):  # else every row has one child, which all its samples went to
            order = np.argsort(children.child_of, kind="stable")
            samples, row_of = samples[order], children.child_of[order]
        return Prefixes(
            sources=self.sources[parents],
            tokens=np.column_stack([self.tokens[parents], children.tokens]),
            logprobs=self.logprobs[parents] + children.logprobs,
            sampling_logprobs=self.sampling_logprobs[parents] + children.sampling_logprobs,
            samples=samples,
            row_of=row_of,
        )


class Stopping:
    """A request's stopping criteria: end-of-sequence tokens and lengths on the host, others on the device.

    `prompts`: (S, P) token ids of the sources.
    """

    def __init__(self, criteria: StoppingCriteriaList, prompts: torch.Tensor) -> None:
        self._prompts = prompts
        self._ends: set[int] = set()
        self._max_length = np.inf
        self._asked = StoppingCriteriaList()
        for item in criteria:
            if type(item) is EosTokenCriteria:
                self._ends.update(item.eos_token_id.reshape(-1).tolist())
            # A length beyond the model's positions warns when they are passed.
            elif type(item) is MaxLengthCriteria and item.max_length <= (item.max_position_embeddings or np.inf) + 1:
                self._max_length = min(self._max_length, item.max_length)
            else:
                self._asked.append(item)

    def __call__(self, sources: IntArray, tokens: IntArray) -> BoolArray:
        """(U,) whether each of the prefixes `tokens` (U, t) of `sources` (U,) ends with its last token."""
        done = np.full(len(tokens), self._prompts.shape[1] + tokens.shape[1] >= self._max_length)
        for token in self._ends:
            done |= tokens[:, -1] == token
        if self._asked:
            new = torch.as_tensor(tokens, device=self._prompts.device)
            ids = torch.cat([Rows(sources).pick(self._prompts), new], dim=1)
            done |= self._asked(ids, None).cpu().numpy()
        return done
