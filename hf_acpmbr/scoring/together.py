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
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from ..candidates import IntArray
from .engine import Lookup, Scorer
from .utility import Statistics, TextTable, Utility

T = TypeVar("T")
# Sources decided together. Each keeps its texts, scores and encodings until the last of them is decided.
_TOGETHER = 64
# With three sources or fewer, one full batch is worth more than computing during a half-empty one.
_LEAST_FOR_HALVES = 4
_NOTHING: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Ask:
    """What a decoder yields: scores of hypotheses[rows] against references[columns] by one scorer, as an array.

    Args:
        scorer: whose seconds an answer takes, on whose device.
        rows, columns: (k,) indices.
        shape: of the answer; default (k,).
        work: see `call`; then there are no rows and columns.
    """

    scorer: Scorer
    rows: IntArray = field(default_factory=_NOTHING.copy)
    columns: IntArray = field(default_factory=_NOTHING.copy)
    shape: tuple[int, ...] = (-1,)
    work: Callable[[], object] | None = None

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

    def __call__(self) -> object:
        """Compute the answer alone, by the scorer's own kernel."""
        return self.scorer(self.rows, self.columns).reshape(self.shape) if self.work is None else self.work()


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
        """All that was spent, up to now."""
        return self.computing + sum(self.scoring.values())

    def affords(self, scorer: Scorer, most: int, share: float = 1.0) -> int:
        """Return at most `most`: how many more scores should be done before `share` of the limit is over.

        A score is expected to take what it took on average when the scorer was last asked.
        """
        pace = self.pace.get(scorer, 0.0)
        left = max(share * self.limit - self.seconds, 0.0)
        return most if most * pace <= left else int(left / pace)


@dataclass(eq=False)
class Answer:
    """What becomes of one question; `value` is a Lookup while its scores are computed with those of others."""

    ask: Ask
    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0

    def attempt(self, work: Callable[[], object]) -> None:
        """Keep what `work` returns or raises, and how long it took."""
        start = time.perf_counter()
        try:
            self.value = work()
        except Exception as error:
            self.error = error
        self.seconds += time.perf_counter() - start


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
    answers: list[Answer] = field(default_factory=list)  # to what it asked last; empty before they are given
    result: T | None = None
    error: BaseException | None = None
    done: bool = False
    _single: bool = False

    def advance(self) -> None:
        """Hand over the answers, or the first error among them, and run the decoder up to its next question."""
        for answer in self.answers:
            scorer, scores = answer.ask.scorer, answer.ask.rows.size
            self.meter.scoring[scorer] = self.meter.scoring.get(scorer, 0.0) + answer.seconds
            if scores:
                self.meter.pace[scorer] = answer.seconds / scores
        self.meter.since = time.perf_counter()
        try:
            failed = next((answer.error for answer in self.answers if answer.error is not None), None)
            values: Any = [answer.value for answer in self.answers] or None
            if failed is not None:
                asked = self.steps.throw(failed)
            else:
                asked = self.steps.send(values[0] if values and self._single else values)
            self._single = isinstance(asked, Ask)
            self.answers = [Answer(each) for each in ([asked] if isinstance(asked, Ask) else asked)]
        except StopIteration as stop:
            self.result, self.done = stop.value, True
        except Exception as error:
            self.error, self.done = error, True
        finally:
            self.meter.computed, self.meter.since = self.meter.computing, None


def decide_together(
    sources: Iterable[Source[T]],
    *,
    joined: bool = True,
    progress: Callable[[int], object] | None = None,
    statistics: dict[Utility, Statistics] | None = None,
) -> list[T]:
    """Decide every source and return the decisions in order.

    If sources fail, the error of the first of them in order is raised, whichever failed first.

    Args:
        sources: started when they are needed, at most 64 at a time.
        joined: False decides one source after the other, for utilities that gain nothing from full batches.
        progress: called in this thread with the number of sources decided so far, between any two steps; what it
            raises cancels the run.
        statistics: filled with what the shared kernels of each utility did.
    """
    decided: list[T] = []
    coming = iter(sources)
    counts = {} if statistics is None else statistics
    while part := list(islice(coming, _TOGETHER if joined else 1)):
        try:
            _decide_part(part, len(decided), progress, counts)
        finally:
            for source in part:
                source.steps.close()
        for source in part:
            if source.error is not None:
                raise source.error
            decided.append(source.result)  # type: ignore[arg-type]  # done without an error
    return decided


def _decide_part(
    part: list[Source[T]],
    before: int,
    progress: Callable[[int], object] | None,
    statistics: dict[Utility, Statistics],
) -> None:
    """Advance all sources of a part to their end: in two halves, of which one computes while the other is scored."""
    halves = [part[0::2], part[1::2]] if len(part) >= _LEAST_FOR_HALVES else [part]
    turns: deque[tuple[list[Source[T]], SharedKernels | None, Future[None] | None]] = deque()
    with ThreadPoolExecutor(1) if len(halves) > 1 else nullcontext() as device:

        def turn(live: list[Source[T]], kernels: SharedKernels | None) -> None:
            """Let sources compute; what they ask is scored by the second thread, or when it is due."""
            for source in live:
                if not source.done:
                    source.advance()
                if source.error is not None:  # an earlier source may still fail; a later one no longer matters
                    for later in part[part.index(source) + 1 :]:
                        later.steps.close()
                        later.done = True
                if progress is not None:
                    progress(before + sum(source.done for source in part))
            if live := [source for source in live if not source.done]:
                turns.append((live, kernels, device.submit(serve, live, kernels) if device else None))

        for half in halves:
            turn(half, SharedKernels(statistics) if len(part) > 1 else None)
        while turns:
            live, kernels, scoring = turns.popleft()
            scoring.result() if scoring else serve(live, kernels)
            turn(live, kernels)


def serve(sources: Sequence[Source[Any]], shared: SharedKernels | None) -> None:
    """Answer everything that the sources ask: utility by utility, devices at the same time."""
    waiting = [answer for source in sources for answer in source.answers]
    while waiting:
        now: dict[Scorer, Answer] = {}
        for answer in waiting:  # what a scorer is asked twice, it is asked one after the other
            now.setdefault(answer.ask.scorer, answer)
        waiting = [answer for answer in waiting if now[answer.ask.scorer] is not answer]
        # Per device its jobs in order: an answer of its own, or a kernel with all answers that it shares.
        devices: dict[str, dict[object, list[Answer]]] = {}
        for scorer, answer in now.items():
            kernel = shared.find(answer.ask, sources) if shared else None
            devices.setdefault(scorer.utility.device, {}).setdefault(kernel or answer, []).append(answer)
        first, *others = devices.values()
        with ThreadPoolExecutor(len(others)) if others else nullcontext() as pool:
            lanes = [pool.submit(_do_all, jobs) for jobs in others] if pool else []
            _do_all(first)
            for lane in lanes:
                lane.result()


def _do_all(jobs: Mapping[object, list[Answer]]) -> None:
    for kernel, answers in jobs.items():
        kernel.answer(answers) if isinstance(kernel, SharedKernel) else answers[0].attempt(answers[0].ask)


class SharedKernels:
    """The kernels that sources of one group share, one per utility, made when a pair is first asked of it.

    Args:
        statistics: where the kernels of each utility count.
    """

    def __init__(self, statistics: dict[Utility, Statistics]) -> None:
        self._statistics = statistics
        self._kernels: dict[Scorer, SharedKernel | None] = {}

    def find(self, ask: Ask, sources: Sequence[Source[Any]]) -> SharedKernel | None:
        """Return the kernel that answers this question with those of others; None if it is answered alone."""
        own, utility = ask.scorer, ask.scorer.utility
        if ask.work is not None or not utility.joins_sources or utility.needs_all_references:
            return None
        if own not in self._kernels:
            every = [scorer for source in sources for scorer in source.scorers if scorer not in self._kernels]
            alike = [s for s in every if s.utility is utility and bool(s.sources) == bool(own.sources)]
            made = None
            if len(alike) > 1:
                with suppress(Exception):  # such as a string that is not text: alone, the source that has it says so
                    made = SharedKernel(alike, self._statistics.setdefault(utility, Statistics()))
            self._kernels.update(dict.fromkeys(alike, made))
        return self._kernels[own]


class SharedKernel:
    """One kernel over the texts of several scorers of a utility."""

    def __init__(self, scorers: Sequence[Scorer], statistics: Statistics) -> None:
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
        self._kernel = scorers[0].utility.kernel(TextTable(list(index), sources, counts), statistics)
        self._statistics = statistics
        # Texts, then sources, whose encoding has been counted: what sources share counts for the first of them.
        self._first_source, self._counted = len(index), np.zeros(len(index) + len(sources), dtype=bool)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Compute what is new of all these questions, block by block where a cache keeps what is done."""
        for answer in answers:
            answer.attempt(partial(Lookup, answer.ask.scorer, answer.ask.rows, answer.ask.columns))
        while unfinished := [answer for answer in answers if answer.error is None and answer.value.blocks]:
            self._compute(unfinished)
        for answer in answers:
            if answer.error is None:
                answer.value = answer.value.answers().reshape(answer.ask.shape)

    def _compute(self, answers: Sequence[Answer]) -> None:
        """Score the next block of every lookup in one call; if that fails, one by one, each with its own error."""
        start, encoded = time.perf_counter(), self._statistics.encoded
        lookups: list[Lookup] = [answer.value for answer in answers]
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
            for answer, lookup in zip(answers, lookups, strict=True):
                answer.attempt(lookup.compute)
            return
        seconds = time.perf_counter() - start
        ends = np.cumsum([part[0].size for part in placed])
        for answer, lookup, own in zip(answers, lookups, np.split(values, ends[:-1]), strict=True):
            answer.attempt(partial(lookup.compute, own))
            answer.seconds += seconds * own.size / values.size
        if self._statistics.encoded > encoded:
            for lookup, (h, r, s) in zip(lookups, placed, strict=True):
                used = np.unique(np.concatenate([h, r, s + self._first_source] if lookup.scorer.sources else [h, r]))
                lookup.scorer.statistics.encoded += int((~self._counted[used]).sum())
                self._counted[used] = True
