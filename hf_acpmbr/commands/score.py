"""`acpmbr score`: any utility on aligned files, as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ._resumable import read_lines

HELP = "score hypotheses against references with any utility"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--utility", required=True, metavar="NAME", help="name, hub id, checkpoint folder or script")
    parser.add_argument("--hypotheses", required=True, metavar="FILE", help="one text a line; - is standard input")
    parser.add_argument("--references", metavar="FILE", help="one text a line (not for reference-free utilities)")
    parser.add_argument("--sources", metavar="FILE", help="one text a line, for utilities that look at the source")
    parser.add_argument("--output", default="-", metavar="FILE", help="default: standard output")
    parser.add_argument("--device", help="cpu, cuda:0, ...")
    parser.add_argument("--dtype", help="float32 (default), float16, bfloat16 or auto")
    parser.add_argument("--batch-tokens", type=int, metavar="N", help="tokens of a batch, padding included")
    parser.add_argument("--cache", metavar="FILE", help="keep scores between runs in this SQLite file")
    parser.add_argument("--progress", action="store_true", help="show a progress bar")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="further option of the utility, value in JSON or plain text; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    from ..utilities import load_utility

    utility = load_utility(args.utility, **_options(args))
    paths = {name: getattr(args, name) for name in ("hypotheses", "references", "sources")}
    texts = {name: None if path is None else read_lines(path) for name, path in paths.items()}
    for name, needed in (("references", utility.needs_reference), ("sources", utility.needs_source)):
        if needed and texts[name] is None:
            raise ValueError(f"utility {utility.name!r} needs --{name} FILE")
    hypotheses = texts["hypotheses"] or []
    for name in ("references", "sources"):
        lines = texts[name]
        if lines is not None and len(lines) != len(hypotheses):
            raise ValueError(
                f"--{name} has {len(lines)} lines, --hypotheses has {len(hypotheses)}: they must be aligned"
            )
    scores = utility.score(hypotheses, texts["references"], texts["sources"])
    result = {
        "utility": utility.name,
        "signature": utility.signature,
        "higher_is_better": utility.higher_is_better,
        "lines": len(hypotheses),
        "corpus_score": float(scores.mean()) if scores.size else None,
        "scores": scores.tolist(),
    }
    text = json.dumps(result, ensure_ascii=False, indent=None) + "\n"
    if args.output == "-":
        sys.stdout.write(text)
    else:
        Path(args.output).write_text(text, encoding="utf-8")
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for given in args.option:
        key, separator, value = given.partition("=")
        if not separator or not key:
            raise ValueError(f"--option {given!r} is not KEY=VALUE")
        try:
            options[key.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            options[key.replace("-", "_")] = value
    named = {"device": args.device, "dtype": args.dtype, "batch_tokens": args.batch_tokens, "cache": args.cache}
    options.update({key: value for key, value in named.items() if value is not None})
    if args.progress:
        options["progress"] = True
    return options
