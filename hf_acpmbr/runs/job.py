"""A run over a file: from records to lines, with everything checked before the output is touched.

Shards are at fixed positions, whatever the number of processes, and hold whole batches, which are computed with the
same neighbours by any process. So the output has the same bytes for any number of processes and after any kill.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Generic, TypeVar

from ..mbr import ACPMBR
from ..version import __version__
from .formats import Result, output_lines, write_parquet
from .inputs import Input, Record
from .output import OutputFile, Stream, is_stream, kept, progress
from .pairs import check_preferences
from .shards import Share

Item = TypeVar("Item")
# What a result does not depend on, and what the note of a run has by content and not by option: files, the model, and
# what is in the recipe.
_BY_CONTENT = ("input", "sources", "model", "revision", "recipe", "decoder", "set", "seed", "target", "distilled")
_IN_THE_RECIPE = ("num_candidates", "num_references", "epsilon", "temperature", "max_rows", "target_option")
_HOW = ("command", "debug", "resume", "quiet", "device", "output", "trust_remote_code", "shard", "merge")
_PASSING = (*_HOW, *_BY_CONTENT, *_IN_THE_RECIPE)
# A shard is one batch in files of up to a thousand batches, so that a kill loses little, and a thousandth of longer
# ones, since every shard is two files; but at most 64 batches.
_SHARDS = 1000
_MOST = 64


@dataclass(frozen=True, eq=False)
class Job(Generic[Item]):
    """What decides.

    Args:
        mbr: for the note of the run.
        decide: results of a batch, and the decoder rows that they took.
        context: what else the lines depend on, for the note: the model, its languages.
    """

    mbr: ACPMBR
    decide: Callable[[Sequence[Record[Item]]], tuple[list[Result], int]]
    context: Mapping[str, object] = field(default_factory=dict)

    def about(self) -> dict[str, object]:
        """Everything that a line depends on besides input and options; finding it out checks the utilities."""
        recipe, mbr = self.mbr.recipe.to_dict(), self.mbr
        about = {
            "hf_acpmbr": __version__,
            "decoder": recipe["decoder"],
            "seed": recipe["seed"],
            "target": None if mbr.target is None else mbr.target.signature,
            "distilled": [guide.signature for guide in mbr.guides],
            **self.context,
        }
        as_json: dict[str, object] = json.loads(json.dumps(about, default=str))
        return as_json


def check_arguments(args: argparse.Namespace) -> None:
    """What both commands refuse before they read or load anything."""
    if args.nbest < 1:
        raise ValueError(f"--nbest must be at least 1, got {args.nbest}")
    if args.nbest > 1 and args.format in ("text", "preferences"):
        lines = "one line per source" if args.format == "text" else "one line per pair"
        raise ValueError(f"--nbest {args.nbest} needs --format jsonl: {args.format} has {lines}")
    if args.merge and (args.resume or args.shard is not None):
        raise ValueError("--merge makes no shards: leave out --resume and --shard")
    if args.resume and args.input == "-":
        raise ValueError("--resume needs --input FILE: standard input cannot be read again")
    for option in ("input", "sources"):
        path: str | None = getattr(args, option, None)
        if path is not None and same_file(path, args.output):
            raise ValueError(f"--output {args.output} is the --{option} file: choose another --output")
    check_preferences(args)


def same_file(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def run_job(args: argparse.Namespace, source: Input[Item], batch_size: int, prepare: Callable[[], Job[Item]]) -> int:
    """Decide for all records, or for this process's share of them, into --output; `prepare` loads what that needs."""
    share = Share.of(args.shard)
    if Path(args.output).is_dir():
        raise ValueError(f"--output {args.output} is a folder: give a file in it")
    convert = write_parquet if args.format == "parquet" else None
    if is_stream(args.output) or not source.repeatable:
        _refuse_stream(args, share)
        _stream(args, source, batch_size, prepare, Stream(args.output, convert))
        return 0
    output = OutputFile(args.output, share, resume=args.resume, convert=convert)
    with kept(output, repeatable=True):
        _FileRun(args, source, batch_size, output).run(prepare)
    output.stop()
    return 0


def _refuse_stream(args: argparse.Namespace, share: Share) -> None:
    if is_stream(args.output):
        if args.resume:
            raise ValueError("--resume needs --output FILE: what went to standard output or a pipe cannot be resumed")
        if args.format == "parquet":
            raise ValueError("--format parquet needs --output FILE: a table is written when all rows are known")
        if share.count > 1 or args.merge:
            raise ValueError("several processes share a file: give --output FILE, on a disk that all of them see")
    elif share.count > 1 or args.merge:
        raise ValueError("several processes share a file: give --input FILE, since standard input is one process's")


def _stream(
    args: argparse.Namespace, source: Input[Item], batch_size: int, prepare: Callable[[], Job[Item]], output: Stream
) -> None:
    """Write batch by batch, and where one is at fault also what comes before it."""
    summary = Summary()
    with kept(output, repeatable=False):
        checked = source.check()
        job = prepare()
        with progress(None if checked is None else checked.records, 0, args.quiet) as bar:
            for batch in source.batches(batch_size, lambda position: True):
                results, rows = decided(job, batch, args, output.write)
                output.write(output_lines(args, results))
                summary.add(results, rows)
                bar.update(len(results))
        if checked is not None and source.digests != checked.digests:
            raise InputChanged(args)
        output.finish()
    if not args.quiet:
        summary.show()


class _FileRun(Generic[Item]):
    """A run over a file, as far as this process makes it."""

    def __init__(self, args: argparse.Namespace, source: Input[Item], batch_size: int, output: OutputFile) -> None:
        checked = source.check()
        assert checked is not None, "a file can be read twice"
        self.args, self.source, self.output, self.checked, self.batch_size = args, source, output, checked, batch_size
        batches = -(-checked.records // (_SHARDS * batch_size))
        self.size = min(max(batches, 1), _MOST) * batch_size
        self.count = -(-checked.records // self.size)
        options = {key: value for key, value in vars(args).items() if key not in _PASSING}
        self.about: dict[str, object] = {"input": checked.digests, "options": options, "lines_per_shard": self.size}

    def run(self, prepare: Callable[[], Job[Item]]) -> None:
        """Make this process's shards, and the file if all others are there."""
        args, output, share = self.args, self.output, self.output.share
        if args.merge:
            output.merge_by_hand(self.about)
            return
        if share.index and not share.of_all(self.count):
            return  # more processes than shards
        output.finished(self.about)  # before a model is loaded for nothing
        if share.local is not None and getattr(args, "device", None) != "cpu":
            share.take_device()
        job = prepare()
        self.about |= job.about()
        summary = Summary()
        if output.finished(self.about):
            done, there = self.checked.records, True
            output.shards.remove()  # a kill while it was removed
        else:
            missing = output.start(self.about, self.count)
            done = sum(self._records_in(shard) for shard in share.of_all(self.count) if shard not in missing)
            self._make(job, missing, done, summary)
            there = output.merge(self.about, self.count)
        if not args.quiet:
            summary.show(done, "" if share.count == 1 else f"{share}: ")
            if not there:
                print(f"{output.missing(self.count)}; the process that makes the last one writes", file=sys.stderr)

    def _make(self, job: Job[Item], missing: list[int], done: int, summary: Summary) -> None:
        share, total = self.output.share, sum(map(self._records_in, self.output.share.of_all(self.count)))
        quiet = self.args.quiet or bool(share.local)  # of a launcher's processes, the first shows its progress
        try:
            with progress(total, done, quiet, in_logs=share.count > 1) as bar:
                for shard, batches in groupby(self._batches(missing), lambda batch: batch[0].position // self.size):
                    lines: list[str] = []
                    records = 0
                    for batch in batches:
                        results, rows = decided(job, batch, self.args, lambda lines: None)
                        lines += output_lines(self.args, results)
                        records += len(results)
                        summary.add(results, rows)
                        bar.update(len(results))
                    if records != self._records_in(shard):
                        raise InputChanged(self.args)
                    self.output.put(shard, lines, records, self.about)
        except InputChanged:
            for shard in missing:  # nobody knows what they were made of
                self.output.shards.discard(shard)
            raise

    def _batches(self, shards: list[int]) -> Iterator[list[Record[Item]]]:
        if not (wanted := set(shards)):
            return
        try:
            yield from self.source.batches(self.batch_size, lambda position: position // self.size in wanted)
        except ValueError as error:  # there was no mistake before
            raise InputChanged(self.args) from error
        if self.source.digests != self.checked.digests:
            raise InputChanged(self.args)

    def _records_in(self, shard: int) -> int:
        return min(self.size, self.checked.records - shard * self.size)


class InputChanged(ValueError):
    """The input is not what it was when it was checked."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(f"{args.input} changed while it was read: start anew with a file that stays as it is")


def decided(
    job: Job[Item],
    batch: Sequence[Record[Item]],
    args: argparse.Namespace,
    write: Callable[[Sequence[str]], None],
) -> tuple[list[Result], int]:
    """Results of a batch; where one is at fault, it is named and those before it are written."""
    try:
        return job.decide(batch)
    except ValueError:
        lines: list[str] = []
        for record in batch:
            try:
                results, _ = job.decide([record])
            except ValueError as error:
                write(lines)
                raise ValueError(f"{error} (at {record.where})") from error
            lines += output_lines(args, results)
        raise  # only together


class Summary:
    """What a run did and cost, in one line on standard error."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.counts = Counter[str]()
        self.calls = Counter[str]()

    def add(self, results: Sequence[Result], rows: int) -> None:
        decisions = [result.decision for result in results if result.decision is not None]
        self.counts["lines"] += len(results)
        self.counts["rows"] += rows
        self.counts["unique"] += sum(len(decision.candidates) for decision in decisions)
        self.counts["drawn"] += sum(decision.candidates.total for decision in decisions)
        for decision in decisions:
            self.calls.update(decision.calls)

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
