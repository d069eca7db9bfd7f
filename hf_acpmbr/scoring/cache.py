"""The persistent score cache: one SQLite file for any number of utilities, runs and processes.

Keyed by the utility's signature (content of the checkpoint included), the code of the metrics and the texts' hashes.
Each block of scores is one transaction in write-ahead mode, so a killed run loses at most the block in flight and
readers never wait for writers. What is not a finite number is computed again.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray

_SCHEMA = "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, value REAL) WITHOUT ROWID"
_LOOKUP = 500  # placeholders in one query; SQLite's oldest limit is 999


class CacheError(OSError):
    """The file of a score cache cannot be used."""


class ScoreCache:
    """Scores on disk.

    Args:
        path: the file; its folder is made if it is missing.
        signature: what distinguishes one utility's scores from another's.
        block: pairs computed between two writes.
        timeout: seconds to wait for another process's write.
    """

    timeout = 60.0

    def __init__(self, path: str | Path, signature: str, *, block: int = 8192) -> None:
        self.path = Path(path).expanduser()
        self.signature = signature
        self.block = block
        self._text_digests: dict[str, bytes] = {}
        if self.path.is_dir():
            raise ValueError(
                f"cache={str(path)!r} is a folder: give a file name, such as {str(self.path / 'scores.db')!r}"
            )
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(_SCHEMA)

    def digests(self, pairs: Iterable[tuple[str, str | None, str | None]]) -> list[bytes]:
        """Make the key of each hypothesis, reference and source: a hash over the signature and the texts' hashes."""
        prefix = self.signature.encode()
        keys = []
        for texts in pairs:
            parts = b"\x1f".join((prefix, *(b"" if text is None else self._digest(text) for text in texts)))
            keys.append(hashlib.blake2b(parts, digest_size=16).digest())
        return keys

    def get(self, keys: Sequence[bytes]) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Return the values of the keys, and which of them were there."""
        values, found = np.full(len(keys), np.nan), np.zeros(len(keys), dtype=bool)
        with self._connection() as connection:
            for start in range(0, len(keys), _LOOKUP):
                part = keys[start : start + _LOOKUP]
                marks = ",".join("?" * len(part))
                rows = dict(connection.execute(f"SELECT key, value FROM scores WHERE key IN ({marks})", part))
                for place, key in enumerate(part, start):
                    value = rows.get(key)
                    if isinstance(value, float) and math.isfinite(value):
                        values[place], found[place] = value, True
        return values, found

    def put(self, keys: Sequence[bytes], values: FloatArray) -> None:
        """Write in one transaction; equal keys have equal values, so it does not matter who writes last."""
        rows = zip(keys, values.tolist(), strict=True)
        with self._connection() as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", rows)

    def __len__(self) -> int:
        with self._connection() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM scores").fetchone()[0])

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # One short-lived connection per operation: SQLite handles must not cross forks or threads.
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(os.fspath(self.path), timeout=self.timeout)) as connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise CacheError(
                f"the score cache {self.path} cannot be used ({error}): if no other process has it, remove or move the "
                "file, or score without cache="
            ) from error

    def _digest(self, text: str) -> bytes:
        if text not in self._text_digests:
            encoded = text.encode("utf-8", "surrogatepass")
            self._text_digests[text] = hashlib.blake2b(encoded, digest_size=16).digest()
        return self._text_digests[text]
