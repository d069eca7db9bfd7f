"""`acpmbr score`: any utility on aligned files, as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys

from ..files import check_output, is_stream, say_replaced, write_atomically
from ..runs.inputs import Lines
from .options import add_key_values

_EXAMPLES = """\
examples:
  acpmbr score --utility chrf --hypotheses out.txt --references ref.txt
  acpmbr score --utility comet --option device=cuda:0 dtype=float16 cache=scores.db \\
      --hypotheses out.txt --references ref.txt --sources src.txt --output scores.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("--utility", required=True, metavar="NAME", help="name, hub id, checkpoint folder or script")
    add_key_values(
        parser,
        "--option",
        "its options: checkpoint=PATH, device=cuda:0, dtype=float16, batch_tokens=8192, cache=FILE (keeps scores for "
        "later runs), progress=true, ...; repeatable",
    )
    parser.add_argument("--hypotheses", required=True, metavar="FILE", help="one text per line; - is standard input")
    parser.add_argument("--references", metavar="FILE", help="one text per line; reference-free utilities need none")
    parser.add_argument("--sources", metavar="FILE", help="one text per line, for utilities that read the source")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run the script of an evaluate module (--utility FILE.py)"
    )
    parser.add_argument("--output", default="-", metavar="FILE", help="where to write (default: standard output, -)")


def run(args: argparse.Namespace) -> int:
    from ..scoring import load_utility

    names = ("hypotheses", "references", "sources")
    paths: dict[str, str] = {name: path for name in names if (path := getattr(args, name)) is not None}
    check_output(args.output, paths)
    if list(paths.values()).count("-") > 1:
        raise ValueError("only one of --hypotheses, --references and --sources can be standard input (-)")
    try:
        utility = load_utility(args.utility, trust_remote_code=args.trust_remote_code, **args.option)
    except TypeError as error:  # an option that the utility's class does not have
        raise ValueError(str(error)) from error
    texts = {name: [line for _, line in Lines(path, f"--{name}")] for name, path in paths.items()}
    hypotheses = texts["hypotheses"]
    for name, needed in (("references", utility.needs_reference), ("sources", utility.needs_source)):
        if needed and name not in texts:
            raise ValueError(f"utility {utility.name!r} needs --{name} FILE")
        if len(lines := texts.get(name, hypotheses)) != len(hypotheses):
            raise ValueError(
                f"--{name} has {len(lines)} lines, --hypotheses has {len(hypotheses)}: they must be aligned"
            )
    scores = utility.score(hypotheses, texts.get("references"), texts.get("sources"))
    result = {
        "utility": utility.name,
        "signature": utility.signature,
        "higher_is_better": utility.higher_is_better,
        "lines": len(hypotheses),
        "corpus_score": float(scores.mean()) if scores.size else None,
        "scores": scores.tolist(),
    }
    text = json.dumps(result, ensure_ascii=False) + "\n"
    if args.output == "-":
        sys.stdout.write(text)
        return 0
    existed = os.path.exists(args.output) and not is_stream(args.output)
    write_atomically(args.output, text)
    if existed:
        say_replaced(os.path.realpath(args.output))
    return 0
