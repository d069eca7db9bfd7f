"""Input files as numbered records, read line by line; mistakes name the file and the line.

A parquet file is read row by row, each row as one line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Generic, TypeAlias, TypeVar

from ..files import parse_json

Item = TypeVar("Item")
Entries: TypeAlias = Iterator[tuple[str, Any]]  # the place of each record in its file, and what it is made of
_BOM = b"\xef\xbb\xbf"
ROWS_AT_ONCE = 4096  # of a parquet file: some megabytes of candidates


class Lines:
    r"""The lines of a UTF-8 file, or of standard input for "-", each with its place; only \n ends a line.

    Args:
        path: file, or "-".
        option: the option that named it, for messages.
    """

    unit: ClassVar[str] = "line"

    def __init__(self, path: str, option: str = "--input") -> None:
        self.path, self.option = path, option
        self.name = "standard input" if path == "-" else path
        self.digest = ""  # SHA-256 of the content, after a pass to the end

    @property
    def repeatable(self) -> bool:
        """Return whether it can be read again: a file, but not standard input or a named pipe."""
        return self.path != "-" and Path(self.path).is_file()

    @contextmanager
    def repeatedly(self) -> Iterator[None]:
        """Copy an input that cannot be read again to a temporary file, and read that instead."""
        if self.repeatable:
            yield
            return
        with tempfile.NamedTemporaryFile() as copy, self._opened() as file:
            shutil.copyfileobj(file, copy)
            copy.flush()
            self.path = copy.name
            yield

    def __iter__(self) -> Iterator[tuple[str, str]]:
        content = hashlib.sha256()
        with self._opened() as file:
            for number, text in enumerate(self._texts(file, content.update), 1):
                yield f"{self.name} {self.unit} {number}", text
        self.digest = content.hexdigest()

    def _texts(self, file: BinaryIO, hashed: Callable[[bytes], None]) -> Iterator[str]:
        """Yield the text of each line, and hand all bytes of the file to `hashed`."""
        for number, line in enumerate(file, 1):
            hashed(line)
            text = line.removeprefix(_BOM) if number == 1 else line
            try:
                yield text.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{self.name} line {number} is not UTF-8 (byte 0x{text[error.start]:02x} at position "
                    f"{error.start + 1}): convert the file, for example with iconv -t UTF-8"
                ) from None

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.path == "-":
            yield sys.stdin.buffer
            return
        try:
            file = open(self.path, "rb")  # noqa: SIM115  (closed below; only opening it is in the try)
        except OSError as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise ValueError(f"{self.option} {self.path} cannot be read: {reason}") from error
        with file:
            yield file


class ParquetRows(Lines):
    """The rows of a parquet file, each as one line of JSON."""

    unit: ClassVar[str] = "row"

    def _texts(self, file: BinaryIO, hashed: Callable[[bytes], None]) -> Iterator[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        while block := file.read(1 << 20):
            hashed(block)
        file.seek(0)
        try:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=ROWS_AT_ONCE):
                yield from (json.dumps(row, ensure_ascii=False, default=str) for row in batch.to_pylist())
        except pa.ArrowInvalid as error:
            raise ValueError(f"{self.option} {self.path} is not a parquet file: {error}") from error


def open_lines(path: str) -> Lines:
    """Return the lines of a file, or the rows of a parquet file as JSON."""
    return ParquetRows(path) if path.endswith(".parquet") else Lines(path)


@dataclass(frozen=True)
class Record(Generic[Item]):
    """The item of one output line, its position from 0, and its place in the input, for messages."""

    position: int
    where: str
    item: Item


@dataclass(frozen=True)
class Input(Generic[Item]):
    """The records of an input, in passes over its files; ValueError at the first mistake."""

    files: list[Lines]
    entries: Callable[[], Entries]  # starts a new pass
    make: Callable[[str, Any], Item]  # makes an item of its place and entry

    @property
    def repeatable(self) -> bool:
        return all(file.repeatable for file in self.files)

    @property
    def digests(self) -> dict[str, str]:
        """Return the digest of each file's content, after a whole pass."""
        return {file.option.removeprefix("--"): file.digest for file in self.files}

    def check(self, checked: Callable[[Iterator[Item]], Iterator[Item]] = iter) -> int | None:
        """Count the records in a pass before any work, through another check; None if it cannot be read twice."""
        if self.repeatable:
            return sum(1 for _ in checked(record.item for record in self.records()))
        for file in self.files:
            if file.path != "-" and not os.path.exists(file.path):
                next(iter(file))
        return None

    def records(self, wanted: Callable[[int], bool] = lambda position: True) -> Iterator[Record[Item]]:
        """Yield the records at wanted positions; skipping the others is many times faster."""
        numbered = enumerate(self.entries())
        return (Record(k, where, self.make(where, entry)) for k, (where, entry) in numbered if wanted(k))

    def batches(self, size: int, wanted: Callable[[int], bool] = lambda position: True) -> Iterator[list[Record[Item]]]:
        """Yield batches at fixed positions, all or none of whose records are wanted.

        If there is a mistake, the records before it are yielded before it is raised.
        """
        batch: list[Record[Item]] = []
        try:
            for record in self.records(wanted):
                batch.append(record)
                if len(batch) == size:
                    yield batch
                    batch = []
        except ValueError:
            if batch:
                yield batch
            raise
        if batch:
            yield batch


def source_input(args: argparse.Namespace) -> Input[str]:
    """Open the source texts that the options of `translate` name: lines, or a column of JSON lines or parquet."""
    lines, column = open_lines(args.input), args.column
    if column is None and args.input.endswith((".parquet", ".jsonl")):
        raise ValueError(f"--input {args.input} has columns: say which one holds the sources by --column NAME")

    return Input([lines], lines.__iter__, _text if column is None else partial(_field, column))


def json_of(where: str, line: str, otherwise: str) -> object:
    """Parse a line of JSON; a mistake names its place and what to do otherwise."""
    try:
        return parse_json(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON that can be used ({error}): {otherwise}") from None


def text_of(value: object, field: str, where: str) -> str:
    """Return a value of JSON that must be text, without halves of surrogate pairs."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: {field} must be text, got {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {field} has half of a surrogate pair ({value[error.start]!r}), which is not text: remove it"
        ) from None
    return value


def shown(value: object) -> str:
    """Show the start of a value of JSON in a message."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _text(where: str, line: str) -> str:
    return line


def _field(column: str, where: str, line: str) -> str:
    row = json_of(where, line, "leave out --column for plain lines")
    if not isinstance(row, dict) or column not in row:
        known = f": it has {', '.join(row)}" if isinstance(row, dict) else ""
        raise ValueError(f"{where} has no column {column!r}{known}")
    return text_of(row[column], repr(column), where)
