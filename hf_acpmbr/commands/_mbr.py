"""Options, output lines and summary that `translate` and `rerank` share."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from ..config import PRESETS
from ..decoding import DECODERS, Decision
from ..generate import ACPMBR


def add_mbr_arguments(parser: argparse.ArgumentParser) -> None:
    """Utilities, decoder and output."""
    parser.add_argument("--output", default="-", metavar="FILE", help="where to write; - is standard output (default)")
    parser.add_argument("--target", default="chrf", help="utility that decides: name, hub id or path (default: chrf)")
    parser.add_argument("--distilled", action="append", default=[], help="cheaper utility that guides it, or auto")
    parser.add_argument("--preset", choices=PRESETS, default="low", help="budget as in the paper (default: low)")
    parser.add_argument("--decoder", choices=sorted(DECODERS), help="default: acpmbr with --distilled, else pmbr")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="one text a line, or all there is")
    parser.add_argument("--nbest", type=int, default=1, metavar="K", help="list the K best in jsonl (default: 1)")
    parser.add_argument("--resume", action="store_true", help="go on where an unfinished run into --output stopped")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no summary")


def build_mbr(args: argparse.Namespace, tokenizer: Any = None, **settings: Any) -> ACPMBR:
    """The ACPMBR that the options describe."""
    if args.nbest < 1:
        raise ValueError(f"--nbest must be at least 1, got {args.nbest}")
    if args.decoder is not None:
        settings["decoder"] = args.decoder
    return ACPMBR(
        tokenizer, target=args.target, distilled=args.distilled, preset=args.preset, seed=args.seed, **settings
    )


def output_line(args: argparse.Namespace, decision: Decision, extra: Mapping[str, Any]) -> str:
    """The chosen text, or everything as JSON; nothing that differs from run to run, such as seconds."""
    if args.format == "text":
        return decision.text
    record = {
        **extra,
        "text": decision.text,
        "expected": float(decision.expected[decision.index]),
        "nbest": [
            {"text": entry.text, "expected": entry.expected, "count": entry.count}
            for entry in decision.nbest(args.nbest)
        ],
        "unique": len(decision.candidates),
        "drawn": decision.candidates.total,
        "calls": dict(decision.calls),
        "status": decision.status,
        "signature": decision.signature,
    }
    return json.dumps(record, ensure_ascii=False)


class Summary:
    """What a run did and cost, in one line on standard error."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._lines = self._unique = self._drawn = self._rows = 0
        self._calls: dict[str, int] = {}

    def add(self, decision: Decision) -> None:
        self._lines += 1
        self._unique += len(decision.candidates)
        self._drawn += decision.candidates.total
        for name, count in decision.calls.items():
            self._calls[name] = self._calls.get(name, 0) + count

    def add_rows(self, rows: int) -> None:
        self._rows += rows

    def show(self, resumed: int) -> None:
        parts = [f"{self._lines:,} lines in {time.perf_counter() - self._start:.1f} s"]
        if resumed:
            parts.append(f"{resumed:,} were there already")
        if self._lines:
            parts.append(f"{self._unique:,} unique of {self._drawn:,} candidates")
        if self._rows:
            parts.append(f"{self._rows:,} decoder rows")
        parts.extend(f"{count:,} {name} calls" for name, count in self._calls.items())
        print("; ".join(parts), file=sys.stderr)
