"""Several sources at once: their scores are computed together, and one source completes while others are scored.

Every source is decided by plain code in a thread of its own. When it asks for scores it waits until all sources of its
group wait or are done; then what they ask of one utility is computed in one call, so that a network sees full batches
of like lengths. Sources form two groups: while one is scored, the other goes on. Who is scored with whom depends on the
order of the sources and on what they ask for, never on how fast a thread was, so a run can be repeated to the last bit.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ..candidates import FloatArray, IntArray
from .base import Statistics, Utility
from .joint import JointScoring, Request

if TYPE_CHECKING:
    from .engine import Scorer

T = TypeVar("T")
# Every source keeps its scores and encodings until all sources beside it are decided.
_MOST_SOURCES = 64
# Threads that compute between two scorings. More would take Python's lock from the one that feeds the device.
_COMPUTING = 2


class _Stopped(BaseException):
    """Another source has failed, or the run was interrupted."""


class _Group:
    """Sources that are scored together.

    Attributes:
        running: threads that neither wait for scores nor have ended.
    """

    def __init__(self, size: int, statistics: dict[Utility, Statistics]) -> None:
        self.running = size
        self.requests: list[Request] = []
        self.scoring = JointScoring(statistics)


class Turn:
    """One source's place among those that are decided together; what `Decoder.decode` is handed as `turn`."""

    def __init__(self, lockstep: Lockstep, group: _Group, index: int) -> None:
        self._lockstep, self._group, self._index = lockstep, group, index
        self._scorers = self._jobs = 0
        self._waited = self._charged = 0.0

    def enter(self, scorer: Scorer) -> tuple[int, int]:
        """Take a scorer in; its place in the order of all."""
        with self._lockstep.changed:
            self._group.scoring.scorers.append(scorer)
            self._scorers += 1
            return self._index, self._scorers

    def clock(self) -> float:
        """Seconds that this source took: scoring counts by its share, waiting for others does not count."""
        return time.perf_counter() - self._waited

    def score(self, scorer: Scorer, pairs: tuple[IntArray, IntArray, IntArray]) -> FloatArray:
        """What the scorer's kernel gives, computed together with what other sources ask for."""

        def run() -> None:
            request.values = scorer.kernel(*pairs)

        request = Request(scorer, run, pairs)
        self._ask(request)
        assert request.values is not None, "served without an error"
        return request.values

    def alone(self, scorer: Scorer, work: Callable[[], T]) -> T:
        """The result of work on the scorer's device that cannot be joined with that of others."""
        result: list[T] = []
        self._ask(Request(scorer, lambda: result.append(work())))
        return result[0]

    def at_once(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Several jobs of this source, each of which may ask for scores; served in one go."""

        def run(job: Callable[[], T]) -> T:
            try:
                with self._lockstep.computing:
                    return job()
            finally:
                with self._lockstep.changed:
                    self._jobs -= 1
                    if self._jobs:  # the last one's place goes back to the thread that waits for them
                        self.leave()

        with self._waiting(), ThreadPoolExecutor(len(jobs)) as pool:
            with self._lockstep.changed:
                self._jobs = len(jobs)
                self._group.running += len(jobs) - 1
            return list(pool.map(run, jobs))

    def leave(self) -> None:
        """One thread less that runs; the caller holds `changed`."""
        self._group.running -= 1
        self._lockstep.changed.notify_all()

    def _ask(self, request: Request) -> None:
        with self._waiting():
            with self._lockstep.changed:
                if self._lockstep.stopped:
                    raise _Stopped
                self._group.requests.append(request)
                self.leave()
            request.served.wait()
            self._charged += request.seconds
        if request.error is not None:
            raise request.error

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Let others compute meanwhile; of the time, only what was charged is this source's."""
        outermost, start, charged = not self._jobs, time.perf_counter(), self._charged
        self._lockstep.computing.release()
        try:
            yield
        finally:
            self._lockstep.computing.acquire()
            if outermost:
                self._waited += time.perf_counter() - start - (self._charged - charged)


class Lockstep:
    """Decides several sources in lockstep; the calling thread does the scoring.

    Attributes:
        statistics: what joint scoring has cost, for each utility.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.computing = threading.Semaphore(_COMPUTING)
        self.stopped = False
        self.statistics: dict[Utility, Statistics] = {}
        self._errors: dict[int, BaseException] = {}

    def run(self, tasks: Sequence[Callable[[Turn], T]]) -> list[T]:
        """The results of tasks that decide one source each; where one fails, its error, and the others stop."""
        results: dict[int, T] = {}

        def work(k: int, turn: Turn) -> None:
            results[k] = tasks[k](turn)

        for start in range(0, len(tasks), _MOST_SOURCES):
            self._run(range(start, min(start + _MOST_SOURCES, len(tasks))), work)
        return [results[k] for k in range(len(tasks))]

    def _run(self, sources: range, work: Callable[[int, Turn], None]) -> None:
        # Three sources or fewer fill a batch better together than in halves.
        number = 2 if len(sources) > 3 else 1
        groups = [_Group(len(sources[k::number]), self.statistics) for k in range(number)]
        turns = [Turn(self, groups[k % number], source) for k, source in enumerate(sources)]
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(self._follow, work, *turn), daemon=True)
            for turn in zip(sources, turns, strict=True)
        ]
        try:
            for thread in threads:
                thread.start()
            self._serve(list(groups))
        except BaseException:
            self._stop(groups)
            raise
        finally:
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def _follow(self, work: Callable[[int, Turn], None], k: int, turn: Turn) -> None:
        """What a source's thread does."""
        try:
            with self.computing:
                if not self.stopped:
                    work(k, turn)
        except _Stopped:
            pass
        except BaseException as error:
            self._errors[k] = error
        finally:
            with self.changed:
                turn.leave()

    def _serve(self, groups: list[_Group]) -> None:
        """Score for one group after the other until all are done."""
        while groups:
            with self.changed:
                self.changed.wait_for(lambda: self._errors or any(group.running == 0 for group in groups))
                if self._errors:
                    raise self._errors[min(self._errors)]
                group = next(group for group in groups if group.running == 0)
            groups.remove(group)
            if group.requests:
                group.scoring.serve(group.requests)
                with self.changed:
                    served, group.requests = group.requests, []
                    group.running += len(served)
                for request in served:
                    request.served.set()
                groups.append(group)

    def _stop(self, groups: Sequence[_Group]) -> None:
        with self.changed:
            self.stopped = True
            waiting = [request for group in groups for request in group.requests]
        for request in waiting:
            request.error = _Stopped()
            request.served.set()


def in_lockstep(tasks: Sequence[Callable[[Turn | None], T]]) -> list[T]:
    """The results of tasks that each decide one source; a single one needs no Turn."""
    return [tasks[0](None)] if len(tasks) == 1 else Lockstep().run(tasks)
