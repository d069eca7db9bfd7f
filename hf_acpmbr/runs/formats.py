"""What is written of a decision: text, JSON lines, parquet."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..decoding import Decision
from .inputs import ROWS_AT_ONCE

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


def output_lines(args: argparse.Namespace, results: Sequence[Result]) -> list[str]:
    """Return the lines of a batch: one per result, or one per pair of a preferred and a rejected text."""
    if args.format == "preferences":
        return [json.dumps(pair) for result in results for pair in result.pairs]
    return [output_line(args, result) for result in results]


def output_line(args: argparse.Namespace, result: Result) -> str:
    """The chosen text, or everything as JSON; nothing that differs from run to run, such as seconds."""
    decision = result.decision
    if args.format == "text":
        return "" if decision is None else decision.text
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


def encoded_line(text: str) -> bytes:
    """A text as one line of a file."""
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n"


def write_parquet(lines: Path, target: Path) -> None:
    """JSON lines of results as a parquet file, some thousand rows at a time; `calls` is a map from utility to count."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, number, count = pa.string(), pa.float64(), pa.int64()
    ranked = pa.list_(pa.struct({"text": text, "expected": number, "count": count}))
    own = {"text": text, "expected": number, "nbest": ranked, "unique": count, "drawn": count}
    own |= {"calls": pa.map_(text, count), "status": text, "signature": text}
    schema: pa.Schema | None = None
    with lines.open(encoding="utf-8") as file, ExitStack() as opened:
        while rows := [json.loads(line) for line in islice(file, ROWS_AT_ONCE)]:
            for row in rows:
                row["calls"] = list(row["calls"].items())
            names = dict.fromkeys(name for row in rows for name in row)
            if schema is None:
                others = [{name: row.get(name) for name in names if name not in own} for row in rows]
                found = pa.Table.from_pylist(others).schema
                schema = pa.schema({name: own[name] if name in own else found.field(name).type for name in names})
                writer = opened.enter_context(pq.ParquetWriter(target, schema, compression="zstd"))
            if more := names.keys() - set(schema.names):
                raise ValueError(
                    f"the field {min(more)!r} is not in the first {ROWS_AT_ONCE} rows, and a table has the same "
                    "columns in all: use --format jsonl"
                )
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        if schema is None:
            pq.write_table(pa.schema(own).empty_table(), target)
