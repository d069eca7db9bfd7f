"""One output by several processes: each makes its shards of the lines, and the main one puts them in order.

Shards are at fixed positions and hold the batches that one process alone would make, so the output has the same bytes
for any number of processes. Finished shards wait in `<output>.parts` until all before them are in the output; a resumed
run takes what it finds there, whoever made it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from ..shards import Shards, digest
from ..workers import Workers
from ._input import Checked, Input
from ._resumable import Output, ResumableOutput, encoded_line, kept, open_output, parts_of, progress
from ._run import Job, Summary, about_input, decided, output_line

if TYPE_CHECKING:
    from typing import Never

    from tqdm import tqdm

Item = TypeVar("Item")
# Batches in a shard. Few, so that a kill loses little and processes end together; more in a long run of which they are
# a thousandth each, since every shard is two files that are flushed to disk.
_FEWEST, _MOST = 4, 64
_SHARDS = 1000
_LOOK_EVERY = 0.2


def decide_together(
    args: argparse.Namespace, source: Input[Item], batch_size: int, prepare: Callable[[], Job[Item]]
) -> int:
    """What `decide_all` does, as one of the processes of a launch."""
    _refuse(args, source)
    workers = Workers.start()
    opened: list[Output] = []

    def open_on_main() -> None:
        opened.append(open_output(args.output, resume=args.resume, batch_size=batch_size, format=args.format))

    workers.from_main(open_on_main)
    with kept(opened[0], repeatable=True) if opened else nullcontext():
        checked = workers.on_main_first(source.check)  # each its own file, which may be a copy
        assert checked is not None, "a file can be read twice"
        about = about_input(args, checked)
        workers.from_main(lambda: opened[0].check(about))  # before a model is loaded for nothing
        job = prepare()
        about = {**about, **job.about()}
        workers.refuse_differences(about)
        summary = Summary()
        if not workers.from_main(lambda: opened[0].check(about)):
            run = _SharedRun(args, source, batch_size, workers, checked, about)
            missing = workers.from_main(lambda: run.start(opened[0]))
            run.make(job, workers.share(missing), summary)
    if workers.is_main and not args.quiet:
        summary.show(opened[0].done)
    workers.end()
    return 0


def _refuse(args: argparse.Namespace, source: Input[Item]) -> None:
    if not source.repeatable:
        raise ValueError("several processes share a file: give --input FILE, since standard input is one process's")
    if args.output == "-" or (os.path.exists(args.output) and not os.path.isfile(args.output)):
        raise ValueError("several processes share a file: give --output FILE, on a disk that all of them see")


class _SharedRun(Generic[Item]):
    """The shards of one run.

    Args:
        checked: the input, as every process has read it.
        about: what the lines depend on.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        source: Input[Item],
        batch_size: int,
        workers: Workers,
        checked: Checked,
        about: dict[str, object],
    ) -> None:
        self.args, self.source, self.workers, self.checked, self.about = args, source, workers, checked, about
        batches = -(-checked.records // (_SHARDS * batch_size))
        self.batch_size, self.size = batch_size, min(max(batches, _FEWEST), _MOST) * batch_size
        self.count = -(-checked.records // self.size)
        self.shards = Shards(parts_of(args.output), ".txt")
        self.settings = {"run": digest(about), "lines": str(self.size)}
        self.output: ResumableOutput | None = None
        self.lines = 0

    def start(self, output: Output) -> list[int]:
        """Open the output on the main process, and find the shards that are missing."""
        assert isinstance(output, ResumableOutput), "others are refused"
        known = sorted(int(path.stem) for path in self.shards.folder.glob("*.json"))
        if known and not self.args.resume:
            raise ValueError(
                f"{self.shards.folder} has {len(known)} shards of an unfinished run: add --resume to continue it, or "
                "remove it to start anew"
            )
        output.start(self.about)
        self.output, self.lines = output, output.done
        self.shards.clean()
        sound = set()
        for shard in known:
            note = self.shards.sound(shard)
            if note is not None and note.settings == self.settings and shard >= self.lines // self.size:
                sound.add(shard)
            else:
                self.shards.discard(shard)
        return [shard for shard in range(self.lines // self.size, self.count) if shard not in sound]

    def make(self, job: Job[Item], share: list[int], summary: Summary) -> None:
        """This process's shards; the main one collects those of all."""
        own, shown = set(share), self.workers.is_main and not self.args.quiet
        batches = self.source.batches(self.batch_size, lambda position: position // self.size in own)
        with progress(self.checked.records, self.lines, not shown, in_logs=True) as bar:
            for shard in share:
                made, lines = Summary(), []
                for batch in islice(batches, -(-self._lines_in(shard) // self.batch_size)):
                    results, rows = decided(job, batch, self.args, lambda lines: None)
                    lines += [encoded_line(output_line(self.args, result)) for result in results]
                    made.add(results, rows)
                if len(lines) != self._lines_in(shard):  # a short shard would be waited for without end
                    raise self._changed()
                costs = {"counts": dict(made.counts), "calls": dict(made.calls)}
                data = b"".join(lines)
                self.shards.put(shard, data, settings=self.settings, inputs="", failed={}, meta=costs)
                self._collect(summary, bar)
            deque(batches, maxlen=0)  # read on to the end, to see that the file has not changed
            if self.source.digests != self.checked.digests:
                raise self._changed()
            if self.output is not None:
                self._finish(self.output, summary, bar)

    def _lines_in(self, shard: int) -> int:
        return min(self.size, self.checked.records - shard * self.size)

    def _changed(self) -> ValueError:
        return ValueError(f"{self.args.input} changed while it was read: start anew with a file that stays as it is")

    def _collect(self, summary: Summary, bar: tqdm[Never]) -> None:
        """Move finished shards into the output, in order, as far as they are there."""
        if self.output is None:
            return
        while (shard := self.lines // self.size) < self.count and (note := self.shards.sound(shard)) is not None:
            lines = self.shards.path(shard).read_bytes().decode().split("\n")[:-1]
            new = lines[self.lines - shard * self.size :]
            self.output.write(new)
            self.output.sync()  # first, so that its lines are always on the disk in one place
            self.shards.discard(shard)
            summary.counts.update(note.meta["counts"])
            summary.calls.update(note.meta["calls"])
            self.lines += len(new)
            bar.update(len(new))

    def _finish(self, output: ResumableOutput, summary: Summary, bar: tqdm[Never]) -> None:
        while self.lines < self.checked.records:
            self._collect(summary, bar)
            time.sleep(_LOOK_EVERY)
        output.finish({**self.about, "input": self.source.digests})
        shutil.rmtree(self.shards.folder, ignore_errors=True)
