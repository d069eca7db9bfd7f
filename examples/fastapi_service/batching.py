"""Requests that come at the same time are done together, and no more of them wait than can be answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class BusyError(Exception):
    """The queue is full."""


@dataclass(eq=False)
class Job:
    """The texts of one request, and when they must be done."""

    texts: list[str]
    time_limit: float
    arrived: float = field(default_factory=time.monotonic)
    done: asyncio.Future[list[dict[str, Any]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Collects jobs with the same time limit and runs each batch in one thread, one batch after the other.

    Args:
        run: run(texts, seconds left) → one result for each text; called in a thread.
        most_texts: texts of a batch.
        most_waiting: jobs that may wait; further ones are refused.
        wait: seconds in which a first job waits for others.
    """

    def __init__(
        self,
        run: Callable[[list[str], float], list[dict[str, Any]]],
        most_texts: int = 16,
        most_waiting: int = 64,
        wait: float = 0.01,
    ) -> None:
        self.run, self.most_texts, self.most_waiting, self.wait = run, most_texts, most_waiting, wait
        self.waiting: list[Job] = []
        self.batches: list[int] = []  # texts of each batch, for /health
        self._news = asyncio.Event()

    async def submit(self, texts: list[str], time_limit: float) -> list[dict[str, Any]]:
        """The results of one request."""
        if len(self.waiting) >= self.most_waiting:
            raise BusyError(f"{len(self.waiting)} requests are waiting already: try again later")
        job = Job(texts, time_limit)
        self.waiting.append(job)
        self._news.set()
        return await job.done

    async def work(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(self.wait)
            while self.waiting:
                await self._batch(self._next())
            self._news.clear()

    def _next(self) -> list[Job]:
        """The oldest job and others with its time limit, as many as fit."""
        chosen, size = [], 0
        for job in list(self.waiting):
            fits = not chosen or size + len(job.texts) <= self.most_texts
            if job.done.cancelled():  # its caller has gone
                self.waiting.remove(job)
            elif (not chosen or job.time_limit == chosen[0].time_limit) and fits:
                self.waiting.remove(job)
                chosen.append(job)
                size += len(job.texts)
        return chosen

    async def _batch(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        texts = [text for job in jobs for text in job.texts]
        left = jobs[0].time_limit - (time.monotonic() - min(job.arrived for job in jobs))
        try:
            results = await asyncio.to_thread(self.run, texts, left)
        except Exception as error:  # each caller hears of it; the worker goes on with the next batch
            for job in jobs:
                if not job.done.done():
                    job.done.set_exception(error)
            return
        self.batches.append(len(texts))
        for job in jobs:
            mine, results = results[: len(job.texts)], results[len(job.texts) :]
            if not job.done.done():
                job.done.set_result(mine)
