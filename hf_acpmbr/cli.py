"""`acpmbr`: the command line. Each subcommand is one module in `hf_acpmbr.commands`, imported only when chosen."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "demo": "translate a few sentences with the embedded models and show what AC-PMBR saves",
    "translate": "translate or continue a file of lines with any model, by MBR",
    "rerank": "choose the best of given candidates",
    "score": "score hypotheses against references with any utility",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    # Read when torch is loaded. Waiting threads that spin are several times slower on a core that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = given[0] if given and given[0] in COMMANDS else None
    parser = argparse.ArgumentParser(prog="acpmbr", description=__doc__.split(".")[0].replace("`", ""))
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f"hf_acpmbr.commands.{name}")
            module.add_arguments(command)
    options = parser.parse_args(given)
    try:
        return int(module.run(options))
    except (ValueError, OSError, ImportError) as error:
        print(f"acpmbr {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"acpmbr {options.command}: interrupted", file=sys.stderr)
        return 130


def _version() -> str:
    from . import __version__

    return f"hf_acpmbr {__version__}"


if __name__ == "__main__":
    sys.exit(main())
