"""Exact i.i.d. ancestral sampling that runs the model once per unique live prefix.

n independent samples of one source share their beginnings. A prefix is kept once, together with the samples that passed
through it; the model is asked once for its next-token distribution, every sample draws its own token from it, and the
prefix splits into the tokens drawn. The outcome is the multiset that n separate runs with the same random numbers would
give (see `randomness`), at one model row per distinct prefix instead of one per sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from ...candidates import FloatArray, IntArray
from ..base import BoolArray, DrawingSampler, Request, Samples
from ..randomness import Uniforms
from ..rows import Rows
from .drawing import Children, Scoring, draw
from .forward import Forward, PrefixCache

# From this many prefixes on, a source of an encoder-decoder model is decoded on its own: its cross-attention keys and
# values are then shared by a view, where rows of several sources would have to gather them anew at every step.
SOLO_ROWS = 64


class _Waiting(NamedTuple):
    """Prefixes to run next, whose row k continues row parents[k] of `cache`; `last` if no other needs it."""

    prefixes: Prefixes
    parents: IntArray
    cache: PrefixCache | None
    last: bool


@dataclass(frozen=True)
class PrefixSharing(DrawingSampler):
    """Exact samples, drawn over unique prefixes.

    When more than `max_rows` prefixes are alive, the surplus waits and points into its parents' cache instead of
    keeping its own. Parts with fewer samples go first, so a level that waits has at most half the samples of the level
    above, and at most about log2(n·S) caches of max_rows rows exist at once. `max_rows` changes memory and speed,
    never the samples. The seed together with a source's key fixes the source's samples.
    """

    name: ClassVar[str] = "prefix-sharing"

    @torch.no_grad()
    def sample_more(self, request: Request, ranges: Sequence[range], seed: int = 0) -> list[Samples]:
        """Draw these of each source's samples.

        Raises:
            ValueError: if prefixes cannot share what the model keeps, or the processors look at the batch row.
        """
        from ..probe import obstacle  # which tries parts of this package

        if (reason := obstacle(request)) is not None:
            raise ValueError(f"sampler='prefix-sharing' would be wrong here, because of {reason}: draw with 'auto'")
        run = _Run(self, request, ranges, seed)
        waiting = run.start()
        while waiting:
            waiting.extend(run.advance(waiting.pop()))
        return run.results()


class _Run:
    """One call: extends prefixes by a token at a time and gathers the finished sequences."""

    def __init__(self, sampler: PrefixSharing, request: Request, ranges: Sequence[range], seed: int) -> None:
        self.request, self.ranges, self.max_rows = request, ranges, sampler.max_rows
        self.n = max(wanted.stop for wanted in ranges)
        size = len(request.keys)
        self.forward = Forward(request)
        self.scoring = Scoring(request.logits_processor, sampler.truncation, request.input_ids.device, size)
        self.stopping = Stopping(request.stopping_criteria, request.input_ids)
        self.uniforms = Uniforms(seed, request.keys, self.n)
        self.model_rows = np.zeros(size, dtype=np.int64)
        self.finished: list[Prefixes] = []

    def start(self) -> list[_Waiting]:
        asked = np.array([k for k, wanted in enumerate(self.ranges) if len(wanted)], dtype=np.int64)
        prompts = Prefixes(
            sources=asked,
            tokens=np.empty((len(asked), 0), dtype=np.int64),
            logprobs=np.zeros(len(asked)),
            sampling_logprobs=np.zeros(len(asked)),
            samples=np.concatenate([k * self.n + np.array(self.ranges[k]) for k in asked.tolist()]),
            row_of=np.repeat(np.arange(len(asked)), [len(self.ranges[k]) for k in asked.tolist()]),
        )
        return [_Waiting(prompts, prompts.sources, None, last=True)]

    def advance(self, waiting: _Waiting) -> list[_Waiting]:
        """Draw the next token of every sample; store finished prefixes and divide the others into passes."""
        prefixes, parents, cache, last = waiting
        self.model_rows += np.bincount(prefixes.sources, minlength=len(self.model_rows))
        prompts = self.request.input_ids
        rows, length = prefixes.tokens.shape
        # One upload per step.
        packed = torch.as_tensor(np.concatenate([prefixes.sources, parents, prefixes.tokens.reshape(-1)]))
        there = packed.to(prompts.device, non_blocking=True)
        sources, tokens = Rows(prefixes.sources, there[:rows]), there[2 * rows :].view(rows, length)
        ids = torch.cat([sources.pick(prompts), tokens], dim=1)
        if cache is None:
            logits, cache = self.forward.first()
            if rows < len(logits):  # some sources have all their samples
                logits, cache = sources.pick(logits), cache.follow(sources, sources)
        else:
            cache = cache.follow(Rows(parents, there[rows : 2 * rows]), sources, fork=not last)
            logits = self.forward.next(ids, sources, cache.whole)
        step = self.scoring(ids, logits.to(prompts.device), sources)
        uniforms = self.uniforms.step(length)
        children = draw(step, prefixes.row_of, uniforms[prefixes.samples])
        if length < self.request.forced_tokens:
            children.logprobs[:] = 0.0
        grown, parents = prefixes.grown(children), children.parents
        done = self.stopping(grown.sources, grown.tokens)
        if done.any():
            self.finished.append(grown.rows(done.nonzero()[0]))
            live = (~done).nonzero()[0]
            grown, parents = grown.rows(live), parents[live]
        pending = [(grown.rows(part), parents[part]) for part in self._passes(grown.sources)]
        pending.sort(key=lambda item: len(item[0].samples), reverse=True)  # a stack: the smallest is taken first
        return [_Waiting(rows, parents, cache, last=k == 0) for k, (rows, parents) in enumerate(pending)]

    def _passes(self, sources: IntArray) -> Iterator[IntArray]:
        """Divide rows into forward passes of at most max_rows, sources with many prefixes on their own."""
        groups = [np.arange(len(sources))]
        if self.forward.cross and len(self.model_rows) > 1:
            counts = np.bincount(sources)
            solo = np.flatnonzero(counts >= (SOLO_ROWS if np.count_nonzero(counts) > 1 else np.inf))
            groups = [
                *((sources == source).nonzero()[0] for source in solo),
                (~np.isin(sources, solo)).nonzero()[0],
            ]
        for group in groups:
            if len(group) > self.max_rows:
                yield from np.array_split(group, -(-len(group) // self.max_rows))
            elif len(group):
                yield group

    def results(self) -> list[Samples]:
        """Return each source's distinct sequences, in the order in which they were first drawn."""
        eos, done = self.request.eos_ids, self.finished
        counts = [np.bincount(part.row_of) for part in done]  # every prefix has a sample
        first = np.concatenate([part.samples[k.cumsum() - k] for part, k in zip(done, counts, strict=True)])
        count = np.concatenate(counts)
        ids = [tuple(tokens) for part in done for tokens in part.tokens.tolist()]
        logprobs = np.concatenate([part.logprobs for part in done])
        sampling_logprobs = np.concatenate([part.sampling_logprobs for part in done])
        order = np.argsort(first)
        ends = np.searchsorted(first[order], self.n * np.arange(1, len(self.model_rows)))
        found = []
        for own, model_rows in zip(np.split(order, ends), self.model_rows.tolist(), strict=True):
            token_ids = tuple(ids[k] for k in own.tolist())
            finished = np.array([tokens[-1] in eos for tokens in token_ids], dtype=np.bool_)
            totals = logprobs[own], sampling_logprobs[own]
            found.append(Samples(token_ids, count[own], *totals, finished, model_rows))
        return found


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
        """Return only the prefixes `keep` (ascending row numbers)."""
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
        """Extend the prefixes by one token: row k continues row children.parents[k]."""
        parents = children.parents
        samples, row_of = self.samples, self.row_of
        if len(parents) > len(self):  # else each row has one child, which all its samples went to
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
        """Return (U,) whether each of the prefixes `tokens` (U, t) of `sources` (U,) ends with its last token."""
        done = np.full(len(tokens), self._prompts.shape[1] + tokens.shape[1] >= self._max_length)
        for token in self._ends:
            done |= tokens[:, -1] == token
        if self._asked:
            new = torch.as_tensor(tokens, device=self._prompts.device)
            ids = torch.cat([Rows(sources).pick(self._prompts), new], dim=1)
            done |= self._asked(ids, None).cpu().numpy()
        return done
