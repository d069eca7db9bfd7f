"""Scores that several sources ask for, computed in one call per utility, and on several devices at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from .base import Kernel, Statistics, TextTable, Utility

if TYPE_CHECKING:
    from .engine import Scorer

T = TypeVar("T")
Indices = tuple[IntArray, IntArray, IntArray]


@dataclass(eq=False)
class Request:
    """What one scorer waits for.

    Args:
        scorer: who asks.
        run: does it alone.
        pairs: hypotheses, references and sources that can be scored together with those of other requests.
    """

    scorer: Scorer
    run: Callable[[], None]
    pairs: Indices | None = None
    values: FloatArray | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    served: threading.Event = field(default_factory=threading.Event)

    def run_alone(self) -> None:
        start = time.perf_counter()
        try:
            self.run()
        except Exception as error:
            self.error = error
        self.seconds = time.perf_counter() - start


class JointKernel:
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
        table = TextTable(list(index), sources, counts)
        self._kernel: Kernel = scorers[0].utility.kernel(table, statistics)
        self._statistics = statistics
        self._seen_texts, self._seen_sources = np.zeros(len(index), dtype=bool), np.zeros(len(sources), dtype=bool)

    def serve(self, requests: Sequence[Request]) -> None:
        """Score the pairs of all requests in one call; if that fails, one by one, so that each has its own error."""
        start = time.perf_counter()
        placed = [self._placed(request.scorer, request.pairs) for request in requests if request.pairs is not None]
        h, r, s = (np.concatenate(part) for part in zip(*placed, strict=True))
        encoded = self._statistics.encoded
        try:
            values = np.asarray(self._kernel(h, r, s), dtype=np.float64)
            if values.shape != h.shape:
                raise ValueError(f"{values.shape} scores for {h.size} pairs")
        except Exception:
            for request in requests:
                request.run_alone()
            return
        seconds = time.perf_counter() - start
        ends = np.cumsum([part[0].size for part in placed])
        for request, own in zip(requests, np.split(values, ends[:-1]), strict=True):
            request.values, request.seconds = own, seconds * own.size / values.size
        if self._statistics.encoded > encoded:
            for request, (hypotheses, references, of) in zip(requests, placed, strict=True):
                new = _mark(self._seen_texts, np.concatenate([hypotheses, references]))
                request.scorer.statistics.encoded += new + _mark(self._seen_sources, of)

    def _placed(self, scorer: Scorer, pairs: Indices) -> Indices:
        texts = self._texts[scorer]
        return texts[pairs[0]], texts[pairs[1]], pairs[2] + self._first_source[scorer]


def _mark(seen: npt.NDArray[np.bool_], indices: IntArray) -> int:
    """How many of `indices` were not seen before; now they are. What sources share counts for the first of them."""
    indices = np.unique(indices[indices < len(seen)])
    new = int((~seen[indices]).sum())
    seen[indices] = True
    return new


class JointScoring:
    """Serves the requests of a group of sources.

    Args:
        statistics: where the joint kernels of each utility count what they do.
    """

    def __init__(self, statistics: dict[Utility, Statistics]) -> None:
        self.scorers: list[Scorer] = []
        self._statistics = statistics
        self._kernels: dict[Scorer, JointKernel] = {}

    def serve(self, requests: Sequence[Request]) -> None:
        """Everything that was asked for, in the order of the sources: utility by utility, devices at the same time."""
        alone: list[Request] = []
        streams: dict[JointKernel, list[Request]] = {}
        for request in sorted(requests, key=lambda request: request.scorer.order):
            kernel = self._kernel(request)
            (alone if kernel is None else streams.setdefault(kernel, [])).append(request)
        on_devices(
            [(stream[0].scorer.utility.device, partial(kernel.serve, stream)) for kernel, stream in streams.items()]
            + [(request.scorer.utility.device, request.run_alone) for request in alone]
        )

    def _kernel(self, request: Request) -> JointKernel | None:
        """The kernel that the request's scorer shares with others; None if it has to be served alone."""
        own = request.scorer
        if request.pairs is None or not own.utility.joins_sources or own.utility.needs_all_references:
            return None
        if own not in self._kernels:
            alike = [
                scorer
                for scorer in self.scorers
                if scorer not in self._kernels
                and scorer.utility is own.utility
                and bool(scorer.sources) == bool(own.sources)
            ]
            statistics = self._statistics.setdefault(own.utility, Statistics())
            try:
                kernel = JointKernel(sorted(alike, key=lambda scorer: scorer.order), statistics)
            except Exception:  # such as a string that is not text: alone, the source that has it says so
                return None
            self._kernels.update(dict.fromkeys(alike, kernel))
        return self._kernels[own]


def score_together(jobs: Sequence[tuple[Scorer, IntArray, IntArray]]) -> list[FloatArray]:
    """Scores of several (scorer, rows, columns) at the same time where they sit on different devices.

    The results are those of calling the scorers one after the other: scorers that share a device keep their order.
    Where the source is decided together with others, its jobs are served in one go with theirs.
    """
    work = [partial(scorer, rows, columns) for scorer, rows, columns in jobs]
    turn = jobs[0][0].turn if len({scorer for scorer, _, _ in jobs}) == len(jobs) > 1 else None
    if turn is not None:
        return turn.at_once(work)
    return on_devices([(scorer.utility.device, run) for (scorer, _, _), run in zip(jobs, work, strict=True)])


def on_devices(jobs: Sequence[tuple[str, Callable[[], T]]]) -> list[T]:
    """The results of jobs: those of one device one after the other, one thread for each device."""
    lanes: dict[str, list[int]] = {}
    for position, (device, _) in enumerate(jobs):
        lanes.setdefault(device, []).append(position)

    def run(lane: list[int]) -> list[tuple[int, T]]:
        return [(position, jobs[position][1]()) for position in lane]

    if len(lanes) < 2:
        done = [run(lane) for lane in lanes.values()]
    else:
        with ThreadPoolExecutor(max_workers=len(lanes)) as pool:
            done = list(pool.map(run, lanes.values()))
    by_position = dict(item for lane in done for item in lane)
    return [by_position[position] for position in range(len(jobs))]
