"""The driver: sources ask for scores, their questions are answered in shared batches, and they go on.

A decoder is a generator. It yields an `Ask` (or a list of them), is sent the scores, and returns its decision. This
module advances any number of such sources, scores what they ask of one utility in one call of a kernel that holds the
texts of all of them, and lets one half of the sources compute while the other half is scored. Who is scored with whom
depends on the order of the sources and on what they ask, never on how fast a thread was, so a run repeats to the last
bit. Seconds, time limits, progress and cancelling are kept here as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..candidates import IntArray
from .engine import Indices, Lookup, Scorer
from .utility import Kernel, Statistics, TextTable, Utility

T = TypeVar("T")
# Sources decided together. Each keeps its texts, scores and encodings until the last of them is decided.
_TOGETHER = 64
# With three sources or fewer, one full batch is worth more than computing during a half-empty one.
_LEAST_FOR_HALVES = 4


@dataclass(frozen=True, eq=False)
class Ask:
    """Scores of hypotheses[rows] against references[columns] by one scorer, answered as an array.

    Args:
        scorer: who answers.
        rows, columns: (k,) indices.
        shape: of the answer; default (k,).
        work: asked instead of pairs: anything else that needs the scorer's device (averaged references, sentence
            vectors). It is answered with what `work` returns and never shares a batch.
    """

    scorer: Scorer
    rows: IntArray
    columns: IntArray
    shape: tuple[int, ...] = (-1,)
    work: Callable[[], object] | None = None

    @classmethod
    def block(cls, scorer: Scorer, rows: IntArray, columns: IntArray) -> Ask:
        """Ask for a rectangle: (len(rows), len(columns)) scores."""
        shape = len(rows), len(columns)
        return cls(scorer, np.repeat(rows, shape[1]), np.tile(columns, shape[0]), shape)

    @classmethod
    def call(cls, scorer: Scorer, work: Callable[[], object]) -> Ask:
        """Ask for what `work` returns, computed on the scorer's device."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(scorer, nothing, nothing, work=work)


# One question, answered by one array, or several at once, answered by a list of them. Later also: more candidates.
Asks: TypeAlias = "Ask | list[Ask]"
Steps: TypeAlias = "Generator[Asks, Any, T]"


@dataclass(eq=False)
class Meter:
    """The seconds of one source: its share of each scoring, and its own computing. Waiting for others is free.

    Args:
        limit: seconds after which nothing more is affordable.
    """

    limit: float = math.inf
    scoring: dict[Scorer, float] = field(default_factory=dict)
    _computing: float = 0.0
    _since: float | None = None
    _pace: dict[Scorer, float] = field(default_factory=dict)

    @property
    def computing(self) -> float:
        """Seconds of the decoder itself, up to now."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._computing + running

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

    def charge(self, scorer: Scorer, seconds: float, scores: int) -> None:
        """Count the seconds that so many scores took."""
        self.scoring[scorer] = self.scoring.get(scorer, 0.0) + seconds
        if scores:
            self._pace[scorer] = seconds / scores

    def start(self) -> None:
        self._since = time.perf_counter()

    def stop(self) -> None:
        self._computing, self._since = self.computing, None


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
    asks: list[Ask] = field(default_factory=list)
    result: T | None = None
    error: BaseException | None = None
    done: bool = False
    _single: bool = False

    def advance(self, answers: Sequence[Answer]) -> None:
        """Hand over the answers, or the first error among them, and run the decoder up to its next question."""
        self.meter.start()
        try:
            failed = next((answer.error for answer in answers if answer.error is not None), None)
            if failed is not None:
                asked = self.steps.throw(failed)
            else:
                values = [answer.value for answer in answers]
                asked = self.steps.send((values[0] if self._single else values) if answers else None)
            self._single = isinstance(asked, Ask)
            self.asks = [asked] if isinstance(asked, Ask) else asked
        except StopIteration as stop:
            self.result, self.done, self.asks = stop.value, True, []
        except Exception as error:
            self.error, self.done, self.asks = error, True, []
        finally:
            self.meter.stop()


@dataclass(eq=False)
class Answer:
    """What became of one question."""

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


def decide_together(
    sources: Iterable[Source[T]],
    *,
    joined: bool = True,
    progress: Callable[[int], object] = lambda decided: None,
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
        _run(part, counts, partial(_report, progress, len(decided)))
        for source in part:
            if source.error is not None:
                raise source.error
            decided.append(source.result)  # type: ignore[arg-type]  # done without an error
    return decided


def _report(progress: Callable[[int], object], before: int, done: int) -> None:
    progress(before + done)


def _run(part: list[Source[T]], statistics: dict[Utility, Statistics], progress: Callable[[int], object]) -> None:
    """Advance the sources of one part until each is done."""
    halves = [part[0::2], part[1::2]] if len(part) >= _LEAST_FOR_HALVES else [part]
    kernels = [SharedKernels(statistics) for _ in halves]
    scoring: list[Future[list[list[Answer]]] | None] = [None] * len(halves)

    def advance(k: int, answers: Sequence[list[Answer]]) -> None:
        """Let the live sources of half k compute."""
        live = [source for source in halves[k] if not source.done]
        for source, given in zip(live, answers or [[]] * len(live), strict=True):
            for answer in given:
                source.meter.charge(answer.ask.scorer, answer.seconds, answer.ask.rows.size)
            source.advance(given)
            progress(sum(source.done for source in part))
        failed = next((place for place, source in enumerate(part) if source.error is not None), len(part))
        for source in part[failed + 1 :]:  # an earlier source may still fail; a later one no longer matters
            source.steps.close()
            source.done = True
        halves[k] = [source for source in halves[k] if not source.done]

    try:
        if len(halves) == 1:  # nobody computes meanwhile: no second thread
            advance(0, [])
            while halves[0]:
                advance(0, serve(halves[0], kernels[0]))
            return
        with ThreadPoolExecutor(1) as device:
            for k in range(len(halves)):
                advance(k, [])
                scoring[k] = device.submit(serve, halves[k], kernels[k])
            while any(halves):
                for k, future in enumerate(scoring):
                    if future is not None:
                        asked, answers = list(halves[k]), future.result()
                        # Sources that were closed meanwhile leave, with the answers they no longer want.
                        answers = [given for source, given in zip(asked, answers, strict=True) if not source.done]
                        halves[k] = [source for source in asked if not source.done]
                        advance(k, answers)
                        scoring[k] = device.submit(serve, halves[k], kernels[k]) if halves[k] else None
    finally:
        for source in part:
            source.steps.close()


def serve(sources: Sequence[Source[T]], shared: SharedKernels) -> list[list[Answer]]:
    """Answer everything that the sources ask: utility by utility, devices at the same time.

    Returns:
        The answers of each source, in the order of its questions.
    """
    answers = [[Answer(ask) for ask in source.asks] for source in sources]
    waiting = [answer for given in answers for answer in given]
    known = [scorer for source in sources for scorer in source.scorers]
    while waiting:
        taken: set[Scorer] = set()
        now: list[Answer] = []
        later: list[Answer] = []
        for answer in waiting:  # what a scorer is asked twice, it is asked one after the other
            (later if answer.ask.scorer in taken else now).append(answer)
            taken.add(answer.ask.scorer)
        _serve_once(now, known, shared)
        waiting = later
    return answers


def _serve_once(answers: Sequence[Answer], known: Sequence[Scorer], shared: SharedKernels) -> None:
    """Answer questions to different scorers."""
    streams: dict[SharedKernel, list[Answer]] = {}
    jobs: list[tuple[str, Callable[[], None]]] = []
    alone: list[tuple[str, Callable[[], None]]] = []
    for answer in answers:
        kernel = shared.kernel(answer.ask, known)
        if kernel is None:
            alone.append((answer.ask.scorer.utility.device, partial(_answer_alone, answer)))
        else:
            streams.setdefault(kernel, []).append(answer)
    for kernel, stream in streams.items():
        jobs.append((stream[0].ask.scorer.utility.device, partial(kernel.answer, stream)))
    on_devices([*jobs, *alone])


def _answer_alone(answer: Answer) -> None:
    """Answer by the scorer's own kernel."""
    ask = answer.ask
    answer.attempt(ask.work or (lambda: ask.scorer.score(ask.rows, ask.columns).reshape(ask.shape)))


class SharedKernels:
    """The kernels that sources of one group share, one per utility, made when a pair is first asked of it.

    Args:
        statistics: where the kernels of each utility count.
    """

    def __init__(self, statistics: dict[Utility, Statistics]) -> None:
        self._statistics = statistics
        self._kernels: dict[Scorer, SharedKernel | None] = {}

    def kernel(self, ask: Ask, known: Sequence[Scorer]) -> SharedKernel | None:
        """Return the kernel that answers this question with those of others; None if it is answered alone."""
        own = ask.scorer
        if ask.work is not None or not own.utility.joins_sources or own.utility.needs_all_references:
            return None
        if own not in self._kernels:
            alike = [
                scorer
                for scorer in known
                if scorer not in self._kernels
                and scorer.utility is own.utility
                and bool(scorer.sources) == bool(own.sources)
            ]
            made = None
            if len(alike) > 1:
                try:
                    made = SharedKernel(alike, self._statistics.setdefault(own.utility, Statistics()))
                except Exception:  # such as a string that is not text: alone, the source that has it says so
                    made = None
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
            places = (index.setdefault(text, len(index)) for text in scorer.texts)
            self._texts[scorer] = np.fromiter(places, dtype=np.int64, count=len(scorer.texts))
            self._first_source[scorer] = len(sources)
            sources += scorer.sources
        counts = np.zeros(len(index), dtype=np.int64)
        for scorer in scorers:
            counts[self._texts[scorer]] += scorer.reference_counts
        self._kernel: Kernel = scorers[0].utility.kernel(TextTable(list(index), sources, counts), statistics)
        self._statistics = statistics
        self._seen_texts, self._seen_sources = np.zeros(len(index), dtype=bool), np.zeros(len(sources), dtype=bool)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Compute what is new of all these questions, block by block where a cache keeps what is done."""
        lookups: list[tuple[Answer, Lookup]] = []
        for answer in answers:
            ask = answer.ask
            answer.attempt(partial(ask.scorer.look_up, ask.rows, ask.columns))
            if answer.error is None:
                lookups.append((answer, answer.value))
        while open_ones := [(a, look) for a, look in lookups if a.error is None and look.open]:
            self._compute(open_ones)
        for answer, lookup in lookups:
            if answer.error is None:
                answer.value = lookup.answers().reshape(answer.ask.shape)

    def _compute(self, lookups: Sequence[tuple[Answer, Lookup]]) -> None:
        """Score the next block of every lookup in one call; if that fails, one by one, each with its own error."""
        start = time.perf_counter()
        placed = [self._placed(answer.ask.scorer, lookup.block) for answer, lookup in lookups]
        h, r, s = (np.concatenate(part) for part in zip(*placed, strict=True))
        encoded = self._statistics.encoded
        try:
            values = np.asarray(self._kernel(h, r, s), dtype=np.float64)
            if values.shape != h.shape:
                raise ValueError(f"{values.shape} scores for {h.size} pairs")
        except Exception:
            for answer, lookup in lookups:
                answer.attempt(lookup.compute_alone)
            return
        seconds = time.perf_counter() - start
        ends = np.cumsum([part[0].size for part in placed])
        for (answer, lookup), own in zip(lookups, np.split(values, ends[:-1]), strict=True):
            answer.attempt(partial(lookup.fill, own))
            answer.seconds += seconds * own.size / values.size
        if self._statistics.encoded > encoded:
            for (answer, _), (hypotheses, references, of) in zip(lookups, placed, strict=True):
                new = _mark(self._seen_texts, np.concatenate([hypotheses, references]))
                answer.ask.scorer.statistics.encoded += new + _mark(self._seen_sources, of)

    def _placed(self, scorer: Scorer, pairs: Indices) -> Indices:
        texts = self._texts[scorer]
        return texts[pairs[0]], texts[pairs[1]], pairs[2] + self._first_source[scorer]


def _mark(seen: npt.NDArray[np.bool_], indices: IntArray) -> int:
    """Count the `indices` not seen before, and mark them as seen: what sources share counts for the first of them."""
    indices = np.unique(indices[indices < len(seen)])
    new = int((~seen[indices]).sum())
    seen[indices] = True
    return new


def on_devices(jobs: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Do jobs: those of one device one after the other, one thread per device."""
    lanes: dict[str, list[Callable[[], None]]] = {}
    for device, job in jobs:
        lanes.setdefault(device, []).append(job)

    def run(lane: Sequence[Callable[[], None]]) -> None:
        for job in lane:
            job()

    if len(lanes) < 2:
        for lane in lanes.values():
            run(lane)
    else:
        with ThreadPoolExecutor(max_workers=len(lanes)) as pool:
            list(pool.map(run, lanes.values()))
