"""Compute requests together that arrive at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False)
class _Job(Generic[T, R]):
    key: Hashable
    item: T
    done: asyncio.Future[R]


class Batcher(Generic[T, R]):
    """Computes in a thread, batch by batch; items that arrive meanwhile wait for the next batch.

    A batch is the oldest item and others with its key, so an item never waits for later ones with
    another key, and a batch never takes its settings from a later item.

    Args:
        run: run(key, items) → one result per item.
        most: the most items of a batch.
    """

    def __init__(self, run: Callable[[Any, Sequence[T]], Sequence[R]], most: int) -> None:
        self.run, self.most, self.batches = run, most, 0
        self._waiting: list[_Job[T, R]] = []
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, key: Hashable, item: T) -> R:
        """Return the result for an item. If cancelled before its batch begins, it is left out."""
        job: _Job[T, R] = _Job(key, item, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await job.done

    async def _work(self) -> None:
        while waiting := [job for job in self._waiting if not job.done.done()]:
            key = waiting[0].key
            batch = [job for job in waiting if job.key == key][: self.most]
            self._waiting = [job for job in waiting if job not in batch]
            results = await asyncio.to_thread(self._attempt, key, [job.item for job in batch])
            self.batches += 1
            for job, result in zip(batch, results, strict=True):
                if job.done.done():  # its client has gone
                    continue
                if isinstance(result, Exception):
                    job.done.set_exception(result)
                else:
                    job.done.set_result(result)

    def _attempt(self, key: Hashable, items: Sequence[T]) -> Sequence[R | Exception]:
        """Return a result or an error per item: if a batch fails, each item is tried alone."""
        try:
            return self.run(key, items)
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [self._attempt(key, [item])[0] for item in items]
