"""Exact i.i.d. ancestral sampling that runs the model once per unique live prefix.

n independent samples of one source share their beginnings. A prefix is kept once, together with the samples that passed
through it; the model is asked once for its next-token distribution, every sample draws its own token from it, and the
prefix splits into the tokens drawn. The outcome is the multiset that n separate runs with the same random numbers would
give (see `randomness`), at one model row per distinct prefix instead of one per sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ...candidates import FloatArray, IntArray
from ...config import integer
from ..base import DrawingSampler, Request, Samples, eos_ids
from ..randomness import UniformStream
from .drawing import draw
from .forward import Forward, PrefixCache
from .prefixes import Finished, Prefixes, Stopping
from .step import Scoring

# From this many prefixes on, a source of an encoder-decoder model is decoded on its own: its cross-attention keys and
# values are then shared by a view, where rows of several sources would have to gather them anew at every step.
SOLO_ROWS = 64


@dataclass(frozen=True, eq=False)
class _Waiting:
    """Prefixes to run next, whose row k continues row parents[k] of `cache`; `last` if no other needs it."""

    prefixes: Prefixes
    parents: IntArray
    cache: PrefixCache
    last: bool

    def open(self) -> PrefixCache:
        return self.cache.select(self.parents) if self.last else self.cache.fork(self.parents)


@dataclass(frozen=True)
class PrefixSharing(DrawingSampler):
    """Exact samples, drawn over unique prefixes.

    When more than `max_rows` prefixes are alive, the surplus waits; it keeps no cache of its own but points into its
    parents'. Parts with fewer samples go first, so a level that waits has at most half the samples of the level
    above, and no more than about log2(n·S) caches of max_rows rows exist at once. `max_rows` changes memory and speed,
    never the samples. The seed together with a source's key fixes the source's samples.
    """

    name: ClassVar[str] = "prefix-sharing"

    @torch.no_grad()
    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """Draw n samples for each of the S sources of the request."""
        integer(1)("the number of samples", n)
        run = _Run(self, request, n, seed)
        waiting = run.start()
        while waiting:
            waiting.extend(run.advance(waiting.pop()))
        return run.results()


class _Run:
    """One call: runs prefixes a token further and gathers the finished sequences."""

    def __init__(self, sampler: PrefixSharing, request: Request, n: int, seed: int) -> None:
        self.request, self.n, self.max_rows = request, n, sampler.max_rows
        self.device = request.input_ids.device
        self.forward = Forward(request)
        self.scoring = Scoring(request.logits_processor, sampler.truncation, self.device, len(request.keys))
        self.stopping = Stopping(request.stopping_criteria, self.device)
        self.uniforms = [UniformStream(seed, key, n) for key in request.keys]
        self.finished = [Finished(request.input_ids.shape[1]) for _ in request.keys]
        self.model_rows = np.zeros(len(request.keys), dtype=np.int64)

    def start(self) -> list[_Waiting]:
        size = len(self.request.keys)
        prompts = Prefixes(
            sources=np.arange(size),
            ids=self.request.input_ids.cpu().numpy(),
            logprobs=np.zeros(size),
            sampling_logprobs=np.zeros(size),
            samples=np.tile(np.arange(self.n), size),
            row_of=np.repeat(np.arange(size), self.n),
        )
        return self._split(prompts, self.request.input_ids, *self.forward.first())

    def advance(self, waiting: _Waiting) -> list[_Waiting]:
        prefixes, cache = waiting.prefixes, waiting.open()
        ids = torch.as_tensor(prefixes.ids, device=self.device)
        return self._split(prefixes, ids, self.forward.next(ids, prefixes.sources, cache), cache)

    def results(self) -> list[Samples]:
        eos = eos_ids(self.request.generation_config)
        return [found.samples(eos, int(rows)) for found, rows in zip(self.finished, self.model_rows, strict=True)]

    def _split(self, prefixes: Prefixes, ids: torch.Tensor, logits: torch.Tensor, cache: PrefixCache) -> list[_Waiting]:
        """Draw the next token of every sample; put finished prefixes away and divide the others into passes."""
        self.model_rows += np.bincount(prefixes.sources, minlength=len(self.model_rows))
        step = self.scoring(ids, logits.to(self.device), prefixes.sources)
        children = draw(step, prefixes.row_of, self._uniforms_for(prefixes))
        grown, parents = prefixes.grown(children), children.parents
        done = self.stopping(grown.ids)
        if done.any():
            self._put_away(grown.rows(done.nonzero()[0]))
            live = (~done).nonzero()[0]
            grown, parents = grown.rows(live), parents[live]
        pending = [(grown.rows(part), parents[part]) for part in self._passes(grown, cache.shares_sources)]
        pending.sort(key=lambda item: len(item[0].samples), reverse=True)  # a stack: the smallest is taken first
        return [_Waiting(rows, parents, cache, last=k == 0) for k, (rows, parents) in enumerate(pending)]

    def _uniforms_for(self, prefixes: Prefixes) -> FloatArray:
        step = prefixes.ids.shape[1] - self.request.input_ids.shape[1]
        first, last = int(prefixes.sources[0]), int(prefixes.sources[-1])
        if first == last:
            return np.asarray(self.uniforms[first].step(step)[prefixes.samples])
        each = _by_source(prefixes.sources[prefixes.row_of], prefixes.samples)
        return np.concatenate([self.uniforms[source].step(step)[samples] for source, samples in each])

    def _put_away(self, done: Prefixes) -> None:
        for source, rows in _by_source(done.sources, np.arange(len(done))):
            self.finished[source].add(done.rows(rows))

    def _passes(self, live: Prefixes, by_source: bool) -> Iterator[IntArray]:
        """Divide the rows into forward passes of at most max_rows, sources with many prefixes on their own."""
        groups = [np.arange(len(live))]
        if by_source and len(self.finished) > 1:
            counts = np.bincount(live.sources)
            solo = np.flatnonzero(counts >= (SOLO_ROWS if np.count_nonzero(counts) > 1 else np.inf))
            groups = [
                *((live.sources == source).nonzero()[0] for source in solo),
                (~np.isin(live.sources, solo)).nonzero()[0],
            ]
        for group in groups:
            if len(group) > self.max_rows:
                yield from np.array_split(group, -(-len(group) // self.max_rows))
            elif len(group):
                yield group


def _by_source(sources: IntArray, values: IntArray) -> Iterator[tuple[int, IntArray]]:
    """(source, its values) for ascending `sources`, one for each of `values`."""
    first = int(sources[0])
    if first == sources[-1]:
        yield first, values
        return
    edges = [0, *(np.flatnonzero(np.diff(sources)) + 1).tolist(), len(sources)]
    for start, end in itertools.pairwise(edges):
        yield int(sources[start]), values[start:end]
