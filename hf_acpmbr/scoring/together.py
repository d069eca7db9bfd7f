"""The driver: sources ask for scores, their questions are answered in shared batches, and they go on.

A decoder is a generator. It yields an `Ask` (or a list of them), is sent the answers, and returns its decision.
This module advances any number of such sources, scores what they ask of one utility in one call of a kernel that holds
the texts of all of them, and lets one half of the sources compute while the other half is scored. Who is scored with
whom depends on the order of the sources and on what they ask, never on how fast a thread was, so a run repeats to the
last bit. Seconds, time limits, progress and cancelling are kept here as well.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from ..candidates import IntArray
from .engine import Lookup, Scorer
from .utility import Statistics, TextTable

T = TypeVar("T")
# Sources decided together. Each keeps its texts, scores and encodings until the last of them is decided.
_TOGETHER = 64
# With three sources or fewer, one full batch is worth more than computing during a half-empty one.
_LEAST_FOR_HALVES = 4
_NOTHING: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(eq=False)
class Ask:
    """What a decoder yields: scores of hypotheses[rows] against references[columns] by one scorer, as an array.

    Args:
        scorer: whose seconds an answer takes, on whose device.
        rows, columns: (k,) indices.
        shape: of the answer; default (k,).
        work: see `call`; then there are no rows and columns.

    Attributes:
        value: the answer; a Lookup while its scores are computed with those of others.
        error: what scoring raised instead.
        seconds: what it took.
    """

    scorer: Scorer
    rows: IntArray = field(default_factory=_NOTHING.copy)
    columns: IntArray = field(default_factory=_NOTHING.copy)
    shape: tuple[int, ...] = (-1,)
    work: Callable[[], object] | None = None
    value: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)

    @classmethod
    def block(cls, scorer: Scorer, rows: IntArray | None = None, columns: IntArray | None = None) -> Ask:
        """Ask for a rectangle: (len(rows), len(columns)) scores; None takes all rows or columns."""
        rows = np.arange(scorer.shape[0]) if rows is None else rows
        columns = np.arange(scorer.shape[1]) if columns is None else columns
        shape = len(rows), len(columns)
        return cls(scorer, np.repeat(rows, shape[1]), np.tile(columns, shape[0]), shape)

    @classmethod
    def call(cls, scorer: Scorer, work: Callable[[], object]) -> Ask:
        """Ask for what `work` returns, computed on the scorer's device: averaged references, sentence vectors."""
        return cls(scorer, work=work)

    def attempt(self, work: Callable[[], object] | None = None) -> None:
        """Keep what `work` (default: the scorer alone) returns or raises, and how long it took."""
        start = time.perf_counter()
        try:
            work = work or self.work
            self.value = self.scorer(self.rows, self.columns) if work is None else work()
        except Exception as error:
            self.error = error
        self.seconds += time.perf_counter() - start


# One question, answered by one value, or several at once, answered by a list.
Asks: TypeAlias = "Ask | Sequence[Ask]"
Steps: TypeAlias = "Generator[Asks, Any, T]"


@dataclass(eq=False)
class Meter:
    """The seconds of one source: its share of each scoring, and its own computing. Waiting for others is free.

    Args:
        limit: seconds after which nothing more is affordable.
    """

    limit: float = math.inf
    scoring: dict[Scorer, float] = field(default_factory=dict)
    computed: float = 0.0
    since: float | None = None
    pace: dict[Scorer, float] = field(default_factory=dict)  # seconds per score when last asked

    @property
    def computing(self) -> float:
        """Seconds of the decoder itself, up to now."""
        return self.computed + (0.0 if self.since is None else time.perf_counter() - self.since)

    @property
    def seconds(self) -> float:
        """Seconds spent, up to now."""
        return self.computing + sum(self.scoring.values())

    def affords(self, scorer: Scorer, most: int, share: float = 1.0) -> int:
        """Return at most `most`: how many more scores should be done before `share` of the limit is over.

        A score is expected to take what it took on average when the scorer was last asked.
        """
        pace = self.pace.get(scorer, 0.0)
        left = max(share * self.limit - self.seconds, 0.0)
        return most if most * pace <= left else int(left / pace)


@dataclass(eq=False)
class Source(Generic[T]):
    """One source on its way to a decision.

    Args:
        steps: the decoder, running.
        scorers: all it may ask; the list may grow.
        meter: its seconds.
    """

    steps: Steps[T]
    scorers: Sequence[Scorer]
    meter: Meter
    asks: Sequence[Ask] = ()  # what it asked last; empty before the first question
    single: bool = False  # it asked one question and not a list
    result: T | None = None
    error: BaseException | None = None
    done: bool = False

    def advance(self) -> None:
        """Hand over the answers, or the first error among them, and run the decoder up to its next question."""
        answers, failed = [], None
        for ask in self.asks:
            self.meter.scoring[ask.scorer] = self.meter.scoring.get(ask.scorer, 0.0) + ask.seconds
            if ask.rows.size:
                self.meter.pace[ask.scorer] = ask.seconds / ask.rows.size
            failed = failed or ask.error
            answers.append(ask.value if ask.work or ask.error else ask.value.reshape(ask.shape))
        self.meter.since = start = time.perf_counter()
        try:
            if failed is not None:
                asked = self.steps.throw(failed)
            else:
                asked = self.steps.send(answers[0] if self.single else answers or None)
            self.single = isinstance(asked, Ask)
            self.asks = [asked] if isinstance(asked, Ask) else asked
        except StopIteration as stop:
            self.result, self.done = stop.value, True
        except Exception as error:
            self.error, self.done = error, True
        self.meter.since = None
        self.meter.computed += time.perf_counter() - start


def decide_together(
    sources: Iterable[Source[T]], *, joined: bool = True, progress: Callable[[int], object] | None = None
) -> list[T]:
    """Decide every source and return the decisions in order.

    If sources fail, the error of the first of them in order is raised, whichever failed first.

    Args:
        sources: started when they are needed, at most 64 at a time.
        joined: False decides one source after the other, for utilities that gain nothing from full batches.
        progress: called in this thread with the number of sources decided so far, between any two steps; what it
            raises cancels the run.
    """
    decided: list[T] = []
    coming = iter(sources)
    while part := list(islice(coming, _TOGETHER if joined else 1)):
        # One half computes while the other is scored, in a thread of its own.
        halves = [part[0::2], part[1::2]] if len(part) >= _LEAST_FOR_HALVES else [part]
        turns: deque[tuple[list[Source[T]], Kernels | None, Future[None] | None]]
        turns = deque((half, {} if len(part) > 1 else None, None) for half in halves)
        try:
            with ThreadPoolExecutor(1) if len(halves) > 1 else nullcontext() as device:
                while turns:
                    live, kernels, scoring = turns.popleft()
                    scoring.result() if scoring else serve(live, kernels)
                    for source in live:
                        if not source.done:
                            source.advance()
                        if source.error is not None:  # an earlier source may still fail; a later one no longer matters
                            for later in part[part.index(source) + 1 :]:
                                later.steps.close()
                                later.done = True
                        if progress is not None:
                            progress(len(decided) + sum(source.done for source in part))
                    if live := [source for source in live if not source.done]:
                        turns.append((live, kernels, device.submit(serve, live, kernels) if device else None))
        finally:
            for source in part:
                source.steps.close()
        for source in part:
            if source.error is not None:
                raise source.error
            decided.append(source.result)  # type: ignore[arg-type]  # done without an error
    return decided


def serve(sources: Sequence[Source[Any]], kernels: Kernels | None) -> None:
    """Answer everything that the sources ask: utility by utility, devices at the same time.

    Args:
        kernels: those that these sources share, as far as they are made; None scores each question alone.
    """
    waiting = [ask for source in sources for ask in source.asks]
    while waiting:
        now: dict[Scorer, Ask] = {}
        for ask in waiting:  # what a scorer is asked twice, it is asked one after the other
            now.setdefault(ask.scorer, ask)
        waiting = [ask for ask in waiting if now[ask.scorer] is not ask]
        # Per device its jobs in order: a question of its own, or a kernel with all the questions that it answers.
        devices: dict[str, dict[Ask | SharedKernel, list[Ask]]] = {}
        for scorer, ask in now.items():
            job = None if kernels is None else SharedKernel.find(ask, sources, kernels)
            devices.setdefault(scorer.utility.device, {}).setdefault(job or ask, []).append(ask)

        def work_off(jobs: dict[Ask | SharedKernel, list[Ask]]) -> None:
            for job, asks in jobs.items():
                job.answer(asks) if isinstance(job, SharedKernel) else job.attempt()

        if len(devices) == 1:
            work_off(*devices.values())
        else:
            with ThreadPoolExecutor(len(devices)) as pool:
                list(pool.map(work_off, devices.values()))


class SharedKernel:
    """One kernel over the texts of several scorers of a utility.

    Args:
        scorers: of different sources.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        index: dict[str, int] = {}
        sources: list[str] = []
        self._places: dict[Scorer, tuple[IntArray, int]] = {}  # of its texts, and of its first source
        for scorer in scorers:
            places = [index.setdefault(text, len(index)) for text in scorer.texts]
            self._places[scorer] = np.array(places, dtype=np.int64), len(sources)
            sources += scorer.sources
        counts = np.zeros(len(index), dtype=np.int64)
        for scorer, (texts, _) in self._places.items():
            counts[texts] += scorer.reference_counts
        self._statistics = Statistics()
        self._kernel = scorers[0].utility.kernel(TextTable(list(index), sources, counts), self._statistics)
        # Texts, then sources, whose encoding has been counted: what sources share counts for the first of them.
        self._first_source, self._counted = len(index), np.zeros(len(index) + len(sources), dtype=bool)

    @classmethod
    def find(cls, ask: Ask, sources: Sequence[Source[Any]], kernels: Kernels) -> SharedKernel | None:
        """Return the kernel that answers this question with those of other sources; None if it is answered alone.

        It is made, and added to `kernels`, when a pair is first asked of its utility.
        """
        own, utility = ask.scorer, ask.scorer.utility
        if ask.work is not None or not utility.joins_sources or utility.needs_all_references:
            return None
        if own not in kernels:
            every = [scorer for source in sources for scorer in source.scorers if scorer not in kernels]
            alike = [s for s in every if s.utility is utility and bool(s.sources) == bool(own.sources)]
            made = None
            if len(alike) > 1:
                with suppress(Exception):  # such as a string that is not text: alone, the source that has it says so
                    made = cls(alike)
            kernels.update(dict.fromkeys(alike, made))
        return kernels[own]

    def answer(self, asks: Sequence[Ask]) -> None:
        """Compute what is new of all these questions, block by block where a cache keeps what is done."""
        for ask in asks:
            ask.attempt(partial(Lookup, ask.scorer, ask.rows, ask.columns))
        while unfinished := [ask for ask in asks if ask.error is None and ask.value.blocks]:
            self._compute(unfinished)
        for ask in asks:
            if ask.error is None:
                ask.value = ask.value.answers()

    def _compute(self, asks: Sequence[Ask]) -> None:
        """Score the next block of every lookup in one call; if that fails, one by one, each with its own error."""
        start, encoded = time.perf_counter(), self._statistics.encoded
        lookups: list[Lookup] = [ask.value for ask in asks]
        placed: list[tuple[IntArray, IntArray, IntArray]] = []
        for lookup in lookups:
            (texts, first), (_, (h, r, s)) = self._places[lookup.scorer], lookup.blocks[0]
            placed.append((texts[h], texts[r], s + first))
        joined = [np.concatenate(part) for part in zip(*placed, strict=True)]
        try:
            values = np.asarray(self._kernel(*joined), dtype=np.float64)
            if values.shape != joined[0].shape:
                raise ValueError(f"{values.shape} scores for {joined[0].size} pairs")
        except Exception:
            for ask, lookup in zip(asks, lookups, strict=True):
                ask.attempt(lookup.compute)
            return
        seconds = time.perf_counter() - start
        ends = np.cumsum([part[0].size for part in placed])
        for ask, lookup, own in zip(asks, lookups, np.split(values, ends[:-1]), strict=True):
            ask.attempt(partial(lookup.compute, own))
            ask.seconds += seconds * own.size / values.size
        if self._statistics.encoded > encoded:
            for lookup, (h, r, s) in zip(lookups, placed, strict=True):
                used = np.unique(np.concatenate([h, r, s + self._first_source] if lookup.scorer.sources else [h, r]))
                lookup.scorer.statistics.encoded += int((~self._counted[used]).sum())
                self._counted[used] = True


Kernels: TypeAlias = dict[Scorer, SharedKernel | None]
