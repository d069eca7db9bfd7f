"""Exact i.i.d. ancestral sampling that runs the model once for each unique live prefix.

n independent samples of one source share their beginnings. A prefix is kept once, together with the samples that passed
through it; the model is asked once for its next-token distribution, every sample draws its own token from it, and the
prefix splits into the tokens drawn. The outcome is the multiset that n separate runs with the same random numbers would
give (see `randomness`), at one model row for each distinct prefix instead of one for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..candidates import FloatArray, IntArray, TokenIds
from ._cache import PrefixCache
from ._draw import Children, draw
from ._forward import Forward
from ._step import Scoring
from .base import DrawingSampler, Request, Samples, eos_ids
from .randomness import UniformStream

# From this many prefixes on, a source of an encoder-decoder model is decoded on its own: its cross-attention keys and
# values are then shared by a view, where rows of several sources would have to gather them anew at every step.
SOLO_ROWS = 64


@dataclass(frozen=True, eq=False)
class _Prefixes:
    """U distinct prefixes of equal length with the c samples that run through them.

    sources: (U,); ids: (U, P + t) prompt and tokens; logprobs, sampling_logprobs: (U,) so far;
    samples, row_of: (c,) number of each sample within its source, and its row (ascending).
    """

    sources: IntArray
    ids: torch.Tensor
    logprobs: FloatArray
    sampling_logprobs: FloatArray
    samples: IntArray
    row_of: IntArray

    def __len__(self) -> int:
        return len(self.sources)

    def rows(self, keep: IntArray) -> _Prefixes:
        """The prefixes `keep` (ascending row numbers) alone."""
        number = np.full(len(self), -1, dtype=np.int64)
        number[keep] = np.arange(len(keep))
        here = number[self.row_of] >= 0
        return _Prefixes(
            self.sources[keep],
            self.ids[torch.as_tensor(keep, device=self.ids.device)],
            self.logprobs[keep],
            self.sampling_logprobs[keep],
            self.samples[here],
            number[self.row_of[here]],
        )


@dataclass(frozen=True, eq=False)
class _Waiting:
    """Prefixes to run next, whose row k continues row parents[k] of `cache`; `last` if nobody else needs that cache."""

    prefixes: _Prefixes
    parents: IntArray
    cache: PrefixCache
    last: bool

    def open(self) -> PrefixCache:
        return self.cache.select(self.parents) if self.last else self.cache.fork(self.parents)


@dataclass(frozen=True, eq=False)
class _Finished:
    """One distinct sequence of a source."""

    token_ids: TokenIds
    first_sample: int
    count: int
    logprob: float
    sampling_logprob: float
    by_eos: bool


@dataclass(frozen=True)
class PrefixSharing(DrawingSampler):
    """Draws n samples per source over unique prefixes.

    When more than `max_rows` prefixes are alive, the surplus waits; it keeps no cache of its own but points into its
    parents'. Parts with fewer samples go first, so a level that waits has at most half the samples of the level
    above, and no more than about log2(n·S) caches of max_rows rows exist at once. `max_rows` changes memory and speed,
    never the samples. The seed together with a source's key fixes the source's samples.
    """

    name: ClassVar[str] = "prefix-sharing"

    @torch.no_grad()
    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """n samples for each of the S sources of the request."""
        if n < 1:
            raise ValueError(f"the number of samples must be at least 1, got {n}")
        run = _Run(self, request, n, seed)
        waiting = run.start()
        while waiting:
            waiting.extend(run.advance(waiting.pop()))
        return run.results()


class _Run:
    """One call: runs prefixes a token further and gathers the finished sequences."""

    def __init__(self, sampler: PrefixSharing, request: Request, n: int, seed: int) -> None:
        self.request, self.n, self.max_rows = request, n, sampler.max_rows
        self.forward = Forward(request)
        self.scoring = Scoring(request.logits_processor, sampler.truncation, request.input_ids.device)
        self.uniforms = [UniformStream(seed, key, n) for key in request.keys]
        self.eos = np.fromiter(eos_ids(request.generation_config), dtype=np.int64)
        self.finished: list[list[_Finished]] = [[] for _ in request.keys]
        self.model_rows = np.zeros(len(request.keys), dtype=np.int64)

    def start(self) -> list[_Waiting]:
        size = len(self.request.keys)
        prompts = _Prefixes(
            sources=np.arange(size),
            ids=self.request.input_ids,
            logprobs=np.zeros(size),
            sampling_logprobs=np.zeros(size),
            samples=np.tile(np.arange(self.n), size),
            row_of=np.repeat(np.arange(size), self.n),
        )
        return self._split(prompts, *self.forward.first())

    def advance(self, waiting: _Waiting) -> list[_Waiting]:
        prefixes, cache = waiting.prefixes, waiting.open()
        return self._split(prefixes, self.forward.next(prefixes.ids, prefixes.sources, cache), cache)

    def results(self) -> list[Samples]:
        return [_collect(found, int(rows)) for found, rows in zip(self.finished, self.model_rows, strict=True)]

    def _split(self, prefixes: _Prefixes, logits: torch.Tensor, cache: PrefixCache) -> list[_Waiting]:
        """Draw the next token of every sample; put finished prefixes away and divide the others into passes."""
        self.model_rows += np.bincount(prefixes.sources, minlength=len(self.model_rows))
        step = self.scoring(prefixes.ids, logits.to(prefixes.ids.device))
        children = draw(step, prefixes.row_of, self._uniforms_for(prefixes))
        grown = _grow(prefixes, children)
        done = self.request.stopping_criteria(grown.ids, None).cpu().numpy()
        self._put_away(grown.rows(np.flatnonzero(done)))
        parts = self._passes(grown, np.flatnonzero(~done), cache.shares_sources)
        pending = [(grown.rows(part), children.parents[part]) for part in parts]
        pending.sort(key=lambda item: len(item[0].samples), reverse=True)  # a stack: the smallest is taken first
        return [_Waiting(rows, parents, cache, last=k == 0) for k, (rows, parents) in enumerate(pending)]

    def _uniforms_for(self, prefixes: _Prefixes) -> FloatArray:
        step = prefixes.ids.shape[1] - self.request.input_ids.shape[1]
        present, position = np.unique(prefixes.sources, return_inverse=True)
        table = np.stack([self.uniforms[source].step(step) for source in present])
        return np.asarray(table[position[prefixes.row_of], prefixes.samples])

    def _put_away(self, done: _Prefixes) -> None:
        if not len(done):
            return
        starts = np.searchsorted(done.row_of, np.arange(len(done) + 1))
        tokens = done.ids[:, self.request.input_ids.shape[1] :].cpu().numpy()
        by_eos = np.isin(tokens[:, -1], self.eos)
        for row, source in enumerate(done.sources.tolist()):
            self.finished[source].append(
                _Finished(
                    token_ids=tuple(tokens[row].tolist()),
                    first_sample=int(done.samples[starts[row]]),
                    count=int(starts[row + 1] - starts[row]),
                    logprob=float(done.logprobs[row]),
                    sampling_logprob=float(done.sampling_logprobs[row]),
                    by_eos=bool(by_eos[row]),
                )
            )

    def _passes(self, grown: _Prefixes, live: IntArray, by_source: bool) -> Iterator[IntArray]:
        """Divide the live rows into forward passes of at most max_rows, sources with many prefixes on their own."""
        counts = np.bincount(grown.sources[live])
        solo: IntArray | list[int] = (
            np.flatnonzero(counts >= SOLO_ROWS) if by_source and np.count_nonzero(counts) > 1 else []
        )
        groups = [live[grown.sources[live] == source] for source in solo]
        groups.append(live[~np.isin(grown.sources[live], solo)])
        for group in groups:
            if len(group):
                yield from np.array_split(group, -(-len(group) // self.max_rows))


def _grow(prefixes: _Prefixes, children: Children) -> _Prefixes:
    parents = torch.as_tensor(children.parents, device=prefixes.ids.device)
    tokens = torch.as_tensor(children.tokens, device=prefixes.ids.device, dtype=prefixes.ids.dtype)
    order = np.argsort(children.child_of, kind="stable")
    return _Prefixes(
        sources=prefixes.sources[children.parents],
        ids=torch.cat([prefixes.ids[parents], tokens[:, None]], dim=1),
        logprobs=prefixes.logprobs[children.parents] + children.logprobs,
        sampling_logprobs=prefixes.sampling_logprobs[children.parents] + children.sampling_logprobs,
        samples=prefixes.samples[order],
        row_of=children.child_of[order],
    )


def _collect(found: list[_Finished], model_rows: int) -> Samples:
    found = sorted(found, key=lambda sequence: sequence.first_sample)
    return Samples(
        token_ids=tuple(sequence.token_ids for sequence in found),
        counts=np.array([sequence.count for sequence in found], dtype=np.int64),
        logprobs=np.array([sequence.logprob for sequence in found]),
        sampling_logprobs=np.array([sequence.sampling_logprob for sequence in found]),
        finished=np.array([sequence.by_eos for sequence in found], dtype=np.bool_),
        model_rows=model_rows,
    )
