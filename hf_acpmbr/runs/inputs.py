"""Input files as records with line numbers, read line by line; mistakes name the file and the line.

A table (JSON lines or parquet) is read row by row, each row as one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

Item = TypeVar("Item")
Parsed = Iterator[tuple[str, Callable[[], Item]]]  # where a record stands, and what makes its item or names a mistake
_BOM = b"\xef\xbb\xbf"
ROWS_AT_ONCE = 4096  # of a parquet file: some megabytes of candidates


class Lines:
    """The lines of a UTF-8 file, or of standard input for "-", with their numbers from 1; only \\n ends a line.

    Args:
        path: file, or "-".
        option: the option that named it, for messages.
    """

    def __init__(self, path: str, option: str = "--input") -> None:
        self.path, self.option = path, option
        self.name = "standard input" if path == "-" else path
        self._digest = ""

    @property
    def repeatable(self) -> bool:
        """Whether it can be read again: a file, but not standard input or a named pipe."""
        return self.path != "-" and Path(self.path).is_file()

    @property
    def digest(self) -> str:
        """SHA-256 of the content; known after it was read to the end."""
        return self._digest

    def __iter__(self) -> Iterator[tuple[int, str]]:
        content = hashlib.sha256()
        with self._opened() as file:
            for number, line in enumerate(file, 1):
                content.update(line)
                yield number, self._text(number, line.removeprefix(_BOM) if number == 1 else line)
        self._digest = content.hexdigest()

    def where(self, number: int) -> str:
        """A line as messages name it."""
        return f"{self.name} line {number}"

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.path == "-":
            yield sys.stdin.buffer
            return
        try:
            file = open(self.path, "rb")  # noqa: SIM115  (closed below; only opening it is in the try)
        except OSError as error:
            raise ValueError(f"{self.option} {self.path} cannot be read: {error.strerror}") from error
        with file:
            yield file

    def _text(self, number: int, line: bytes) -> str:
        try:
            return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.where(number)} is not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1}): "
                "convert the file, for example with iconv -t UTF-8"
            ) from None


def read_lines(path: str, option: str = "--input") -> list[str]:
    """All lines of a file, or of standard input for "-"."""
    return [text for _, text in Lines(path, option)]


@dataclass(frozen=True)
class Record(Generic[Item]):
    """What one output line is made from, its position from 0, and where it stands in the input, for messages."""

    position: int
    where: str
    item: Item


@dataclass(frozen=True)
class Checked:
    """An input that was read to the end without a mistake."""

    records: int
    digests: dict[str, str]


class Input(Generic[Item]):
    """The records of an input, in passes over its files.

    Args:
        files: what it is read from.
        items: starts a new pass over the records; raises ValueError at the first mistake.
    """

    def __init__(self, files: list[Lines], items: Callable[[], Parsed[Item]]) -> None:
        self.files = files
        self._items = items

    def __iter__(self) -> Iterator[Record[Item]]:
        return self.where(lambda position: True)

    def where(self, wanted: Callable[[int], bool]) -> Iterator[Record[Item]]:
        """The records at wanted positions; the others are read and not looked into, which is many times faster."""
        parsed = enumerate(self._items())
        return (Record(position, where, make()) for position, (where, make) in parsed if wanted(position))

    @property
    def repeatable(self) -> bool:
        return all(file.repeatable for file in self.files)

    @property
    def digests(self) -> dict[str, str]:
        """The content of each file, after a whole pass."""
        return {file.option.removeprefix("--"): file.digest for file in self.files}

    def check(self) -> Checked | None:
        """Read everything once, before any work; None for what cannot be read twice."""
        if not self.repeatable:
            for file in self.files:
                if file.path != "-" and not os.path.exists(file.path):
                    raise ValueError(f"{file.option} {file.path} cannot be read: there is no such file")
            return None
        number = sum(1 for _ in self)
        return Checked(number, self.digests)

    def batches(self, size: int, wanted: Callable[[int], bool]) -> Iterator[list[Record[Item]]]:
        """Batches at fixed positions, of the records at wanted positions: all or none of a batch."""
        batch: list[Record[Item]] = []
        try:
            for record in self.where(wanted):
                batch.append(record)
                if len(batch) == size:
                    yield batch
                    batch = []
        except ValueError:  # a bad line: those before it count
            if batch:
                yield batch
            raise
        if batch:
            yield batch


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
                batches = pq.ParquetFile(file).iter_batches(batch_size=ROWS_AT_ONCE)
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
