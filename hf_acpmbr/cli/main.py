"""`acpmbr`: the command line. Each subcommand is one module in `hf_acpmbr.cli`, imported only when chosen."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from ..version import __version__

COMMANDS = {
    "demo": "show what MBR costs and gains on the embedded models, offline",
    "translate": "translate or continue the lines of a file with any model, by MBR",
    "rerank": "choose the best of candidates that you have",
    "plan": "try a few lines of a file and estimate what translating all of it will cost, per recipe",
    "score": "score hypotheses against references with any utility",
    "serve": "serve OpenAI's API: MBR over the texts of another server or of a model",
    "ui": "open an interactive page in the browser, served on this machine",
}
_DESCRIPTION = """\
Minimum Bayes Risk (MBR) decoding for Hugging Face models.

MBR draws many candidates, scores them against each other with a quality metric (the utility), and returns the one that
agrees best with the others. A small part of the scores is enough: the default asks for scores in rounds and drops
candidates that cannot win; the paper's method (AC-PMBR, arXiv 2512.01316) completes the matrix of scores.
"""
_EPILOG = """\
start here:
  acpmbr demo                                            runs offline, with the models of this package
  echo "Where is the station?" | acpmbr translate        the same translator on your own lines
  acpmbr COMMAND --help                                  options, with examples

exit codes: 0 done, 1 failed, 2 a mistake in the command or its input, 130 Ctrl-C, 143 SIGTERM
"""


class Parser(argparse.ArgumentParser):
    """argparse with its help as it was written and errors of one line."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 0 done, 2 for mistakes of the user, 130 and 143 interrupted."""
    # Read when torch is loaded. Waiting threads that spin are several times slower on a core that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = given[0] if given and given[0] in COMMANDS else None
    parser = Parser(prog="acpmbr", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"hf_acpmbr {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        about = summary[0].upper() + summary[1:] + "."
        command = commands.add_parser(name, help=summary, description=about, usage=f"acpmbr {name} [options]")
        if name == chosen:
            module = importlib.import_module(f"hf_acpmbr.cli.{name}")
            module.add_arguments(command)
            command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options, unknown = parser.parse_known_args(given)
    if unknown:
        commands.choices[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    with one_line_warnings(options.command):
        return exit_code(f"acpmbr {options.command}", lambda: int(module.run(options)), debug=options.debug)


def exit_code(program: str, run: Callable[[], int], *, debug: bool) -> int:
    """Call `run`; errors and interruptions are one line on standard error, after the traceback if asked."""

    def say(message: object) -> None:
        print(f"{program}: {' '.join(str(message).split())}", file=sys.stderr)

    try:
        with _sigterm_as_exception():
            return run()
    except BrokenPipeError:  # the reader of the output has enough, as in `acpmbr ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at the end
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, (ValueError, OSError, ImportError)):
            say(str(error) or type(error).__name__)
            return 2
        say(f"{type(error).__name__}: {error} (--debug shows where)")
        return 1
    except KeyboardInterrupt as error:
        say(f"interrupted{f'; {error}' if str(error) else ''}")
        return 143 if isinstance(error, Terminated) else 130


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does: finished work is kept, and --resume continues."""


@contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def one_line_warnings(command: str) -> Iterator[None]:
    """Show warnings as messages of the command, without the line of code."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"acpmbr {command}: warning: {' '.join(str(message).split())}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before
