"""Files that appear complete or not at all, locks between processes, and JSON from elsewhere."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_DEEPEST = 100  # levels of lists and objects in JSON: Python's own limit depends on the caller
_TOO_DEEP = f"it has lists and objects more than {_DEEPEST} levels deep: flatten it"


def write_atomically(path: str | os.PathLike[str], data: bytes | str, *, durable: bool = True) -> Path:
    """Write a file through a temporary one beside it, which is then renamed; make its folder.

    Links are followed, a replaced file's permissions are kept, and pipes and devices are written to directly.

    Args:
        durable: flush it to disk first, so that it also survives a power cut.
    """
    content = data.encode() if isinstance(data, str) else data
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            file.write(content)
        return Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Not the process id, which two machines that share the disk may both use.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        take_place(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return Path(path)


def take_place(finished: Path, target: Path) -> None:
    """Rename a finished file to `target`, with the permissions of the file that it replaces."""
    if target.exists():
        finished.chmod(stat.S_IMODE(target.stat().st_mode))
    finished.replace(target)


def is_stream(path: str) -> bool:
    """Return whether an output is no regular file but standard output ("-"), a pipe or a device."""
    return path == "-" or (os.path.exists(path) and not os.path.isfile(path))


def check_output(path: str, inputs: Mapping[str, str | None]) -> None:
    """Refuse, before any work, an --output that cannot become a file, or is one of the inputs (by option)."""
    if os.path.isdir(path):
        raise ValueError(f"--output {path} is a folder: give a file in it")
    folder = os.path.dirname(os.path.realpath(path))
    if path != "-" and not os.path.isdir(folder):
        raise ValueError(f"--output {path}: there is no folder {folder}, make it first or choose another")
    for option, given in inputs.items():
        if given and os.path.exists(given) and os.path.exists(path) and os.path.samefile(given, path):
            raise ValueError(f"--output {path} is the --{option} file: choose another --output")


def say_replaced(path: str | os.PathLike[str]) -> None:
    """Say that a file of the user's has been replaced."""
    print(f"replaced {path}, which existed", file=sys.stderr)


def lock_file(file: BinaryIO) -> bool:
    """Lock an open file until this process closes it or ends; return False if another process has locked it.

    Where there are no such locks, nothing is locked, and the result is True.
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


def parse_json(text: str) -> object:
    """Parse JSON; raise ValueError for repeated names, of which only one would count, and for very deep nesting."""
    try:
        value: object = json.loads(text, object_pairs_hook=_without_repetition)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (list, dict))]:
        if (depth := depth + 1) > _DEEPEST:
            raise ValueError(_TOO_DEEP)
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return value


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return values
