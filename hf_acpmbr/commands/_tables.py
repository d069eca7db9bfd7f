"""Tables as inputs and outputs: a column of JSON lines or of a parquet file, read row by row, and parquet results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from ._input import Input, Lines, Parsed

_ROWS_AT_ONCE = 4096


class ParquetRows(Lines):
    """The rows of a parquet file, each as one line of JSON."""

    def __iter__(self) -> Iterator[tuple[int, str]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = hashlib.sha256()
        with self._opened() as file:
            while block := file.read(1 << 20):
                content.update(block)
            file.seek(0)
            try:
                batches = pq.ParquetFile(file).iter_batches(batch_size=_ROWS_AT_ONCE)
                rows = (row for batch in batches for row in batch.to_pylist())
                for number, row in enumerate(rows, 1):
                    yield number, json.dumps(row, ensure_ascii=False, default=str)
            except pa.ArrowInvalid as error:
                raise ValueError(f"{self.option} {self.path} is not a parquet file: {error}") from error
        self._digest = content.hexdigest()

    def where(self, number: int) -> str:
        return f"{self.name} row {number}"


def open_lines(path: str) -> Lines:
    """The lines of a file; of a parquet file its rows as JSON."""
    return ParquetRows(path) if path.endswith(".parquet") else Lines(path)


def source_input(path: str, column: str | None) -> Input[str]:
    """Source texts: the lines of a file, or one column of JSON lines or of a parquet file."""
    lines = open_lines(path)
    if column is None and path.endswith((".parquet", ".jsonl")):
        raise ValueError(f"--input {path} has columns: say which one holds the sources by --column NAME")
    return Input([lines], lambda: _sources(lines, column))


def _sources(lines: Lines, column: str | None) -> Parsed[str]:
    for number, text in lines:
        where = lines.where(number)
        yield where, partial(str, text) if column is None else partial(_field, text, column, where)


def _field(line: str, column: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}): leave out --column for plain lines") from None
    if not isinstance(row, dict) or column not in row:
        there = f": it has {', '.join(row)}" if isinstance(row, dict) else ""
        raise ValueError(f"{where} has no column {column!r}{there}")
    if not isinstance(row[column], str):
        raise ValueError(f"{where}: {column!r} must be text, got {json.dumps(row[column])[:40]}")
    return str(row[column])


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
        while rows := [json.loads(line) for line in islice(file, _ROWS_AT_ONCE)]:
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
                    f"the field {min(more)!r} is not in the first {_ROWS_AT_ONCE} rows, and a table has the same "
                    "columns in all: use --format jsonl"
                )
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        if schema is None:
            pq.write_table(pa.schema(own).empty_table(), target)
