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

from ..candidates import FloatArray, IntArray
from ._cache import PrefixCache
from ._draw import draw
from ._forward import Forward
from ._prefixes import Finished, Prefixes
from ._step import Scoring
from .base import DrawingSampler, Request, Samples, eos_ids
from .randomness import UniformStream

# From this many prefixes on, a source of an encoder-decoder model is decoded on its own: its cross-attention keys and
# values are then shared by a view, where rows of several sources would have to gather them anew at every step.
SOLO_ROWS = 64


@dataclass(frozen=True, eq=False)
class _Waiting:
    """Prefixes to run next, whose row k continues row parents[k] of `cache`; `last` if nobody else needs that cache."""

    prefixes: Prefixes
    parents: IntArray
    cache: PrefixCache
    last: bool

    def open(self) -> PrefixCache:
        return self.cache.select(self.parents) if self.last else self.cache.fork(self.parents)


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
        self.scoring = Scoring(
            request.logits_processor, sampler.truncation, request.input_ids.device, len(request.keys)
        )
        self.uniforms = [UniformStream(seed, key, n) for key in request.keys]
        self.finished = [Finished() for _ in request.keys]
        self.model_rows = np.zeros(len(request.keys), dtype=np.int64)

    def start(self) -> list[_Waiting]:
        size = len(self.request.keys)
        prompts = Prefixes(
            sources=np.arange(size),
            ids=self.request.input_ids,
            tokens=np.empty((size, 0), dtype=np.int64),
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
        eos = eos_ids(self.request.generation_config)
        return [found.samples(eos, int(rows)) for found, rows in zip(self.finished, self.model_rows, strict=True)]

    def _split(self, prefixes: Prefixes, logits: torch.Tensor, cache: PrefixCache) -> list[_Waiting]:
        """Draw the next token of every sample; put finished prefixes away and divide the others into passes."""
        self.model_rows += np.bincount(prefixes.sources, minlength=len(self.model_rows))
        step = self.scoring(prefixes.ids, logits.to(prefixes.ids.device), prefixes.sources)
        children = draw(step, prefixes.row_of, self._uniforms_for(prefixes))
        grown = prefixes.grown(children)
        done = self.request.stopping_criteria(grown.ids, None).cpu().numpy()
        self._put_away(grown.rows(np.flatnonzero(done)))
        parts = self._passes(grown, np.flatnonzero(~done), cache.shares_sources)
        pending = [(grown.rows(part), children.parents[part]) for part in parts]
        pending.sort(key=lambda item: len(item[0].samples), reverse=True)  # a stack: the smallest is taken first
        return [_Waiting(rows, parents, cache, last=k == 0) for k, (rows, parents) in enumerate(pending)]

    def _uniforms_for(self, prefixes: Prefixes) -> FloatArray:
        step = prefixes.tokens.shape[1]
        if len(self.uniforms) == 1:
            return self.uniforms[0].step(step)[prefixes.samples]
        present, position = np.unique(prefixes.sources, return_inverse=True)
        table = np.stack([self.uniforms[source].step(step) for source in present])
        return np.asarray(table[position[prefixes.row_of], prefixes.samples])

    def _put_away(self, done: Prefixes) -> None:
        for source in set(done.sources.tolist()):
            self.finished[source].add(done.rows(np.flatnonzero(done.sources == source)))

    def _passes(self, grown: Prefixes, live: IntArray, by_source: bool) -> Iterator[IntArray]:
        """Divide the live rows into forward passes of at most max_rows, sources with many prefixes on their own."""
        groups = [live]
        if by_source and len(self.finished) > 1:
            sources = grown.sources[live]
            counts = np.bincount(sources)
            solo = np.flatnonzero(counts >= (SOLO_ROWS if np.count_nonzero(counts) > 1 else np.inf))
            groups = [*(live[sources == source] for source in solo), live[~np.isin(sources, solo)]]
        for group in groups:
            if len(group) > self.max_rows:
                yield from np.array_split(group, -(-len(group) // self.max_rows))
            elif len(group):
                yield group
