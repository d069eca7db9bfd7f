"""Files that are there in full or not at all, and files that one process writes at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> Path:
    """Write a file through a temporary one beside it, flushed to disk, and rename it; folders are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def lock_file(file: BinaryIO) -> bool:
    """Lock an open file for this process, until it closes it or ends in any way; False if another process has it.

    Where the system or its file system has no such locks, nothing is locked and the answer is True.
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
