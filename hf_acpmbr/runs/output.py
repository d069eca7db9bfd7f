"""Where lines go: a stream, or a file that any number of processes make of shards.

The shards of FILE wait in `FILE.parts`, with a note of which run they are of. When all are there, they become FILE and
`FILE.run.json`, which says what FILE was made from, and the folder goes. What FILE held before stays until then.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from ..files import lock_file, write_atomically
from .formats import encoded_line
from .shards import Note, Shards, Share, differing, digest, sha256_of

if TYPE_CHECKING:
    from tqdm import tqdm
    from typing_extensions import Never

Convert: TypeAlias = Callable[[Path, Path], None]
_SHOWN = 60  # characters of a setting in a message
_NAMED = 10  # shards in a message
_FLUSH_EVERY = 1.0  # seconds; writing a shard of short lists takes less than flushing it to disk


class Stream:
    """Standard output, a pipe or device, or a file whose input cannot be read again and so cannot be resumed.

    Args:
        path: "-" is standard output.
        convert: makes the file of the finished lines (from, to); default: it is the lines.
    """

    def __init__(self, path: str, convert: Convert | None = None) -> None:
        self.path, self._convert, self._count = Path(os.path.realpath(path)), convert, 0
        self._part: Path | None = None
        if path == "-":
            self._file: BinaryIO = sys.stdout.buffer
        elif is_stream(path):
            self._file = open(path, "wb")  # noqa: SIM115  (`stop` closes it)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._part = self.path.with_name(f"{self.path.name}.unfinished")
            self._file = self._part.open("ab")
            if not lock_file(self._file) or os.fstat(self._file.fileno()).st_size:
                self._file.close()
                raise ValueError(
                    f"{self._part} has lines of another run, perhaps one that still writes: remove it, or choose "
                    "another --output"
                )

    def write(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._file.write(encoded_line(line))
            self._count += 1
        self._file.flush()

    def finish(self) -> None:
        """Give a file its name."""
        if self._part is not None:
            ready = self._part
            if self._convert is not None:
                ready = self._part.with_name(f"{self._part.name}.tmp")
                self._convert(self._part, ready)
            ready.replace(self.path)
            self._part.unlink(missing_ok=True)
        self._part = None
        self.stop()

    def stop(self) -> str:
        """End early, and say what is there."""
        if self._file is not sys.stdout.buffer:
            self._file.close()
        if self._part is not None and not self._count:
            self._part.unlink(missing_ok=True)
        return "" if self._part is None or not self._count else f"{_lines_are(self._count)} in {self._part}"


class OutputFile:
    """A file made of shards by any number of processes, which is there in full at the end.

    Args:
        path: the file.
        share: this process's part of the shards.
        resume: continue what an unfinished run has made.
        convert: makes the file of the lines (from, to); default: it is the lines.
    """

    def __init__(self, path: str, share: Share, *, resume: bool, convert: Convert | None = None) -> None:
        self.path = Path(os.path.realpath(path))  # beside the file itself, not beside a link to it
        self.shards = Shards(parts_of(path), ".txt")
        self.share, self._resume, self._convert = share, resume, convert
        self._note = self.path.with_name(f"{self.path.name}.run.json")
        self._run = self.shards.folder / "run.json"
        self._own_lock = self.shards.folder / f"{share.index}-of-{share.count}.lock"
        self._lock: BinaryIO | None = None
        self._flushed, self._made = 0.0, False

    def finished(self, about: Mapping[str, object]) -> bool:
        """Whether nothing is left to do. Refuses what cannot be continued; nothing is written.

        Args:
            about: what the lines depend on, or the part of it that is known so far.
        """
        if self.shards.folder.is_dir():
            self._hold()  # so that what is looked at stays as it is
        self._refuse_unfinished()
        if self._resume and self._is_of(about):
            return True
        numbers = self.shards.numbers()
        if self._run.exists():
            if numbers or self._others():
                self._refuse_changes(self._run, about)
            return False
        if numbers:
            raise ValueError(f"{self.shards.folder} has no run.json that says which run it is of: remove it")
        if self._resume and self.path.exists() and (self._note.exists() or self.path.stat().st_size):
            if not self._note.exists():
                raise ValueError(
                    f"{self.path} has no {self._note.name}, so nobody knows which run it is of: leave out --resume to "
                    "replace it"
                )
            self._refuse_changes(self._note, about)
            raise ValueError(f"{self.path} was changed after its run: leave out --resume to replace it")
        return False

    def start(self, about: Mapping[str, object], shards: int) -> list[int]:
        """Be ready to write, and find this process's shards that are missing."""
        self._hold()
        self._refuse_unfinished()
        if self._run.exists() and (self.shards.numbers() or self._others()):
            self._refuse_changes(self._run, about)
        else:
            write_atomically(self._run, _as_json({"shards": shards, "about": about}))
        missing = []
        for shard in self.share.of_all(shards):
            if (note := self.shards.sound(shard)) is not None:
                self._refuse_mixture(shard, note, about)
            else:
                self.shards.discard(shard)
                missing.append(shard)
        return missing

    def put(self, shard: int, lines: Iterable[str], records: int, about: Mapping[str, object]) -> None:
        """Keep a shard, made of so many records."""
        durable = time.monotonic() - self._flushed >= _FLUSH_EVERY
        data, meta = b"".join(map(encoded_line, lines)), {"records": records}
        self.shards.put(shard, data, settings=_digests(about), inputs="", failed={}, meta=meta, durable=durable)
        self._flushed, self._made = time.monotonic() if durable else self._flushed, True

    def merge(self, about: Mapping[str, object], shards: int) -> bool:
        """Make the file if all shards are there; whether it is made, perhaps by another process at this moment."""
        try:
            if self.shards.folder.is_dir() and len(self.shards.numbers()) < shards:
                return False
            with (self.shards.folder / "merge.lock").open("ab") as lock:
                if not lock_file(lock):
                    return True  # another process is at it
                self._merge(about, shards)
            self.shards.remove()
        except FileNotFoundError:  # another process was quicker
            if not self._is_of(about):
                raise
        return True

    def merge_by_hand(self, known: Mapping[str, object]) -> None:
        """Make the file without loading what the lines depend on: the note beside the shards says it."""
        if not self._run.exists():
            raise ValueError(f"--merge: there is no {self._run}, so nothing to merge")
        self._refuse_changes(self._run, known)
        found = _read(self._run)
        if not self.merge(found["about"], found["shards"]):
            raise ValueError(f"--merge: {self.missing(found['shards'])}")

    def missing(self, shards: int) -> str:
        """Say which shards of all processes are not there."""
        numbers = sorted(set(range(shards)) - set(self.shards.numbers()))
        some = ", ".join(map(str, numbers[:_NAMED])) + (", …" if len(numbers) > _NAMED else "")
        return f"{len(numbers)} of {shards} shards are missing in {self.shards.folder}: {some}"

    def records(self) -> int:
        """Count the records that the finished shards are made of."""
        notes = map(self.shards.note, self.shards.numbers())
        return sum(note.meta["records"] for note in notes if note is not None)

    def stop(self) -> str:
        """Let go, and say what is there if this process made some of it; a start that made nothing leaves nothing."""
        if self._lock is None:
            return ""
        self._own_lock.unlink(missing_ok=True)
        self._lock.close()
        self._lock = None
        records = self.records()
        if not self.shards.numbers() and not self._others():
            self._run.unlink(missing_ok=True)
            with suppress(OSError):  # it is gone, or something else is in it
                self.shards.folder.rmdir()
        return f"{_lines_are(records)} in {self.shards.folder}" if self._made and records else ""

    def _hold(self) -> None:
        """Lock this process's part, against another run into the same file."""
        if self._lock is not None:
            return
        self.shards.folder.mkdir(parents=True, exist_ok=True)
        file, own = self._own_lock.open("ab"), self._own_lock
        # The same file: not one that the last run removed since it was opened.
        same = lock_file(file) and own.exists() and os.path.samestat(os.fstat(file.fileno()), own.stat())
        if not same or not all(name.endswith(f"-of-{self.share.count}.lock") for name in self._others()):
            if same:
                own.unlink()
            file.close()
            raise ValueError(f"another run writes {self.path}: wait for it, or choose another --output")
        self._lock = file

    def _others(self) -> list[str]:
        """The locks that other processes hold now."""
        held = []
        for path in set(self.shards.folder.glob("*-of-*.lock")) - {self._own_lock}:
            with suppress(FileNotFoundError), path.open("r+b") as file:
                if not lock_file(file):
                    held.append(path.name)
        return held

    def _refuse_unfinished(self) -> None:
        """Of this process's own shards: its siblings may have made theirs since the run began."""
        own = [shard for shard in self.shards.numbers() if shard % self.share.count == self.share.index]
        if own and not self._resume:
            count = self.records()
            raise ValueError(
                f"{self.shards.folder} has {count} line{'s' * (count != 1)} of an unfinished run: add --resume to "
                "continue it, or remove it to start anew"
            )

    def _refuse_mixture(self, shard: int, note: Note, about: Mapping[str, object]) -> None:
        if names := differing(note.settings, _digests(about)):
            raise ValueError(
                f"{self.shards.path(shard)} was made with another {', '.join(names)}: give all processes the same, and "
                "remove this shard"
            )

    def _merge(self, about: Mapping[str, object], shards: int) -> None:
        ready, content, records = self.shards.folder / "merged.tmp", hashlib.sha256(), 0
        with ready.open("wb") as file:
            for shard in range(shards):
                note, data = self.shards.note(shard), self.shards.path(shard).read_bytes()
                if note is None or hashlib.sha256(data).hexdigest() != note.sha256:
                    self.shards.discard(shard)
                    raise ValueError(f"{self.shards.path(shard)} was damaged: --resume makes it again")
                self._refuse_mixture(shard, note, about)
                file.write(data)
                content.update(data)
                records += note.meta["records"]
            file.flush()
            os.fsync(file.fileno())
        sha256 = content.hexdigest()
        if self._convert is not None:
            lines, ready = ready, self.shards.folder / "converted.tmp"
            self._convert(lines, ready)
            sha256 = sha256_of(ready)
        ready.replace(self.path)
        write_atomically(self._note, _as_json({"lines": records, "sha256": sha256, "about": about}))

    def _is_of(self, about: Mapping[str, object]) -> bool:
        """Whether the file is that of a finished run with these settings."""
        if not self._note.exists() or not self.path.exists() or _changes(self._note, about):
            return False
        return bool(sha256_of(self.path) == _read(self._note).get("sha256"))

    def _refuse_changes(self, note: Path, about: Mapping[str, object]) -> None:
        if changed := _changes(note, about):
            what = self.path if note == self._note else self.shards.folder
            raise ValueError(
                f"{what} is of another run ({'; '.join(changed)}): give the same, or remove it to start anew"
            )


def is_stream(path: str) -> bool:
    """Whether `--output` is no regular file: standard output, a pipe, a device."""
    return path == "-" or (os.path.exists(path) and not os.path.isfile(path))


def parts_of(output: str) -> Path:
    """Name the folder of an output's finished shards."""
    path = Path(os.path.realpath(output))
    return path.with_name(f"{path.name}.parts")


@contextmanager
def kept(output: Stream | OutputFile, repeatable: bool) -> Iterator[None]:
    """Let errors and interruptions say what is there and, where the input can be read again, how to go on."""
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


def progress(total: int | None, done: int, quiet: bool, *, in_logs: bool = False) -> tqdm[Never]:
    """A bar with the time that is left, on standard error if that is a terminal; `in_logs` also elsewhere, rarely."""
    from tqdm import tqdm

    off = True if quiet else False if in_logs else None
    rarely = 0.1 if sys.stderr.isatty() else 15.0
    return tqdm(total=total, initial=done, unit="line", file=sys.stderr, disable=off, mininterval=rarely)


def _lines_are(count: int) -> str:
    return f"{count} line{' is' if count == 1 else 's are'}"


def _digests(about: Mapping[str, object]) -> dict[str, str]:
    """A digest of each setting, for the notes of the shards."""
    return {name: digest(value) for name, value in about.items()}


def _as_json(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n"


def _changes(note: Path, about: Mapping[str, object]) -> list[str]:
    """What differs from a note; `about` may be a part of what it has: what is known so far."""
    before, now = _flat(_read(note)["about"]), _flat(json.loads(_as_json(about)))
    kinds = {name.split(".")[0] for name in now}
    names = {name for name in before if name.split(".")[0] in kinds} | now.keys()
    changed = [name for name in sorted(names) if before.get(name) != now.get(name)]
    return [f"{name}: {_short(before.get(name))} → {_short(now.get(name))}" for name in changed]


def _read(note: Path) -> dict[str, Any]:
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
