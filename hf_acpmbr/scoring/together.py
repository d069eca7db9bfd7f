"""The driver: sources ask for scores, their questions are answered in shared batches, and they go on.

A decoder is a generator. It yields a `Question` (or a list of them), is sent the answers, and returns its decision.
This module advances any number of such sources, scores what they ask of one utility in one call of a kernel that holds
the texts of all of them, and lets one half of the sources compute while the other half is scored. Who is scored with
whom depends on the order of the sources and on what they ask, never on how fast a thread was, so a run repeats to the
last bit. Seconds, time limits, progress and cancelling are kept here as well.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..candidates import IntArray
from .engine import Indices, Lookup, Scorer
from .utility import Statistics, TextTable, Utility

T = TypeVar("T")
# Sources decided together. Each keeps its texts, scores and encodings until the last of them is decided.
_TOGETHER = 64
# With three sources or fewer, one full batch is worth more than computing during a half-empty one.
_LEAST_FOR_HALVES = 4


class Question(ABC):
    """What a decoder may yield. The driver joins only those that it knows how to (`Ask`); others are answered alone.

    Attributes:
        scorer: whose seconds an answer takes, on whose device.
    """

    scorer: Scorer

    @property
    def size(self) -> int:
        """How many scores are asked for."""
        return 0

    @abstractmethod
    def answer(self) -> Any:
        """Return what the decoder is sent."""


@dataclass(frozen=True, eq=False)
class Ask(Question):
    """Scores of hypotheses[rows] against references[columns] by one scorer, answered as an array.

    Args:
        rows, columns: (k,) indices.
        shape: of the answer; default (k,).
    """

    scorer: Scorer
    rows: IntArray
    columns: IntArray
    shape: tuple[int, ...] = (-1,)

    @classmethod
    def block(cls, scorer: Scorer, rows: IntArray | None = None, columns: IntArray | None = None) -> Ask:
        """Ask for a rectangle: (len(rows), len(columns)) scores; None takes all rows or columns."""
        rows = np.arange(scorer.shape[0]) if rows is None else rows
        columns = np.arange(scorer.shape[1]) if columns is None else columns
        shape = len(rows), len(columns)
        return cls(scorer, np.repeat(rows, shape[1]), np.tile(columns, shape[0]), shape)

    @classmethod
    def call(cls, scorer: Scorer, work: Callable[[], object]) -> Call:
        """Ask for what `work` returns, computed on the scorer's device."""
        return Call(scorer, work)

    @property
    def size(self) -> int:
        return self.rows.size

    def look_up(self) -> Lookup:
        """Find out which of the pairs have to be computed."""
        return Lookup(self.scorer, self.scorer.keys(self.rows, self.columns))

    def answer(self) -> Any:
        return self.scorer.score(self.rows, self.columns).reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Call(Question):
    """What `work` returns: averaged references, sentence vectors, or anything else that needs the scorer's device."""

    scorer: Scorer
    work: Callable[[], object]

    def answer(self) -> Any:
        return self.work()


# One question, answered by one value, or several at once, answered by a list.
Asks: TypeAlias = "Question | Sequence[Question]"
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
    _pace: dict[Scorer, float] = field(default_factory=dict)

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
        pace = self._pace.get(scorer, 0.0)
        left = max(share * self.limit - self.seconds, 0.0)
        return most if most * pace <= left else int(left / pace)

    def charge(self, answer: Answer) -> None:
        """Count the seconds that an answer took."""
        scorer, scores = answer.question.scorer, answer.question.size
        self.scoring[scorer] = self.scoring.get(scorer, 0.0) + answer.seconds
        if scores:
            self._pace[scorer] = answer.seconds / scores


@dataclass(eq=False)
class Answer:
    """What became of one question."""

    question: Question
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
            self.meter.charge(answer)
        self.meter.since = time.perf_counter()
        try:
            failed = next((answer.error for answer in self.answers if answer.error is not None), None)
            values: Any = [answer.value for answer in self.answers] or None
            if failed is not None:
                asked = self.steps.throw(failed)
            else:
                asked = self.steps.send(values[0] if values and self._single else values)
            self._single = isinstance(asked, Question)
            self.answers = [Answer(each) for each in ([asked] if isinstance(asked, Question) else asked)]
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
        advance = partial(_advance, part, len(decided), progress)
        try:
            if len(part) >= _LEAST_FOR_HALVES:
                _in_halves(part, advance, counts)
            else:
                kernels, live = SharedKernels(counts) if len(part) > 1 else None, advance(part)
                while live:
                    serve(live, kernels)
                    live = advance(live)
        finally:
            for source in part:
                source.steps.close()
        for source in part:
            if source.error is not None:
                raise source.error
            decided.append(source.result)  # type: ignore[arg-type]  # done without an error
    return decided


def _advance(
    part: list[Source[T]], before: int, progress: Callable[[int], object] | None, live: list[Source[T]]
) -> list[Source[T]]:
    """Let the live sources of a part compute; return those that ask on."""
    for source in live:
        if not source.done:
            source.advance()
        if source.error is not None:  # an earlier source may still fail; a later one no longer matters
            for later in part[part.index(source) + 1 :]:
                later.steps.close()
                later.done = True
        if progress is not None:
            progress(before + sum(source.done for source in part))
    return [source for source in live if not source.done]


def _in_halves(
    part: list[Source[T]],
    advance: Callable[[list[Source[T]]], list[Source[T]]],
    statistics: dict[Utility, Statistics],
) -> None:
    """Let one half of the sources compute while a second thread scores the other half."""
    with ThreadPoolExecutor(1) as device:
        scored = []
        for half in (part[0::2], part[1::2]):
            live, kernels = advance(half), SharedKernels(statistics)
            scored.append((live, kernels, device.submit(serve, live, kernels)))
        while scored:
            live, kernels, scoring = scored.pop(0)
            scoring.result()
            if live := advance(live):
                scored.append((live, kernels, device.submit(serve, live, kernels)))


def serve(sources: Sequence[Source[Any]], shared: SharedKernels | None) -> None:
    """Answer everything that the sources ask: utility by utility, devices at the same time."""
    waiting = [answer for source in sources for answer in source.answers]
    while waiting:
        now: dict[Scorer, Answer] = {}
        for answer in waiting:  # what a scorer is asked twice, it is asked one after the other
            now.setdefault(answer.question.scorer, answer)
        waiting = [answer for answer in waiting if now[answer.question.scorer] is not answer]
        devices: dict[str, list[Callable[[], None]]] = {}
        streams: dict[SharedKernel, list[Answer]] = {}
        for scorer, answer in now.items():
            jobs = devices.setdefault(scorer.utility.device, [])
            kernel = None if shared is None else shared.kernel(answer.question, sources)
            if kernel is None:
                jobs.append(partial(answer.attempt, answer.question.answer))
            elif kernel in streams:
                streams[kernel].append(answer)
            else:
                streams[kernel] = [answer]
                jobs.append(partial(kernel.answer, streams[kernel]))
        first, *others = devices.values()
        with ThreadPoolExecutor(len(others)) if others else nullcontext() as pool:
            started = [pool.submit(_do_all, jobs) for jobs in others] if pool is not None else []
            _do_all(first)
            for lane in started:
                lane.result()


def _do_all(jobs: Sequence[Callable[[], None]]) -> None:
    for job in jobs:
        job()


class SharedKernels:
    """The kernels that sources of one group share, one per utility, made when a pair is first asked of it.

    Args:
        statistics: where the kernels of each utility count.
    """

    def __init__(self, statistics: dict[Utility, Statistics]) -> None:
        self._statistics = statistics
        self._kernels: dict[Scorer, SharedKernel | None] = {}

    def kernel(self, question: Question, sources: Sequence[Source[Any]]) -> SharedKernel | None:
        """Return the kernel that answers this question with those of others; None if it is answered alone."""
        own = question.scorer
        if not isinstance(question, Ask) or not own.utility.joins_sources or own.utility.needs_all_references:
            return None
        if own not in self._kernels:
            alike = [
                scorer
                for source in sources
                for scorer in source.scorers
                if scorer not in self._kernels
                and scorer.utility is own.utility
                and bool(scorer.sources) == bool(own.sources)
            ]
            made = None
            if len(alike) > 1:
                with suppress(Exception):  # such as a string that is not text: alone, the source that has it says so
                    made = SharedKernel(alike, self._statistics.setdefault(own.utility, Statistics()))
            self._kernels.update(dict.fromkeys(alike, made))
        return self._kernels[own]


class SharedKernel:
    """One kernel over the texts of several scorers of a utility."""

    def __init__(self, scorers: Sequence[Scorer], statistics: Statistics) -> None:
        index: dict[str, int] = {}
        sources: list[str] = []
        self._texts: dict[Scorer, IntArray] = {}
        self._first_source: dict[Scorer, int] = {}
        for scorer in scorers:
            places = [index.setdefault(text, len(index)) for text in scorer.texts]
            self._texts[scorer] = np.array(places, dtype=np.int64)
            self._first_source[scorer] = len(sources)
            sources += scorer.sources
        counts = np.zeros(len(index), dtype=np.int64)
        for scorer in scorers:
            counts[self._texts[scorer]] += scorer.reference_counts
        self._kernel = scorers[0].utility.kernel(TextTable(list(index), sources, counts), statistics)
        self._statistics = statistics
        self._seen_texts, self._seen_sources = np.zeros(len(index), dtype=bool), np.zeros(len(sources), dtype=bool)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Compute what is new of all these questions, block by block where a cache keeps what is done."""
        asks = [cast(Ask, answer.question) for answer in answers]
        for answer, ask in zip(answers, asks, strict=True):
            answer.attempt(ask.look_up)  # the value is a Lookup until all is computed
        while unfinished := [answer for answer in answers if answer.error is None and answer.value.blocks]:
            self._compute([(answer, answer.value) for answer in unfinished])
        for answer, ask in zip(answers, asks, strict=True):
            if answer.error is None:
                answer.value = answer.value.answers().reshape(ask.shape)

    def _compute(self, lookups: Sequence[tuple[Answer, Lookup]]) -> None:
        """Score the next block of every lookup in one call; if that fails, one by one, each with its own error."""
        start, encoded = time.perf_counter(), self._statistics.encoded
        placed: list[Indices] = []
        for _, lookup in lookups:
            texts, (h, r, s) = self._texts[lookup.scorer], lookup.block()
            placed.append((texts[h], texts[r], s + self._first_source[lookup.scorer]))
        joined = [np.concatenate(part) for part in zip(*placed, strict=True)]
        try:
            values = np.asarray(self._kernel(*joined), dtype=np.float64)
            if values.shape != joined[0].shape:
                raise ValueError(f"{values.shape} scores for {joined[0].size} pairs")
        except Exception:
            for answer, lookup in lookups:
                answer.attempt(lookup.compute)
            return
        seconds = time.perf_counter() - start
        ends = np.cumsum([part[0].size for part in placed])
        for (answer, lookup), own in zip(lookups, np.split(values, ends[:-1]), strict=True):
            answer.attempt(partial(lookup.fill, own))
            answer.seconds += seconds * own.size / values.size
        if self._statistics.encoded > encoded:
            for (_, lookup), (h, r, s) in zip(lookups, placed, strict=True):
                new = _mark(self._seen_texts, np.concatenate([h, r])) + _mark(self._seen_sources, s)
                lookup.scorer.statistics.encoded += new


def _mark(seen: npt.NDArray[np.bool_], indices: IntArray) -> int:
    """Count the `indices` not seen before, and mark them as seen: what sources share counts for the first of them."""
    indices = np.unique(indices[indices < len(seen)])
    new = int((~seen[indices]).sum())
    seen[indices] = True
    return new
