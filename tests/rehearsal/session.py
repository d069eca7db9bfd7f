"""Run snippets and command lines one after the other in this process, and say of each what came of it.

    python -m tests.rehearsal.session steps.json results.json

A step is {"page": ..., "python": text} or {"acpmbr": arguments}. The blocks of a page share their names; every page
starts with those that the first one left.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from pathlib import Path
from typing import Any


def run(step: dict[str, Any], names: dict[str, dict[str, Any]]) -> int:
    if "python" in step:
        first = next(iter(names.values()), {})
        exec(compile(step["python"], step["page"], "exec"), names.setdefault(step["page"], dict(first)))
        return 0
    from hf_acpmbr.cli.main import main as acpmbr

    return acpmbr(step["acpmbr"])


def captured() -> io.TextIOWrapper:
    """A stream that is kept in memory, with the bytes below it that commands write to."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def text_of(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def main(steps: Path, results: Path) -> None:
    names: dict[str, dict[str, Any]] = {}
    done = []
    for step in json.loads(steps.read_text(encoding="utf-8")):
        output, errors, code = captured(), captured(), 1
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                code = run(step, names)
            except (Exception, SystemExit):
                traceback.print_exc()
        done.append({"code": code, "output": text_of(output), "errors": text_of(errors)})
    results.write_text(json.dumps(done), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
