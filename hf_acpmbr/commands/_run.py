"""A run over a file: from records to lines, batch by batch, with everything checked before the output is touched."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..decoding import Decision
from ..launched import is_launched
from ..mbr import ACPMBR
from ..version import __version__
from ._input import Checked, Input, Record
from ._pairs import check_preferences
from ._resumable import Output, kept, open_output, parts_of, progress

Item = TypeVar("Item")
# What a result does not depend on, and what the note of a run has by content and not by option: files, the model, and
# what is in the recipe.
_BY_CONTENT = ("input", "sources", "model", "revision", "recipe", "decoder", "set", "seed", "target", "distilled")
_IN_THE_RECIPE = ("num_candidates", "num_references", "epsilon", "temperature", "max_rows", "target_option")
_HOW = ("command", "debug", "resume", "quiet", "device", "output", "trust_remote_code")
_PASSING = (*_HOW, *_BY_CONTENT, *_IN_THE_RECIPE)
OUTPUT_FIELDS = ("text", "expected", "nbest", "unique", "drawn", "calls", "status", "signature")


@dataclass(frozen=True, eq=False)
class Result:
    """What one record gives.

    Args:
        decision: None for a blank source.
        fields: what else its JSON has.
        prompt: what was asked; None if unknown.
        pairs: for --format preferences.
    """

    decision: Decision | None
    fields: Mapping[str, object]
    prompt: str | None = None
    pairs: Sequence[Mapping[str, object]] = ()


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
    if args.resume and args.input == "-":
        raise ValueError("--resume needs --input FILE: standard input cannot be read again")
    for option in ("input", "sources"):
        path: str | None = getattr(args, option, None)
        if path is not None and same_file(path, args.output):
            raise ValueError(f"--output {args.output} is the --{option} file: choose another --output")
    check_preferences(args)


def same_file(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def decide_all(args: argparse.Namespace, source: Input[Item], batch_size: int, prepare: Callable[[], Job[Item]]) -> int:
    """Decide for all records, batch by batch, into --output; `prepare` loads what that needs."""
    if is_launched() or (args.resume and parts_of(args.output).is_dir()):
        from ._shared import decide_together

        return decide_together(args, source, batch_size, prepare)
    summary = Summary()
    output = open_output(args.output, resume=args.resume, batch_size=batch_size, format=args.format)
    with kept(output, source.repeatable):
        checked = source.check()
        about = about_input(args, checked)
        output.check(about)  # before a model is loaded for nothing
        job = prepare()
        about = {**about, **job.about()}
        if not (finished := output.check(about)):
            output.start(about)
            with progress(None if checked is None else checked.records, output.done, args.quiet) as bar:
                batches = source.batches(batch_size, lambda position: position >= output.done)
                for results, rows in _batches(args, batches, job, output):
                    summary.add(results, rows)
                    bar.update(len(results))
    if not finished:
        if checked is not None and source.digests != checked.digests:
            output.stop()
            raise ValueError(f"{args.input} changed while it was read: start anew with a file that stays as it is")
        output.finish({**about, "input": source.digests})
    if not args.quiet:
        summary.show(output.done)
    return 0


def _batches(
    args: argparse.Namespace,
    batches: Iterable[Sequence[Record[Item]]],
    job: Job[Item],
    output: Output,
) -> Iterator[tuple[list[Result], int]]:
    """Results of every batch, and their decoder rows, once they are written."""
    for batch in batches:
        results, rows = decided(job, batch, args, output.write)
        output.write(output_line(args, result) for result in results)
        yield results, rows


def about_input(args: argparse.Namespace, checked: Checked | None) -> dict[str, object]:
    options = {key: value for key, value in vars(args).items() if key not in _PASSING}
    return {"input": None if checked is None else checked.digests, "options": options}


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
            lines += [output_line(args, result) for result in results]
        raise  # only together


def output_line(args: argparse.Namespace, result: Result) -> str:
    """The chosen text, or everything as JSON; nothing that differs from run to run, such as seconds."""
    decision = result.decision
    if args.format == "text":
        return "" if decision is None else decision.text
    if args.format == "preferences":
        return json.dumps(result.pairs)
    record = dict(result.fields)
    if decision is None:
        record |= dict(zip(OUTPUT_FIELDS, ("", None, [], 0, 0, {}, "blank", None), strict=True))
        return _json(record)
    ranked = decision.nbest(args.nbest)
    record |= {
        "text": decision.text,
        "expected": float(decision.expected[decision.index]),
        "nbest": [{"text": entry.text, "expected": entry.expected, "count": entry.count} for entry in ranked],
        "unique": len(decision.candidates),
        "drawn": decision.candidates.total,
        "calls": dict(decision.calls),
        "status": decision.status,
        "signature": decision.signature,
    }
    return _json(record)


def _json(record: Mapping[str, object]) -> str:
    line = json.dumps(record, ensure_ascii=False)
    return line if _is_text(line) else json.dumps(record)  # half of a surrogate pair stays an escape


def _is_text(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


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

    def show(self, resumed: int) -> None:
        lines = self.counts["lines"]
        parts = [f"{lines:,} line{'s' * (lines != 1)} in {time.perf_counter() - self._start:.1f} s"]
        if resumed:
            parts.append(f"{resumed:,} were there already")
        if lines:
            parts.append(f"{self.counts['unique']:,} unique of {self.counts['drawn']:,} candidates")
        if self.counts["rows"]:
            parts.append(f"{self.counts['rows']:,} decoder rows")
        parts.extend(f"{count:,} {name} calls" for name, count in self.calls.items())
        print("; ".join(parts), file=sys.stderr)
