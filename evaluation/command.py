"""The command lines of this folder: errors are one line, and `--debug` shows the traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from hf_acpmbr.cli.main import Parser, exit_code

__all__ = ["Parser", "add_debug", "exit_code", "run_command"]


def add_debug(parser: Parser) -> None:
    parser.add_argument("--debug", action="store_true", help="show where an error comes from (the traceback)")


def run_command(
    parser: Parser, work: Callable[[argparse.Namespace], None], given: Sequence[str] | None = None
) -> NoReturn:
    """Do the work with the options of the command line, and end the process with its exit code."""
    add_debug(parser)
    options = parser.parse_args(given)

    def done() -> int:
        work(options)
        return 0

    sys.exit(exit_code(parser.prog, done, debug=options.debug))
