"""`acpmbr rerank`: choose the best of candidates that come from anywhere."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..candidates import Candidates
from ._mbr import Summary, add_mbr_arguments, build_mbr, output_line
from ._resumable import ResumableOutput, batches, progress, read_lines

HELP = "choose the best of given candidates"
_FIELDS = ("candidates", "counts", "logprobs", "source", "references")
_BATCH = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        default="-",
        metavar="FILE",
        help='JSONL, one source a line: a list of texts, or {"candidates": [...]} with optional "counts", "logprobs", '
        '"source", "references"; or plain lines with --candidates-per-source; - is standard input (default)',
    )
    parser.add_argument("--candidates-per-source", type=int, metavar="N", help="plain text input, N lines a source")
    parser.add_argument("--sources", metavar="FILE", help="one source text a line, for utilities that look at it")
    add_mbr_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.resume and args.input == "-":
        raise ValueError("--resume needs --input FILE: standard input cannot be read again")
    entries = _entries(args)
    settings = {key: value for key, value in vars(args).items() if key not in ("command", "resume", "quiet")}
    output = ResumableOutput(args.output, settings, resume=args.resume, batch_size=_BATCH)
    summary = Summary()
    if output.done < len(entries):
        mbr = build_mbr(args)
        with output, progress(len(entries), output.done, args.quiet) as bar:
            for batch in batches(entries, _BATCH, output.done):
                decisions = [mbr.rerank(*_parsed(entry), nbest=args.nbest) for entry in batch]
                known = [{"source": entry["source"]} if "source" in entry else {} for entry in batch]
                output.write(output_line(args, d, extra) for d, extra in zip(decisions, known, strict=True))
                for decision in decisions:
                    summary.add(decision)
                bar.update(len(batch))
    if not args.quiet:
        summary.show(output.done)
    return 0


def _entries(args: argparse.Namespace) -> list[dict[str, Any]]:
    lines = read_lines(args.input)
    size = args.candidates_per_source
    if size is None:
        entries = [_from_json(line, number) for number, line in enumerate(lines, 1)]
    else:
        if size < 1 or len(lines) % size:
            raise ValueError(f"--candidates-per-source {size} does not divide the {len(lines)} lines of the input")
        entries = [{"candidates": lines[start : start + size]} for start in range(0, len(lines), size)]
    if args.sources is not None:
        texts = read_lines(args.sources)
        if len(texts) != len(entries):
            raise ValueError(f"--sources has {len(texts)} lines for {len(entries)} lists of candidates")
        entries = [{**entry, "source": text} for entry, text in zip(entries, texts, strict=True)]
    return entries


def _from_json(line: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"line {number} of the input is no JSON ({error}): use --candidates-per-source for text"
        ) from None
    entry = {"candidates": value} if isinstance(value, list) else value
    if not isinstance(entry, dict) or not entry.get("candidates"):
        raise ValueError(
            f'line {number} of the input has no candidates: give a list of texts or {{"candidates": [...]}}'
        )
    if unknown := sorted(entry.keys() - set(_FIELDS)):
        raise ValueError(f"line {number} of the input has unknown fields {unknown}: known are {list(_FIELDS)}")
    return entry


def _parsed(entry: dict[str, Any]) -> tuple[Candidates, str | None, list[str] | None]:
    candidates = Candidates.from_texts(entry["candidates"], counts=entry.get("counts"), logprobs=entry.get("logprobs"))
    return candidates, entry.get("source"), entry.get("references")
