"""Output files that survive being killed: a run that is taken up again writes the same bytes as one that was not.

Work goes in batches of lines at fixed positions. After each batch the file is flushed to disk. A resumed run keeps the
complete batches, cuts off what follows, and goes on, so every batch is computed with the same neighbours as ever.
Beside an unfinished file lies `<output>.unfinished.json`, which says what run it belongs to.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

Item = TypeVar("Item")


class ResumableOutput:
    """Lines written batch by batch to a file, or to standard output for "-".

    Args:
        path: file to write, or "-".
        run: what the lines depend on; a run is only taken up again with the same.
        resume: go on where an unfinished run stopped.
        batch_size: lines in a batch.
    """

    def __init__(self, path: str, run: Mapping[str, Any], *, resume: bool, batch_size: int) -> None:
        if resume and path == "-":
            raise ValueError("--resume needs --output FILE: standard output cannot be taken up again")
        self._path = None if path == "-" else Path(path)
        self._note = None if self._path is None else self._path.with_name(self._path.name + ".unfinished.json")
        self._run = json.loads(json.dumps(run, default=str))
        self._batch_size = batch_size
        self.done = self._prepare(resume)
        """Lines that are there already."""

    def _prepare(self, resume: bool) -> int:
        if self._path is None or self._note is None:
            return 0
        if self._note.exists():
            if not resume:
                raise ValueError(
                    f"{self._path} belongs to an unfinished run: add --resume to go on, "
                    f"or remove {self._note} to start anew"
                )
            self._check_same_run(self._note)
            return self._keep_whole_batches(self._path)
        if resume and self._path.exists() and (lines := self._count_lines(self._path)):
            return lines
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"")  # before the note: what an earlier run left must never count as done
        _write_durably(self._note, json.dumps(self._run, indent=1, ensure_ascii=False).encode())
        return 0

    def _check_same_run(self, note: Path) -> None:
        before = json.loads(note.read_text(encoding="utf-8"))
        changed = sorted(name for name in before.keys() | self._run.keys() if before.get(name) != self._run.get(name))
        if changed:
            details = ", ".join(f"{name}: {before.get(name)!r} → {self._run.get(name)!r}" for name in changed)
            raise ValueError(f"--resume with other settings than the unfinished run had ({details}): use the same")

    def _keep_whole_batches(self, path: Path) -> int:
        content = path.read_bytes() if path.exists() else b""
        lines = content.split(b"\n")[:-1]  # a line without its end was cut off by the kill
        kept = len(lines) - len(lines) % self._batch_size
        with path.open("ab") as file:
            file.truncate(sum(len(line) + 1 for line in lines[:kept]))
        return kept

    @staticmethod
    def _count_lines(path: Path) -> int:
        with path.open("rb") as file:
            return sum(1 for _ in file)

    def __enter__(self) -> ResumableOutput:
        if self._note is not None and not self._note.exists():
            raise ValueError(
                f"{self._path} has {self.done} lines of a finished run, but the input has more: "
                "give another --output, or leave out --resume to start anew"
            )
        self._file: BinaryIO = sys.stdout.buffer if self._path is None else self._path.open("ab")
        return self

    def write(self, lines: Iterable[str]) -> None:
        """One batch."""
        for line in lines:
            self._file.write(line.replace("\r", " ").replace("\n", " ").encode() + b"\n")
        self._file.flush()
        if self._path is not None:
            os.fsync(self._file.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is None:
            return
        self._file.close()
        if kind is None and self._note is not None:
            self._note.unlink(missing_ok=True)


def batches(items: Sequence[Item], size: int, start: int) -> Iterator[Sequence[Item]]:
    """Batches at fixed positions, from `start` (a multiple of `size`, or the end) on."""
    for position in range(start, len(items), size):
        yield items[position : position + size]


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 file, or of standard input for "-"; only \\n ends a line."""
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    lines = data.decode("utf-8").split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


@contextmanager
def progress(total: int, done: int, quiet: bool) -> Iterator[Any]:
    """A bar on standard error, if that is a terminal."""
    from tqdm import tqdm

    with tqdm(total=total, initial=done, unit="line", file=sys.stderr, disable=True if quiet else None) as bar:
        yield bar


def _write_durably(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
