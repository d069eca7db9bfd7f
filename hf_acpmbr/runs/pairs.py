"""`--format preferences`: pairs of a better and a worse text, as rows for training with preferences."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ..cli.options import add_key_values
from ..generation.corpus import preference_rows
from ..generation.preferences import COLUMNS, Preferences
from .inputs import Record

if TYPE_CHECKING:
    from .formats import Result
    from .job import Job

Item = TypeVar("Item")
ROW = "row"  # the place of a pair's source in the input, from 0


class _Moved(argparse.Action):
    """Refuses `--preferences FILE`, which wrote a second file beside the output."""

    def __call__(self, *args: object, **options: object) -> NoReturn:
        raise argparse.ArgumentError(self, "pairs are an output format now: --format preferences --output FILE")


def add_preference_arguments(output: argparse._ArgumentGroup) -> None:
    add_key_values(
        output,
        "--preferences-option",
        "which pairs --format preferences writes: pairs=best-worst (default), best-median, best-beam (rerank: "
        "beam_column=FIELD), top-k (k=K); min_margin=, max_similarity=, conversational=true; repeatable",
    )
    moved = {"nargs": "?", "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    output.add_argument("--preferences", action=_Moved, **moved)  # type: ignore[arg-type]


def check_preferences(args: argparse.Namespace) -> Preferences | None:
    """Return which pairs the options ask for; None if --format is not preferences."""
    if args.format != "preferences":
        if args.preferences_option:
            raise ValueError(
                f"--preferences-option is for --format preferences, got --format {args.format}: leave it out"
            )
        return None
    try:
        settings = Preferences.from_dict(args.preferences_option)
    except ValueError as error:
        raise ValueError(f"--preferences-option: {error}") from error
    if settings.beam_column in (ROW, *COLUMNS):
        raise ValueError(
            f"--preferences-option beam_column={settings.beam_column}: the output has a field of that name, rename "
            "the input's"
        )
    return settings


def with_pairs(args: argparse.Namespace, job: Job[Item]) -> Job[Item]:
    """Return the job with the pairs of each result, if --format preferences asks for them."""
    settings = check_preferences(args)
    if settings is None:
        return job
    chat: bool = getattr(args, "chat", False)

    def pairs(position: int, result: Result) -> Iterator[dict[str, object]]:
        if result.decision is None:
            return
        if result.prompt is None:
            raise ValueError(
                '--format preferences needs the source of every list: give "source" fields or --sources FILE'
            )
        columns: dict[str, list[object]] = {ROW: [position]}
        if (beam := settings.beam_column) is not None:
            columns[beam] = [result.fields.get(beam)]
        source = str(result.fields.get("source", ""))
        made = preference_rows(job.mbr, settings, columns, [result.decision], [source], [result.prompt], chat)
        for values in zip(*made.values(), strict=True):
            yield dict(zip(made, values, strict=True))

    def decide(batch: Sequence[Record[Item]]) -> tuple[list[Result], int]:
        results, rows = job.decide(batch)
        found = [list(pairs(record.position, result)) for record, result in zip(batch, results, strict=True)]
        return [dataclasses.replace(r, pairs=p) for r, p in zip(results, found, strict=True)], rows

    return dataclasses.replace(job, decide=decide)
