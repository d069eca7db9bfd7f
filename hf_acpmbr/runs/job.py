"""A run over a file: from records to lines, with everything checked before the output is touched.

Shards are at fixed positions, whatever the number of processes, and hold whole batches, which are computed with the
same neighbours by any process. So the output has the same bytes for any number of processes and after any kill.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from ..files import check_output, is_stream
from ..mbr import ACPMBR
from ..version import __version__
from .formats import Format, Result, encoded_line, write_parquet
from .inputs import Input, Record
from .output import OutputFile
from .shards import Share

if TYPE_CHECKING:
    from tqdm import tqdm
    from typing_extensions import Never

Item = TypeVar("Item")
# Options that are not in the note of a run: some do not change the lines, and files, models and what is in the recipe
# are noted by content.
_NOT_NOTED = {
    *("command", "debug", "quiet", "resume", "output", "shard", "merge", "ray", "ray_options"),
    *("device", "trust_remote_code"),
    *("input", "sources", "model", "revision", "recipe", "decoder", "set", "seed", "target", "distilled"),
    *("num_candidates", "num_references", "epsilon", "temperature", "max_rows", "target_option"),
}
# A shard is one batch in files of up to a thousand batches, so that a kill loses little, and a thousandth of longer
# ones, since every shard is two files; but at most 64 batches.
_SHARDS = 1000
_MOST = 64


@dataclass(frozen=True)
class Work(Generic[Item]):
    """What a command does with a file, as functions of its options that another process can call."""

    open: Callable[[argparse.Namespace], Input[Item]]
    load: Callable[[argparse.Namespace], Job[Item]]
    batch_size: int


@dataclass(frozen=True, eq=False)
class Job(Generic[Item]):
    """What decides."""

    mbr: ACPMBR
    decide: Callable[[Sequence[Record[Item]]], tuple[list[Result], int]]  # of a batch, and the decoder rows spent
    context: Mapping[str, object] = field(default_factory=dict)  # what else the lines depend on, such as the model

    def about(self) -> dict[str, object]:
        """Name everything that a line depends on besides input and options, which checks the utilities."""
        recipe, mbr = self.mbr.recipe.to_dict(), self.mbr
        return {
            "hf_acpmbr": __version__,
            "decoder": recipe["decoder"],
            "seed": recipe["seed"],
            "target": None if mbr.target is None else mbr.target.signature,
            "distilled": [guide.signature for guide in mbr.guides],
            **self.context,
        }


def run_job(args: argparse.Namespace, work: Work[Item]) -> int:
    """Decide for all records, or for this process's share of them, into --output."""
    share, shared = _checked(args)
    source = work.open(args)
    if is_stream(args.output):
        _stream(args, source, work)
        return 0
    if shared and not source.repeatable:
        raise ValueError("several processes share a file: give --input FILE, since standard input is one process's")
    with ExitStack() as spooled:
        for lines in source.files:
            spooled.enter_context(lines.repeatedly())
        run = FileRun(args, source, work, share)
        try:
            run.run()
        except (ValueError, OSError, KeyboardInterrupt) as error:
            if not (hint := run.output.stop()):
                raise
            hint += ", and --resume continues after them" if args.input != "-" else ""
            if isinstance(error, KeyboardInterrupt):
                error.args = (hint,)
                raise
            raise ValueError(f"{error}; {hint}") from error
        finally:
            run.output.stop()
    return 0


def _checked(args: argparse.Namespace) -> tuple[Share, bool]:
    """Return this process's share, and whether others make parts too; refuse options that do not go together."""
    Format.of(args)
    if args.merge and (args.resume or args.shard is not None):
        raise ValueError("--merge makes no shards: leave out --resume and --shard")
    if args.resume and args.input == "-":
        raise ValueError("--resume needs --input FILE: standard input cannot be read again")
    check_output(args.output, {option: getattr(args, option, None) for option in ("input", "sources")})
    share = Share.of(args.shard)
    if args.ray is not None and (share.count > 1 or args.merge):
        raise ValueError("--ray divides the file between its actors itself: leave out --shard, --merge and launchers")
    if args.ray_options and args.ray is None:
        raise ValueError("--ray-options are for --ray: leave them out")
    shared = share.count > 1 or args.merge or args.ray is not None
    if is_stream(args.output):
        if shared:
            raise ValueError("several processes share a file: give --output FILE, on a disk that all of them see")
        if args.resume:
            raise ValueError("--resume needs --output FILE: what went to standard output or a pipe cannot be resumed")
        if args.format == "parquet":
            raise ValueError("--format parquet needs --output FILE: a table is written when all rows are known")
    return share, shared


def _stream(args: argparse.Namespace, source: Input[Item], work: Work[Item]) -> None:
    """Write to standard output, a pipe or a device, batch by batch."""
    summary, format = Summary(), Format.of(args)
    with ExitStack() as opened:
        file = sys.stdout.buffer if args.output == "-" else opened.enter_context(open(args.output, "wb"))

        def write(lines: Sequence[str]) -> None:
            file.writelines(map(encoded_line, lines))
            file.flush()

        records, digests = source.check(), source.digests
        job = work.load(args)
        with progress(records, 0, args.quiet) as bar:
            for batch in source.batches(work.batch_size):
                write(decided(job, batch, format, summary, write))
                bar.update(len(batch))
        if records is not None and source.digests != digests:
            raise InputChanged(args)
    if not args.quiet:
        summary.show()


class FileRun(Generic[Item]):
    """A run over a file, as far as this process makes it."""

    def __init__(self, args: argparse.Namespace, source: Input[Item], work: Work[Item], share: Share) -> None:
        self.args, self.source, self.work, self.format = args, source, work, Format.of(args)
        records = source.check(self.format.checked)
        assert records is not None, "a file can be read twice"
        self.records, self.digests = records, source.digests
        batches = -(-records // (_SHARDS * work.batch_size))
        self.size = min(max(batches, 1), _MOST) * work.batch_size
        options = {key: value for key, value in vars(args).items() if key not in _NOT_NOTED}
        about = {"input": self.digests, "options": options, "lines_per_shard": self.size}
        count, convert = -(-records // self.size), write_parquet if self.format.name == "parquet" else None
        self.output = OutputFile(args.output, share, count, about, resume=args.resume, convert=convert)
        self.summary = Summary()
        self._shard = count  # that is being read
        self._batches: Iterator[list[Record[Item]]] = iter(())

    def run(self) -> None:
        """Make this process's shards, and the file if all others are finished."""
        args, output, share = self.args, self.output, self.output.share
        if args.merge:
            output.merge_by_hand()
            return
        mine = share.of_all(output.count)
        if share.index and not mine:
            return  # more processes than shards
        output.start()  # refuses what cannot be continued before a model is loaded for nothing
        if args.ray is not None:
            from .ray import make_shards

            missing = make_shards(self)
        else:
            if share.local is not None and getattr(args, "device", None) != "cpu":
                share.take_device()
            missing = self._make(self.work.load(args))
        complete = missing is None or output.merge()
        if not args.quiet:
            self.summary.show(
                self.records_in(mine) - self.records_in(missing or ()), f"{share}: " if share.count > 1 else ""
            )
            if not complete:
                print(f"{output.missing()}; the process that makes the last one writes", file=sys.stderr)

    def _make(self, job: Job[Item]) -> list[int] | None:
        """Make the missing shards and return which they were; None if the file was finished."""
        output = self.output
        output.about |= job.about()
        if not (missing := output.start()):
            return missing
        try:
            with self.progress(missing) as bar:
                for shard in missing:
                    output.put(shard, self.lines_of(job, shard, bar), self.records_in([shard]))
            self._shard = output.count  # so the rest of the input is read and not taken
            if self._next_batch() or self.source.digests != self.digests:
                raise InputChanged(self.args)
        except InputChanged:
            for shard in missing:  # they may be of either content
                output.shards.discard(shard)
            raise
        return missing

    def lines_of(self, job: Job[Item], shard: int, bar: tqdm[Never] | None = None) -> bytes:
        """Make the lines of a shard; ascending shards are read in one pass over the input."""
        if shard <= self._shard:
            self._batches = self.source.batches(
                self.work.batch_size, lambda position: position // self.size == self._shard
            )
        self._shard = shard
        lines: list[str] = []
        left = self.records_in([shard])
        while left:
            if not (batch := self._next_batch()):
                raise InputChanged(self.args)
            lines += decided(job, batch, self.format, self.summary)
            left -= len(batch)
            if bar is not None:
                bar.update(len(batch))
        return b"".join(map(encoded_line, lines))

    def _next_batch(self) -> list[Record[Item]]:
        """Read the next batch of the shard; [] at the end of the input."""
        try:
            return next(self._batches, [])
        except ValueError as error:  # the check found no mistake
            raise InputChanged(self.args) from error

    def progress(self, missing: Sequence[int]) -> tqdm[Never]:
        """Show a bar over this process's records, beginning after those that are done."""
        share = self.output.share
        total = self.records_in(share.of_all(self.output.count))
        quiet = self.args.quiet or bool(share.local)  # of a launcher's processes, the first shows its progress
        return progress(total, total - self.records_in(missing), quiet, in_logs=share.count > 1)

    def records_in(self, shards: Iterable[int]) -> int:
        return sum(min(self.size, self.records - shard * self.size) for shard in shards)


class InputChanged(ValueError):
    """The input is not what it was when it was checked."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(f"{args.input} changed while it was read: start anew with a file that stays as it is")


def decided(
    job: Job[Item],
    batch: Sequence[Record[Item]],
    format: Format,
    summary: Summary,
    write: Callable[[Sequence[str]], None] = lambda lines: None,
) -> list[str]:
    """Return the lines of a batch; if one of its records is at fault, write those before it and name it."""

    def made(records: Sequence[Record[Item]]) -> tuple[list[Result], int, list[str]]:
        results, rows = job.decide(records)
        return results, rows, format.lines(job.mbr, records, results)

    try:
        results, rows, lines = made(batch)
    except ValueError:
        lines = []
        for record in batch:
            try:
                lines += made([record])[2]
            except ValueError as error:
                write(lines)
                raise ValueError(f"{error} (at {record.where})") from error
        raise  # only together
    summary.counts.update(lines=len(results), rows=rows)
    for decision in (result.decision for result in results if result.decision is not None):
        summary.counts.update(unique=len(decision.candidates), drawn=decision.candidates.total)
        summary.calls.update(decision.calls)
    return lines


class Summary:
    """What a run did and cost, in one line on standard error."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.counts = Counter[str]()
        self.calls = Counter[str]()

    def show(self, resumed: int = 0, who: str = "") -> None:
        lines = self.counts["lines"]
        parts = [f"{who}{lines:,} line{'s' * (lines != 1)} in {time.perf_counter() - self._start:.1f} s"]
        if resumed:
            parts.append(f"{resumed:,} were there already")
        if lines:
            parts.append(f"{self.counts['unique']:,} unique of {self.counts['drawn']:,} candidates")
        if self.counts["rows"]:
            parts.append(f"{self.counts['rows']:,} decoder rows")
        parts.extend(f"{count:,} {name} calls" for name, count in self.calls.items())
        print("; ".join(parts), file=sys.stderr)


def progress(total: int | None, done: int, quiet: bool, *, in_logs: bool = False) -> tqdm[Never]:
    """Show a bar with the remaining time, on standard error if that is a terminal; with `in_logs` always."""
    from tqdm import tqdm

    off = True if quiet else False if in_logs else None
    rarely = 0.1 if sys.stderr.isatty() else 15.0
    return tqdm(total=total, initial=done, unit="line", file=sys.stderr, disable=off, mininterval=rarely)
