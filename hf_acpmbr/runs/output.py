"""A file that any number of processes make of shards.

The shards of FILE wait in `FILE.parts`. When all are finished, they become FILE and `FILE.run.json`, which says what
FILE was made from, and the folder is removed. Until then FILE keeps its old content.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from ..files import lock_file, say_replaced, take_place, write_atomically
from .shards import Shards, Share, sha256_of

Convert: TypeAlias = Callable[[Path, Path], None]
_SHOWN = 60  # characters of a setting in a message
_NAMED = 10  # shards in a message


class OutputFile:
    """A file made of shards by any number of processes, which appears when it is complete.

    Args:
        path: the file.
        share: this process's part of the shards.
        count: how many shards there are.
        about: what the lines depend on, as far as known; complete it before `start`.
        resume: continue an unfinished run.
        convert: makes the file of the lines (from, to); None if the lines are the file.
    """

    def __init__(
        self,
        path: str,
        share: Share,
        count: int,
        about: Mapping[str, object],
        *,
        resume: bool = False,
        convert: Convert | None = None,
    ) -> None:
        self.path = Path(os.path.realpath(path))  # beside the file itself, not beside a link to it
        self.shards = Shards(parts_of(path), ".txt")
        self.share, self.count, self.about, self._resume, self._convert = share, count, dict(about), resume, convert
        self._note = self.path.with_name(f"{self.path.name}.run.json")
        self._own_lock = self.shards.folder / f"{share.index}-of-{share.count}.lock"
        self._lock: BinaryIO | None = None
        self._made = False

    def start(self) -> list[int] | None:
        """Lock this process's part, and list its missing shards; None if the file is finished.

        Call it with what is known of `about`, which refuses what cannot be continued before models are loaded, and
        again with all of it.
        """
        self._hold()
        begun = self._refuse_others()
        if self._resume and self._is_finished(begun):
            self.shards.remove()  # a kill may have left some
            return None
        missing = []
        for shard in self.share.of_all(self.count):
            if (note := self.shards.sound(shard)) is None:
                self.shards.discard(shard)
                missing.append(shard)
            else:
                self._refuse_changes(self.shards.path(shard), note.settings)
        return missing

    def adopt(self, about: Mapping[str, Any] | None = None) -> bool:
        """Take what another process, or else the first finished shard, says that the lines depend on.

        Return whether any does. Refuse what disagrees with what is known.
        """
        if about is None:
            about = next((note.settings for note in self.shards.notes()), None)
        if about is not None:
            self._refuse_changes(self.shards.folder, about)
            self.about = dict(about)
        return about is not None

    def put(self, shard: int, data: bytes, records: int) -> None:
        """Keep the lines of a shard that was made of this many records."""
        self.shards.put(shard, data, settings=_as_json(self.about), meta={"records": records})
        self._made = True

    def merge(self) -> bool:
        """Make the file if all shards are finished; return whether it is made, perhaps by another process."""
        if self.shards.folder.is_dir() and len(self.shards.numbers()) < self.count:
            return False
        try:
            self._merge()
        except FileNotFoundError:  # another process was quicker
            if not self._is_of_this_run():
                raise
        self.shards.remove()
        return True

    def merge_by_hand(self) -> None:
        """Make the file without loading models; the notes of the shards say what the lines depend on."""
        if not self.adopt():
            raise ValueError(f"--merge: there are no shards in {self.shards.folder}, so nothing to merge")
        if not self.merge():
            raise ValueError(f"--merge: {self.missing()}")

    def missing(self) -> str:
        """Say which shards of all processes are missing."""
        numbers = sorted(set(range(self.count)) - set(self.shards.numbers()))
        some = ", ".join(map(str, numbers[:_NAMED])) + (", …" if len(numbers) > _NAMED else "")
        return f"{len(numbers)} of {self.count} shards are missing in {self.shards.folder}: {some}"

    def stop(self) -> str:
        """Release the shards, and say how many lines are kept if this process made some; leave no empty folder."""
        if self._lock is None:
            return ""
        self._own_lock.unlink(missing_ok=True)
        self._lock.close()
        self._lock = None
        with suppress(OSError):  # it has been removed, or is not empty
            self.shards.folder.rmdir()
        records = self._records()
        if not self._made or not records:
            return ""
        return f"{records} line{' is' if records == 1 else 's are'} in {self.shards.folder}"

    def _hold(self) -> None:
        """Lock this process's part, against another run into the same file."""
        if self._lock is not None:
            return
        self.shards.folder.mkdir(parents=True, exist_ok=True)
        file, own = self._own_lock.open("ab"), self._own_lock
        # The same file: not one that the last run removed since it was opened.
        same = lock_file(file) and own.exists() and os.path.samestat(os.fstat(file.fileno()), own.stat())
        if not same or self._divided_otherwise():
            if same:
                own.unlink()
            file.close()
            raise ValueError(f"another run writes {self.path}: wait for it, or choose another --output")
        self._lock = file

    def _divided_otherwise(self) -> bool:
        """Return whether a run with another number of processes is at work."""
        for path in self.shards.folder.glob("*-of-*.lock"):  # listed once: siblings may be starting right now
            if path.name.endswith(f"-of-{self.share.count}.lock"):
                continue
            with suppress(FileNotFoundError), path.open("r+b") as file:
                if not lock_file(file):
                    return True
        return False

    def _records(self) -> int:
        """Count the records of the finished shards."""
        return sum(note.meta["records"] for note in self.shards.notes())

    def _refuse_others(self) -> bool:
        """Refuse shards of another run, or of this one without --resume; return whether there are any."""
        # Only this process's own need --resume: its siblings may have made theirs since the run began.
        own = [shard for shard in self.shards.numbers() if shard % self.share.count == self.share.index]
        if own and not self._resume:
            count = self._records()
            raise ValueError(
                f"{self.shards.folder} has {count} line{'s' * (count != 1)} of an unfinished run: add --resume to "
                "continue it, or remove it to start anew"
            )
        first = next(self.shards.notes(), None)
        if first is not None:
            self._refuse_changes(self.shards.folder, first.settings)
        return first is not None

    def _refuse_changes(self, what: Path, before: Mapping[str, Any]) -> None:
        if changed := _changes(before, self.about):
            raise ValueError(
                f"{what} is of another run ({'; '.join(changed)}): give the same settings to all processes, or remove "
                "it to start anew"
            )

    def _merge(self) -> None:
        """Write the file and its note; any number of processes may do so at the same time."""
        self.shards.folder.mkdir(parents=True, exist_ok=True)
        ready, records = self.shards.folder / f"merged-{uuid.uuid4().hex[:8]}.tmp", 0
        with ready.open("wb") as file:
            for shard in range(self.count):
                note, data = self.shards.note(shard), self.shards.path(shard).read_bytes()
                if note is None or hashlib.sha256(data).hexdigest() != note.sha256:
                    self.shards.discard(shard)
                    raise ValueError(f"{self.shards.path(shard)} was damaged: --resume makes it again")
                self._refuse_changes(self.shards.path(shard), note.settings)
                file.write(data)
                records += note.meta["records"]
            file.flush()
            os.fsync(file.fileno())
        if self._convert is not None:
            lines, ready = ready, ready.with_suffix(".converted.tmp")
            self._convert(lines, ready)
        note_of_run = {"lines": records, "sha256": sha256_of(ready), "about": self.about}
        replaces = self.path.exists() and sha256_of(self.path) != note_of_run["sha256"]
        take_place(ready, self.path)
        write_atomically(self._note, json.dumps(note_of_run, indent=1, ensure_ascii=False, default=str) + "\n")
        if replaces:
            say_replaced(self.path)

    def _is_finished(self, begun: bool) -> bool:
        """Return whether the file is of this run; refuse another one unless shards of this run replace it."""
        if self._is_of_this_run():
            return True
        if begun or not self.path.exists():
            return False
        if self._note.exists():
            self._refuse_changes(self.path, self._noted()["about"])
            raise ValueError(f"{self.path} was changed after its run: leave out --resume to replace it")
        if self.path.stat().st_size:
            raise ValueError(
                f"{self.path} has no {self._note.name}, so its run is unknown: leave out --resume to replace it"
            )
        return False

    def _is_of_this_run(self) -> bool:
        """Return whether the file is that of a finished run with the same settings."""
        if not self._note.exists() or not self.path.exists():
            return False
        noted = self._noted()
        return not _changes(noted["about"], self.about) and sha256_of(self.path) == noted.get("sha256")

    def _noted(self) -> dict[str, Any]:
        """Read the note of the finished file."""
        with suppress(ValueError):
            noted = json.loads(self._note.read_text(encoding="utf-8"))
            if isinstance(noted, dict) and isinstance(noted.get("about"), dict):
                return noted
        raise ValueError(f"{self._note} is not the note of a run: remove it, and start anew")


def parts_of(output: str) -> Path:
    """Name the folder of an output's finished shards."""
    path = Path(os.path.realpath(output))
    return path.with_name(f"{path.name}.parts")


def _as_json(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the values as a note has them."""
    read: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return read


def _changes(noted: Mapping[str, Any], about: Mapping[str, object]) -> list[str]:
    """Say what differs from a note; `about` may be only the part known so far."""
    before, now = _flat({name: noted.get(name) for name in about}), _flat(_as_json(about))
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return [f"{name}: {_short(before.get(name))} → {_short(now.get(name))}" for name in changed]


def _flat(values: object, name: str = "") -> dict[str, object]:
    """Flatten nested objects and lists to dotted names."""
    if not isinstance(values, (dict, list)) or not values:
        return {name: values}
    inside = values.items() if isinstance(values, dict) else enumerate(values)
    flat = (_flat(value, f"{name}.{part}" if name else str(part)) for part, value in inside)
    return {key: item for part in flat for key, item in part.items()}


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
