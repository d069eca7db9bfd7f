"""Files that are there in full or not at all, and files that one process writes at a time."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: str | os.PathLike[str], data: bytes | str, *, durable: bool = True) -> Path:
    """Write a file through a temporary one beside it and rename it; folders are made.

    Args:
        durable: flush it to disk first, so that it also survives a power cut.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Not the process's number: on two machines that share the disk it may be the same.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if durable:
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
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
