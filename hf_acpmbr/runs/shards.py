"""Shards of a run: which of them a process makes, and files that are either whole or absent.

Nothing connects the processes of a run. Shards are at fixed positions; each process makes its own and ends, and the one
that finds all of them merges. So a process that is killed costs its unfinished shard, and nobody waits for it.

A shard is a file with a note beside it (JSON), which is written last: checksum, failures, and what the shard was made
from and with. A shard without its note, or whose bytes do not match it, counts as absent and is made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..files import write_atomically

HOW_TO_LAUNCH = (
    "two processes on a CPU: `accelerate launch --multi_gpu --num_processes 2 …`, or "
    "`torchrun --nproc_per_node 2 …`, or the command twice, with --shard 0/2 and --shard 1/2"
)


@dataclass(frozen=True)
class Share:
    """The shards that process `index` of `count` makes: `index`, `index + count`, `index + 2 count`, …"""

    index: int = 0
    count: int = 1
    local: int | None = None  # its number on this machine, which is its GPU's; None without a launcher

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read I/P, for argparse."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not I/P: process I of P, counted from 0, as in 0/4, 1/4, 2/4, 3/4"
            )
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of(cls, given: Share | None, environment: Mapping[str, str] = os.environ) -> Share:
        """Take the share of `--shard`, else that of torchrun or accelerate, else everything."""
        index, count = (int(environment.get(name) or 0) for name in ("RANK", "WORLD_SIZE"))
        if given is not None:
            if count > 1:
                raise ValueError(
                    f"--shard {given.index}/{given.count} under a launcher of {count} processes, which divides the "
                    "work too: leave out one of them"
                )
            return given
        if count:
            return cls(index, count, int(environment.get("LOCAL_RANK") or index))
        # accelerate's simple launcher sets an address for processes to meet at, and then starts only one.
        if "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment:
            raise ValueError(
                "accelerate was asked for several processes or machines and started only one: with --cpu it ignores "
                f"--num_processes; {HOW_TO_LAUNCH}"
            )
        return cls()

    def of_all(self, shards: int) -> range:
        """Return the numbers of this process's shards; not neighbours, since long lines often stand together."""
        return range(self.index, shards, self.count)

    def take_device(self) -> str:
        """Make this process's GPU the current one, if there are GPUs, and name the device."""
        import torch

        if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
            return "cpu"
        if not torch.cuda.is_available():
            return "mps" if torch.backends.mps.is_available() else "cpu"
        if self.local is None:
            return "cuda"
        if self.local >= (gpus := torch.cuda.device_count()):
            raise ValueError(
                f"process {self.local} of this machine has no GPU, there are {gpus}: start at most one process per "
                "GPU, or hide the GPUs (CUDA_VISIBLE_DEVICES=)"
            )
        torch.cuda.set_device(self.local)
        return f"cuda:{self.local}"

    def __str__(self) -> str:
        return f"process {self.index} of {self.count}"


@dataclass(frozen=True)
class Note:
    """The note of a shard."""

    sha256: str
    settings: Mapping[str, Any]  # what it was made with: values or digests of settings, models, metrics and code
    inputs: str = ""  # digest of what it was made from
    failed: Mapping[str, str] = field(default_factory=dict)  # why a source (by index) failed and is not in the file
    meta: Mapping[str, Any] = field(default_factory=dict)  # anything that its reader needs


class Shards:
    """Numbered shards in one folder, which is made with the first of them."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder, self.suffix = folder, suffix

    def path(self, shard: int) -> Path:
        return self.folder / f"{shard:05d}{self.suffix}"

    def note_path(self, shard: int) -> Path:
        return self.folder / f"{shard:05d}.json"

    def put(self, shard: int, data: bytes, settings: Mapping[str, Any], **noted: Any) -> None:
        """Write the data, then the note that makes it count (`noted`: its other fields).

        Neither is flushed to disk, which would take longer than making a small shard. What a power cut loses does not
        match its checksum, and is made again.
        """
        note = asdict(Note(hashlib.sha256(data).hexdigest(), settings, **noted))
        self.note_path(shard).unlink(missing_ok=True)
        write_atomically(self.path(shard), data, durable=False)
        write_atomically(self.note_path(shard), json.dumps(note, sort_keys=True, indent=1) + "\n", durable=False)

    def note(self, shard: int) -> Note | None:
        """Read the note of a shard; None if it is absent or unreadable."""
        try:
            note = Note(**json.loads(self.note_path(shard).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return note if isinstance(note.settings, dict) and isinstance(note.failed, dict) else None

    def notes(self) -> Iterator[Note]:
        """Read the notes of all shards, in order."""
        return (note for note in map(self.note, self.numbers()) if note is not None)

    def sound(self, shard: int) -> Note | None:
        """Read the note of a shard whose bytes match it; None otherwise."""
        note = self.note(shard)
        if note is None or not self.path(shard).is_file():
            return None
        return note if sha256_of(self.path(shard)) == note.sha256 else None

    def discard(self, shard: int) -> None:
        """Make a shard absent; the note goes first, so that a kill in between leaves nothing that counts."""
        self.note_path(shard).unlink(missing_ok=True)
        self.path(shard).unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """List the shards that have a note."""
        return sorted(int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal())

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def json_digest(value: object) -> str:
    """Name any JSON-like value by 16 characters."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
