"""Results on disk in shards that are either whole or absent, whatever happens to the process that writes them.

A shard is a file, and a note beside it (JSON) that is written last: checksum, what failed, what the shard was made from
and with which settings. A shard without its note, or whose bytes do not match it, counts as absent and is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .files import write_atomically


@dataclass(frozen=True)
class Note:
    """What is known about a shard.

    Args:
        sha256: of the file.
        settings: digests of what it was made with: settings, the content of models and metrics, code.
        inputs: digest of what it was made from.
        failed: message for each source (by index) that could not be done; they are not in the file.
        meta: what whoever reads it needs to know.
    """

    sha256: str
    settings: Mapping[str, str]
    inputs: str
    failed: Mapping[str, str] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)


class Shards:
    """Numbered shards in one folder.

    Args:
        folder: made with the first shard.
        suffix: of their names.
    """

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder, self.suffix = folder, suffix

    def path(self, shard: int) -> Path:
        return self.folder / f"{shard:05d}{self.suffix}"

    def note_path(self, shard: int) -> Path:
        return self.folder / f"{shard:05d}.json"

    def put(
        self,
        shard: int,
        data: bytes,
        *,
        settings: Mapping[str, str],
        inputs: str,
        failed: Mapping[int, str],
        meta: dict[str, Any],
    ) -> None:
        """Write the data, then the note that makes it count; each appears under its name only when it is complete."""
        failures = {str(index): failed[index] for index in sorted(failed)}
        note = Note(hashlib.sha256(data).hexdigest(), settings, inputs, failures, meta)
        self.note_path(shard).unlink(missing_ok=True)
        write_atomically(self.path(shard), data)
        write_atomically(self.note_path(shard), json.dumps(asdict(note), sort_keys=True, indent=1) + "\n")

    def note(self, shard: int) -> Note | None:
        """The note of a shard; None where it is absent or unreadable."""
        try:
            values = json.loads(self.note_path(shard).read_text(encoding="utf-8"))
            if isinstance(values["settings"], str):  # of an earlier version: made with something else, but not absent
                values["settings"] = {"version of this program": values["settings"]}
            note = Note(**values)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None
        return note if isinstance(note.settings, dict) and isinstance(note.failed, dict) else None

    def sound(self, shard: int) -> Note | None:
        """The note of a shard whose bytes match it; None otherwise."""
        note = self.note(shard)
        if note is None or not self.path(shard).is_file():
            return None
        return note if sha256_of(self.path(shard)) == note.sha256 else None

    def discard(self, shard: int) -> None:
        """Make a shard absent; the note goes first, so that a kill in between leaves nothing that counts."""
        self.note_path(shard).unlink(missing_ok=True)
        self.path(shard).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what a killed process left unfinished."""
        for file in self.folder.glob("*.tmp"):
            file.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """Of a file's content."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def digest(value: object) -> str:
    """A short name for any JSON-like value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
