"""The formats of an output: text, JSON lines, parquet, and pairs for training with preferences."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..decoding import Decision
from ..generation.preferences import COLUMNS, Preferences, preference_rows
from ..mbr import ACPMBR
from .inputs import ROWS_AT_ONCE, Item, Record

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("text", "jsonl", "parquet", "preferences")
OUTPUT_FIELDS = ("text", "expected", "nbest", "unique", "drawn", "calls", "status", "signature")
ROW = "row"  # of a pair: the position of its source in the input, from 0


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of one record."""

    decision: Decision | None  # None for a blank source
    fields: Mapping[str, object]  # that its JSON has beside those of the decision
    prompt: str | None = None  # of the model; None if unknown


@dataclass(frozen=True)
class Format:
    """How results become lines."""

    name: str = "text"  # one of FORMATS
    nbest: int = 1  # how many texts `nbest` lists
    preferences: Preferences | None = None  # which pairs "preferences" takes
    chat: bool = False  # whether prompts and texts of pairs are messages

    @classmethod
    def of(cls, args: argparse.Namespace) -> Format:
        """Return the format that the options describe, checked."""
        name, nbest = args.format, args.nbest
        if nbest < 1:
            raise ValueError(f"--nbest must be at least 1, got {nbest}")
        if nbest > 1 and name in ("text", "preferences"):
            lines = "one line per source" if name == "text" else "one line per pair"
            raise ValueError(f"--nbest {nbest} needs --format jsonl: {name} has {lines}")
        if name != "preferences":
            if args.preferences_option:
                raise ValueError(f"--preferences-option is for --format preferences, got --format {name}: leave it out")
            return cls(name, nbest)
        try:
            settings = Preferences.from_dict(args.preferences_option)
        except ValueError as error:
            raise ValueError(f"--preferences-option: {error}") from error
        if settings.beam_column in (ROW, *COLUMNS):
            raise ValueError(
                f"--preferences-option beam_column={settings.beam_column}: the output has a field of that name, "
                "rename the input's"
            )
        return cls(name, nbest, settings, getattr(args, "chat", False))

    def checked(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield the items; refuse fields that do not fit into one table before any work."""
        table = _Table() if self.name == "parquet" else None
        while chunk := list(islice(items, ROWS_AT_ONCE if table else 1)):
            if table:
                table.of([getattr(item, "fields", {}) for item in chunk])
            yield from chunk

    def lines(self, mbr: ACPMBR, records: Sequence[Record[Any]], results: Sequence[Result]) -> list[str]:
        """Return the lines of results: one per result, or one per pair of texts."""
        if self.preferences is None:
            return [self._line(result) for result in results]
        pairs = (self._pairs(mbr, record.position, result) for record, result in zip(records, results, strict=True))
        return [json.dumps(pair) for found in pairs for pair in found]

    def _line(self, result: Result) -> str:
        """Return the chosen text, or all as JSON except what differs from run to run, such as seconds."""
        decision = result.decision
        if self.name == "text":
            return "" if decision is None else decision.text
        own: Sequence[object] = ("", None, [], 0, 0, {}, "blank", None)
        if decision is not None:
            ranked = decision.nbest(self.nbest)
            own = (
                decision.text,
                float(decision.expected[decision.index]),
                [{"text": entry.text, "expected": entry.expected, "count": entry.count} for entry in ranked],
                len(decision.candidates),
                decision.candidates.total,
                # Pairs from a cache count, so that the bytes do not depend on what a killed run left in it.
                {name: count + decision.cached.get(name, 0) for name, count in decision.calls.items()},
                decision.status,
                decision.signature,
            )
        record = {**result.fields, **dict(zip(OUTPUT_FIELDS, own, strict=True))}
        line = json.dumps(record, ensure_ascii=False)
        try:
            line.encode()
        except UnicodeEncodeError:  # half of a surrogate pair stays an escape
            return json.dumps(record)
        return line

    def _pairs(self, mbr: ACPMBR, position: int, result: Result) -> list[dict[str, object]]:
        """Return the pairs of one result as rows."""
        if result.decision is None or self.preferences is None:
            return []
        if result.prompt is None:
            raise ValueError(
                '--format preferences needs the source of every list: give "source" fields or --sources FILE'
            )
        columns: dict[str, list[object]] = {ROW: [position]}
        if (beam := self.preferences.beam_column) is not None:
            columns[beam] = [result.fields.get(beam)]
        source = str(result.fields.get("source", ""))
        made = preference_rows(
            self.preferences, columns, [result.decision], [source], [result.prompt], mbr.target, self.chat
        )
        return [dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True)]


def encoded_line(text: str) -> bytes:
    """Encode a text as one line of a file."""
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n"


def write_parquet(lines: Path, target: Path) -> None:
    """Write JSON lines of results as a parquet file, ROWS_AT_ONCE at a time; `calls` becomes a map."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, writer = _Table(), None
    with lines.open(encoding="utf-8") as file, ExitStack() as opened:
        while rows := [json.loads(line) for line in islice(file, ROWS_AT_ONCE)]:
            for row in rows:
                row["calls"] = list(row["calls"].items())
            made = table.of(rows)
            if writer is None:
                writer = opened.enter_context(pq.ParquetWriter(target, made.schema, compression="zstd"))
            writer.write_table(made)
        if writer is None:
            pq.write_table(pa.schema(table.own).empty_table(), target)


class _Table:
    """Rows as tables of one schema, that of the first rows."""

    def __init__(self) -> None:
        import pyarrow as pa

        text, number, count = pa.string(), pa.float64(), pa.int64()
        ranked = pa.list_(pa.struct({"text": text, "expected": number, "count": count}))
        types = (text, number, ranked, count, count, pa.map_(text, count), text, text)
        self.own = dict(zip(OUTPUT_FIELDS, types, strict=True))
        self.types: dict[str, pa.DataType] = {}

    def of(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return more rows as a table."""
        import pyarrow as pa

        first = not self.types
        columns = {}
        for name in dict.fromkeys(name for row in rows for name in row) if first else self.types:
            try:
                columns[name] = pa.array([row.get(name) for row in rows], self.types.get(name, self.own.get(name)))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise ValueError(
                    f"the field {name!r} is not of one type in all rows, which a table needs ({error}): use "
                    "--format jsonl"
                ) from None
            self.types[name] = columns[name].type
        if more := {name for row in rows for name in row} - self.types.keys():
            raise ValueError(
                f"the field {min(more)!r} is not in the first {ROWS_AT_ONCE} rows, and a table has the same columns in "
                "all: use --format jsonl"
            )
        return pa.table(columns)
