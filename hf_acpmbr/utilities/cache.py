"""The persistent score cache: one SQLite file for any number of utilities, runs and processes.

Keyed by the utility's signature (checkpoint revision included) and the texts' hashes. Each block of scores is one
transaction in write-ahead mode, so a killed run loses at most the block in flight and readers never wait for writers.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray

_SCHEMA = "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID"
_LOOKUP = 500  # placeholders in one query; SQLite's oldest limit is 999


class ScoreCache:
    """Scores on disk.

    Args:
        path: the file; its folder is made if it is missing.
        signature: what distinguishes one utility's scores from another's.
        block: pairs computed between two writes.
        timeout: seconds to wait for another process's write.
    """

    def __init__(self, path: str | Path, signature: str, *, block: int = 8192, timeout: float = 60.0) -> None:
        self.path = Path(path).expanduser()
        self.signature = signature
        self.block = block
        self.timeout = timeout
        self._text_digests: dict[str, bytes] = {}
        if self.path.is_dir():
            raise ValueError(
                f"cache={str(path)!r} is a folder: give a file name, such as {str(self.path / 'scores.db')!r}"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(_SCHEMA)

    def digests(
        self,
        texts: Sequence[str],
        sources: Sequence[str],
        hypotheses: IntArray,
        references: IntArray | None,
        source_indices: IntArray,
    ) -> list[bytes]:
        """The key of each pair: a hash over the signature and the hashes of its texts."""
        text_digests = [self._digest(text) for text in texts]
        source_digests = [self._digest(text) for text in sources] or [b""]
        prefix = self.signature.encode()
        keys = []
        r = hypotheses if references is None else references
        for h, j, s in zip(hypotheses.tolist(), r.tolist(), source_indices.tolist(), strict=True):
            reference = b"" if references is None else text_digests[j]
            parts = b"\x1f".join((prefix, text_digests[h], reference, source_digests[s]))
            keys.append(hashlib.blake2b(parts, digest_size=16).digest())
        return keys

    def get(self, keys: Sequence[bytes]) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Values of the keys, and which of them were there."""
        values, found = np.full(len(keys), np.nan), np.zeros(len(keys), dtype=bool)
        with self._connection() as connection:
            for start in range(0, len(keys), _LOOKUP):
                part = keys[start : start + _LOOKUP]
                marks = ",".join("?" * len(part))
                rows = dict(connection.execute(f"SELECT key, value FROM scores WHERE key IN ({marks})", part))
                for offset, key in enumerate(part):
                    if key in rows:
                        values[start + offset], found[start + offset] = rows[key], True
        return values, found

    def put(self, keys: Sequence[bytes], values: FloatArray) -> None:
        """Write in one transaction; equal keys hold equal values, so the first writer wins."""
        with self._connection() as connection, connection:
            connection.executemany(
                "INSERT OR IGNORE INTO scores VALUES (?, ?)", zip(keys, values.tolist(), strict=True)
            )

    def __len__(self) -> int:
        with self._connection() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM scores").fetchone()[0])

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # One short-lived connection per operation: SQLite handles must not cross forks or threads.
        with closing(sqlite3.connect(os.fspath(self.path), timeout=self.timeout)) as connection:
            yield connection

    def _digest(self, text: str) -> bytes:
        if text not in self._text_digests:
            encoded = text.encode("utf-8", "surrogatepass")
            self._text_digests[text] = hashlib.blake2b(encoded, digest_size=16).digest()
        return self._text_digests[text]
