"""Several processes on one machine or many: who does what, waiting for each other, progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list
from tqdm import tqdm

from .launched import watch_launch

T = TypeVar("T")
HOW_TO_LAUNCH = (
    "two processes on a CPU: `accelerate launch --multi_gpu --num_processes 2 …`, or "
    "`ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 …`"
)


@dataclass(frozen=True)
class Workers:
    """The processes of this run.

    Args:
        accelerator: accelerate's view of them.
    """

    accelerator: Accelerator

    @classmethod
    def start(cls, expected: int | None = None) -> Workers:
        """Join the processes that the launcher started.

        Args:
            expected: how many processes there must be; None takes what the launcher says.
        """
        watch_launch()
        on_cpu = not torch.cuda.is_available() and not torch.backends.mps.is_available()
        # The quickest process may wait for hours for the slowest; the default patience is minutes.
        patience = InitProcessGroupKwargs(timeout=timedelta(days=30))
        workers = cls(Accelerator(cpu=on_cpu or None, kwargs_handlers=[patience]))
        refuse_lonely_run(workers.count, expected, os.environ)
        return workers

    def set_threads(self, threads: int) -> None:
        """Of torch in each process, on a CPU."""
        if self.device == "cpu":
            torch.set_num_threads(threads)

    @property
    def count(self) -> int:
        return int(self.accelerator.num_processes)

    @property
    def rank(self) -> int:
        return int(self.accelerator.process_index)

    @property
    def is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    @property
    def device(self) -> str:
        """Where this process computes; a CPU has one name, whatever the process's number."""
        device = self.accelerator.device
        return "cpu" if device.type == "cpu" else str(device)

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()

    def from_main(self, make: Callable[[], T]) -> T:
        """What the main process finds out, known to all; where it fails, that one says why and all end."""
        found: list[T | None] = [None]
        problem: Exception | None = None
        if self.is_main:
            try:
                found = [make()]
            except Exception as error:
                problem = error
        holder: list[object] = [problem is None, found[0]]
        broadcast_object_list(holder)
        if problem is not None:
            raise problem
        if not holder[0]:
            raise SystemExit(2)
        return cast(T, holder[1])

    def on_main_first(self, check: Callable[[], T]) -> T:
        """What a check gives; where it fails on the main process, that one says why and all end."""
        made: list[T] = []
        self.from_main(lambda: made.append(check()))
        return made[0] if self.is_main else check()

    def refuse_differences(self, value: object) -> None:
        """An error where processes, perhaps on several machines, differ in input, models, metrics or code."""
        if self.from_main(lambda: value) != value:
            raise ValueError(
                f"process {self.rank} has another input, model, metric or version of the package than process 0: give "
                "all machines the same"
            )

    def share(self, items: Sequence[int]) -> list[int]:
        """This process's part; neighbours go to different processes, since long sentences often stand together."""
        return list(items[self.rank :: self.count])

    def end(self) -> None:
        """Everybody is through."""
        self.wait()
        if (watch := watch_launch()) is not None:
            watch.leave()
        self.accelerator.end_training()


def refuse_lonely_run(processes: int, expected: int | None, environment: Mapping[str, str]) -> None:
    """Some launch commands ask for several processes and silently start one; that is an error, not a slow run."""
    world = int(environment.get("WORLD_SIZE", 0) or 0)
    if expected is not None and expected != processes:
        raise ValueError(f"--processes {expected} were expected, but {processes} runs; {HOW_TO_LAUNCH}")
    if world > 1 and processes != world:
        raise ValueError(
            f"the launcher started {world} processes, but each believes that it is alone (without a GPU set "
            f"ACCELERATE_USE_CPU=true); {HOW_TO_LAUNCH}"
        )
    # accelerate's simple launcher sets an address for processes to meet at, and then starts only one.
    launched = "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment
    if launched and "WORLD_SIZE" not in environment and processes == 1:
        raise ValueError(
            "accelerate was asked for several processes or machines and started only one: with --cpu it ignores "
            f"--num_processes; {HOW_TO_LAUNCH}"
        )


class Progress:
    """A bar with the remaining time on the main process, over the work of all processes.

    Args:
        phase: what is being done.
        total: how many sources in all.
        finished: counts the sources that any process has finished.
    """

    def __init__(self, phase: str, total: int, finished: Callable[[], int], shown: bool) -> None:
        self.total, self.finished = total, finished
        interval = 0.5 if sys.stderr.isatty() else 15.0
        self.bar = tqdm(total=total, desc=phase, unit=" sources", mininterval=interval, disable=not shown)

    def update(self) -> None:
        if not self.bar.disable:
            self.bar.update(self.finished() - self.bar.n)

    def follow(self) -> None:
        """Wait for the other processes, which have the rest."""
        idle = 0.0
        while not self.bar.disable and self.bar.n < self.total and idle < 3600.0:
            before = self.bar.n
            time.sleep(0.2)
            self.update()
            idle = 0.0 if self.bar.n > before else idle + 0.2
        self.bar.close()
