"""`--preferences FILE`: beside the output, rows for training with preferences, which a resumed run continues."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from ..mapping import preference_rows
from ..mbr import ACPMBR
from ..preferences import COLUMNS, Preferences
from ._options import add_key_values

if TYPE_CHECKING:
    from ..runs.formats import Result


def add_preference_arguments(output: argparse._ArgumentGroup) -> None:
    output.add_argument(
        "--preferences",
        metavar="FILE",
        help="also write pairs of a better and a worse text, as DPO of TRL reads them: JSON lines with "
        f"{', '.join(COLUMNS)} and row, the place of the source in the input, from 0",
    )
    add_key_values(
        output,
        "--preferences-option",
        "which pairs: pairs=best-worst (default), best-median, best-beam (rerank: beam_column=FIELD), top-k (k=K); "
        "min_margin=, max_similarity=, conversational=true; repeatable",
    )


def check_preferences(args: argparse.Namespace) -> Preferences | None:
    """Which pairs the options ask for; None where they ask for none."""
    if args.preferences is None:
        if args.preferences_option:
            raise ValueError("--preferences-option without --preferences FILE: name the file, or leave it out")
        return None
    if args.preferences == "-" or (os.path.exists(args.preferences) and not os.path.isfile(args.preferences)):
        raise ValueError(f"--preferences {args.preferences}: give a regular file, which a resumed run can continue")
    for option in ("input", "sources", "output"):
        if os.path.realpath(getattr(args, option, None) or "-") == os.path.realpath(args.preferences):
            raise ValueError(f"--preferences {args.preferences} is the --{option} file: choose another one")
    try:
        return Preferences.from_dict(args.preferences_option)
    except ValueError as error:
        raise ValueError(f"--preferences-option: {error}") from error


def open_pairs(args: argparse.Namespace, mbr: ACPMBR) -> PairsFile | None:
    """Where `--preferences` says; None where no pairs are asked for."""
    settings = check_preferences(args)
    return None if settings is None else PairsFile(args.preferences, settings, mbr, getattr(args, "chat", False))


class PairsFile:
    """Rows of pairs in `<file>.unfinished` until all are there; each has the place of its source.

    Args:
        path: the file.
        settings: which pairs.
        mbr: whose decisions they are of.
        chat: whether the model is asked by messages, which is then the format of the pairs too.
    """

    def __init__(self, path: str, settings: Preferences, mbr: ACPMBR, chat: bool) -> None:
        self.path, self.settings, self.mbr, self.chat = Path(os.path.realpath(path)), settings, mbr, chat
        self.part = self.path.with_name(f"{self.path.name}.unfinished")

    def start(self, done: int) -> None:
        """Keep what belongs to the first `done` sources, drop the rest."""
        if not done:
            self.part.unlink(missing_ok=True)
            return
        if not self.part.exists():  # a kill between the renames at the end
            self.check_there()
            self.path.replace(self.part)
        with self.part.open("r+b") as file:
            size = sum(len(line) for line in takewhile(lambda line: _row(line) < done, file))
            file.truncate(size)

    def check_there(self) -> None:
        """The pairs of a run that was finished, or nearly."""
        if not self.path.is_file():
            raise ValueError(f"{self.path} is gone, with the pairs of earlier lines: leave out --resume and start anew")

    def write(self, results: Sequence[Result], first: int) -> None:
        """The pairs of a batch that begins with source `first`; on the disk before the batch counts as done."""
        lines = [json.dumps(row).encode() + b"\n" for row in self._rows(results, first)]
        self.part.parent.mkdir(parents=True, exist_ok=True)
        with self.part.open("ab") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        self.part.touch()  # of an input without lines
        self.part.replace(self.path)

    def _rows(self, results: Sequence[Result], first: int) -> Iterator[dict[str, object]]:
        columns: dict[str, list[object]] = {"row": list(range(first, first + len(results)))}
        if (beam := self.settings.beam_column) is not None:
            columns[beam] = [result.fields.get(beam) for result in results]
        for result in results:
            if result.prompt is None and result.decision is not None:
                raise ValueError('--preferences needs the source of every list: give "source" fields or --sources FILE')
        decisions, prompts = [result.decision for result in results], [result.prompt or "" for result in results]
        sources = [str(result.fields.get("source", "")) for result in results]
        made = preference_rows(self.mbr, self.settings, columns, decisions, sources, prompts, self.chat)
        return (dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True))


def _row(line: bytes) -> float:
    """The place of a line's source; beyond all for what a kill cut off."""
    return int(json.loads(line)["row"]) if line.endswith(b"\n") else float("inf")
