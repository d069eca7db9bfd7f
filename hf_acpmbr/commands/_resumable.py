"""Output files that survive being killed: a resumed run writes the same bytes as one that was never interrupted.

Lines go to `<output>.unfinished`, which gets the output's name when all are there, so what an output file held before
stays until then. Work goes in batches at fixed positions; each is handed to the system at once, where the kill of a
process does not reach it, and flushed to disk where the last flush is a second ago. A resumed run keeps the complete
batches, cuts off what follows, and continues, so every batch is computed with the same neighbours as before. A note
says which run the lines belong to: `<output>.unfinished.json`, then `<output>.run.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias

from ..files import lock_file, write_atomically
from ..shards import sha256_of as _sha256
from ._pairs import pair_lines, write_pairs
from ._tables import write_parquet

if TYPE_CHECKING:
    from tqdm import tqdm
    from typing_extensions import Never

Convert: TypeAlias = Callable[[Path, Path], None]
_SHOWN = 60
_FLUSH_EVERY = 1.0  # seconds; short lists take less than a flush


class Output(Protocol):
    """Where lines go, batch by batch."""

    done: int
    """Lines that are there already."""

    def check(self, about: Mapping[str, object]) -> bool:
        """Refuse what cannot be continued; True where nothing is left to do. Nothing is written."""
        ...

    def start(self, about: Mapping[str, object]) -> None:
        """Be ready to write; `about` is what the lines depend on."""
        ...

    def write(self, lines: Iterable[str]) -> None:
        """A batch, or the beginning of the last one."""
        ...

    def finish(self, about: Mapping[str, object]) -> None:
        """Everything is there."""
        ...

    def stop(self) -> str:
        """End early, and say what is there."""
        ...


class Stream:
    """Standard output, or what is not a regular file (a pipe, /dev/null)."""

    done = 0

    def __init__(self, path: str, *, resume: bool, pairs: bool = False) -> None:
        if resume:
            raise ValueError("--resume needs --output FILE: what went to standard output or a pipe cannot be resumed")
        self._opened = None if path == "-" else open(path, "wb")  # noqa: SIM115  (`stop` closes it)
        self._file: BinaryIO = self._opened or sys.stdout.buffer
        self._pairs = pairs

    def check(self, about: Mapping[str, object]) -> bool:
        return False

    def start(self, about: Mapping[str, object]) -> None:
        pass

    def write(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._file.writelines(map(encoded_line, pair_lines(line) if self._pairs else [line]))
        self._file.flush()

    def finish(self, about: Mapping[str, object]) -> None:
        self.stop()

    def stop(self) -> str:
        if self._opened is not None:
            self._opened.close()
        return ""


class ResumableOutput:
    """A file that is there in full at the end, and can be continued before.

    Args:
        path: the file.
        resume: continue where an unfinished run stopped.
        batch_size: lines in a batch.
        convert: makes the output's file of the finished lines (from, to); default: it is the lines.
    """

    def __init__(self, path: str, *, resume: bool, batch_size: int, convert: Convert | None = None) -> None:
        self.path = Path(os.path.realpath(path))  # beside the file itself, not beside a link to it
        self._convert = convert
        name = self.path.name
        self.part = self.path.with_name(f"{name}.unfinished")
        self._part_note = self.path.with_name(f"{name}.unfinished.json")
        self._note = self.path.with_name(f"{name}.run.json")
        self._resume, self._batch_size = resume, batch_size
        self._file: BinaryIO | None = None
        self._content = hashlib.sha256()
        self._size = self._written = 0
        self._flushed = 0.0
        self.done = 0
        if self.part.exists():  # locked from here on, so that what is looked at stays as it is
            self._file = self._locked(self.part.open("r+b"))
            if not resume and (lines := _count(self._file)):
                self._file.close()
                raise ValueError(
                    f"{self.part} has {lines} lines of an unfinished run: add --resume to continue it, or remove it to "
                    "start anew"
                )

    def check(self, about: Mapping[str, object]) -> bool:
        if not self._resume:
            return False
        if self._file is not None and self._part_note.exists():
            self._check_same(self._part_note, about)
            self._keep_whole_batches(self._file)
            return False
        if self._file is not None and _count(self._file):
            raise ValueError(f"{self.part} has no {self._part_note.name} that says which run it is of: remove it")
        if not self.path.exists():
            return False
        if self._is_of(self._part_note):  # killed between the two renames of `finish`
            self._part_note.replace(self._note)
        if not self._note.exists():
            if self.path.stat().st_size == 0:
                return False
            raise ValueError(
                f"{self.path} has no {self._note.name}, so nobody knows which run it is of: leave out --resume to "
                "replace it"
            )
        self._check_same(self._note, about)
        if not self._is_of(self._note):
            raise ValueError(f"{self.path} was changed after its run: leave out --resume to replace it")
        self.done = int(str(_read(self._note)["lines"]))
        return True

    def start(self, about: Mapping[str, object]) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._locked(self.part.open("a+b"))
            if os.fstat(self._file.fileno()).st_size:
                raise ValueError(f"another run writes {self.path}: wait for it, or choose another --output")
        self._file.truncate(self._size)
        self._file.seek(self._size)
        write_atomically(self._part_note, _as_json({"about": about}))

    def write(self, lines: Iterable[str]) -> None:
        assert self._file is not None, "start comes first"
        for line in lines:
            data = encoded_line(line)
            self._file.write(data)
            self._content.update(data)
            self._written += 1
        self._file.flush()
        if time.monotonic() - self._flushed >= _FLUSH_EVERY:
            self.sync()

    def sync(self) -> None:
        """Have what was written on the disk."""
        assert self._file is not None, "start comes first"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._flushed = time.monotonic()

    def finish(self, about: Mapping[str, object]) -> None:
        self.sync()
        assert self._file is not None, "start comes first"
        ready, content = self.part, self._content.hexdigest()
        if self._convert is not None:
            ready = self.path.with_name(f"{self.path.name}.unfinished.tmp")
            self._convert(self.part, ready)
            content = _sha256(ready)
        finished = {"lines": self.done + self._written, "sha256": content, "about": about}
        write_atomically(self._part_note, _as_json(finished))
        ready.replace(self.path)
        self.part.unlink(missing_ok=True)
        self._part_note.replace(self._note)
        self._file.close()

    def stop(self) -> str:
        lines = self.done + self._written
        if self._file is not None:
            if not lines and not os.fstat(self._file.fileno()).st_size:  # a failed start leaves nothing behind
                self.part.unlink(missing_ok=True)
                self._part_note.unlink(missing_ok=True)
            self._file.close()
        return f"{lines} line{' is' if lines == 1 else 's are'} in {self.part}" if self._written else ""

    def _locked(self, file: BinaryIO) -> BinaryIO:
        same = lock_file(file) and self.part.exists() and os.path.samestat(os.fstat(file.fileno()), self.part.stat())
        if not same:  # held by another process, or finished by it since the file was opened
            file.close()
            raise ValueError(f"another run writes {self.path}: wait for it, or choose another --output")
        return file

    def _check_same(self, note: Path, about: Mapping[str, object]) -> None:
        """`about` may be a part of what the note has: what is known so far."""
        before, now = _flat(_read(note)["about"]), _flat(json.loads(_as_json(about)))
        kinds = {name.split(".")[0] for name in now}
        names = {name for name in before if name.split(".")[0] in kinds} | now.keys()
        changed = [name for name in sorted(names) if before.get(name) != now.get(name)]
        if changed:
            details = "; ".join(f"{name}: {_short(before.get(name))} → {_short(now.get(name))}" for name in changed)
            raise ValueError(
                f"--resume into {self.path}, which another run wrote ({details}): use the same, or leave out --resume "
                "and remove what it wrote"
            )

    def _is_of(self, note: Path) -> bool:
        """Whether the output is what a finished run wrote by its note."""
        if not note.exists() or (expected := _read(note).get("sha256")) is None:
            return False
        return bool(_sha256(self.path) == expected)

    def _keep_whole_batches(self, file: BinaryIO) -> None:
        lines = _count(file)
        self.done = lines - lines % self._batch_size
        self._size, self._content = 0, hashlib.sha256()
        file.seek(0)
        for line in islice(file, self.done):
            self._size += len(line)
            self._content.update(line)


def parts_of(output: str) -> Path:
    """The folder of an output's shards that several processes have finished."""
    path = Path(os.path.realpath(output))
    return path.with_name(f"{path.name}.parts")


def open_output(path: str, *, resume: bool, batch_size: int, format: str) -> Output:
    """Where `--output` says: "-" is standard output."""
    if Path(path).is_dir():
        raise ValueError(f"--output {path} is a folder: give a file in it")
    if path == "-" or (Path(path).exists() and not Path(path).is_file()):
        if format == "parquet":
            raise ValueError("--format parquet needs --output FILE: a table is written when all rows are known")
        return Stream(path, resume=resume, pairs=format == "preferences")
    convert = {"parquet": write_parquet, "preferences": write_pairs}.get(format)
    return ResumableOutput(path, resume=resume, batch_size=batch_size, convert=convert)


@contextmanager
def kept(output: Output, repeatable: bool) -> Iterator[None]:
    """Errors and interruptions say what is there and, where the input can be read again, how to go on."""
    try:
        yield
    except (ValueError, OSError, KeyboardInterrupt) as error:
        there = output.stop()
        if not there:
            raise
        hint = f"{there}, and --resume continues after them" if repeatable else there
        if isinstance(error, KeyboardInterrupt):
            error.args = (hint,)
            raise
        raise ValueError(f"{error}; {hint}") from error
    except BaseException:
        output.stop()
        raise


def hide_loading_bars(quiet: bool) -> None:
    """No bars of transformers for loading weights where nobody would see them."""
    if quiet or not sys.stderr.isatty():
        from transformers.utils import logging

        logging.disable_progress_bar()


@contextmanager
def progress(total: int | None, done: int, quiet: bool, *, in_logs: bool = False) -> Iterator[tqdm[Never]]:
    """A bar with the time that is left, on standard error if that is a terminal; `in_logs` also elsewhere, rarely."""
    from tqdm import tqdm

    off = True if quiet else False if in_logs else None
    rarely = 0.1 if sys.stderr.isatty() else 15.0
    with tqdm(total=total, initial=done, unit="line", file=sys.stderr, disable=off, mininterval=rarely) as bar:
        yield bar


def encoded_line(text: str) -> bytes:
    """A text as one line of a file."""
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n"


def _count(file: BinaryIO) -> int:
    """Lines that end; what a kill cut off is none."""
    file.seek(0)
    return sum(line.endswith(b"\n") for line in file)


def _as_json(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n"


def _read(note: Path) -> dict[str, object]:
    try:
        values = json.loads(note.read_text(encoding="utf-8"))
    except ValueError:
        values = None
    if not isinstance(values, dict) or not isinstance(values.get("about"), dict):
        raise ValueError(f"{note} is not the note of a run: remove it and what it stands beside, and start anew")
    return values


def _flat(values: object, name: str = "") -> dict[str, object]:
    """Nested objects and lists as one level, with dotted names."""
    if isinstance(values, dict) and values:
        inside = [(f"{name}.{key}" if name else key, value) for key, value in values.items()]
    elif isinstance(values, list) and values:
        inside = [(f"{name}.{position}", value) for position, value in enumerate(values)]
    else:
        return {name: values}
    return {key: item for inner, value in inside for key, item in _flat(value, inner).items()}


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
