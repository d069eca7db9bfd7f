"""`acpmbr rerank`: choose the best of given candidates."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..candidates import Candidates
from ..decoding import Decision
from ..files import write_atomically
from ..recipe import KEYWORDS
from ..runs.candidate_lists import LIST_FORMATS, CandidateList, candidate_input
from ..runs.formats import Result
from ..runs.inputs import Record
from ..runs.job import Job, Work, run_job
from .options import add_run_arguments, build_mbr

_BATCH = 16
_EXAMPLES = """\
examples:
  acpmbr rerank --input candidates.jsonl --output best.txt
  acpmbr rerank --input samples.txt --candidates-per-source 64 --target bleurt-20 --distilled auto --recipe fast
  acpmbr rerank --input nbest.txt --input-format nbest --decoder mbr --format jsonl --nbest 5
  acpmbr rerank --input candidates.jsonl --decoder mbr --save-matrices matrices
  acpmbr rerank --input candidates.jsonl --output pairs.jsonl --format preferences
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    source = parser.add_argument_group("input")
    source.add_argument(
        "--input",
        default="-",
        metavar="FILE",
        help="JSON lines or parquet (*.parquet) with one source per line: a list of texts, "
        '{"candidates": [...]} or {"candidates": {text: count}}, '
        'with optional "counts", "logprobs", "source", "references"; other fields are repeated in the output '
        "(default: standard input, -)",
    )
    source.add_argument(
        "--input-format",
        choices=LIST_FORMATS,
        help="jsonl (default), lines (with --candidates-per-source), or nbest: id ||| text ||| ..., as Marian and "
        "fairseq write it",
    )
    source.add_argument("--candidates-per-source", type=int, metavar="N", help="for plain text: N lines per source")
    source.add_argument(
        "--nbest-logprobs", action="store_true", help="the last field of an n-best line is the log-probability"
    )
    source.add_argument("--sources", metavar="FILE", help="one source text per line, for utilities that read it")
    output = add_run_arguments(parser)
    output.add_argument(
        "--save-matrices", metavar="DIR", help="write the utility matrices of every source: DIR/000001.npz, ..."
    )


def run(args: argparse.Namespace) -> int:
    for key in args.set:
        if KEYWORDS.get(key, ("",))[0] == "sampling":
            raise ValueError(f"--set {key}: rerank draws no candidates, so it has no effect here; leave it out")
    return run_job(args, Work(candidate_input, reranker, _BATCH))


def reranker(args: argparse.Namespace) -> Job[CandidateList]:
    """Load the utilities that the options name and return what decides with them."""
    mbr = build_mbr(args)
    folder = None if args.save_matrices is None else Path(args.save_matrices)
    if folder is not None and "target" not in mbr.decoder.needs:
        raise ValueError(f"--save-matrices: decoder {mbr.decoder.name!r} has no utility matrix; leave it out")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ValueError(f"--save-matrices {folder} is not a folder")

    def decide(batch: Sequence[Record[CandidateList]]) -> tuple[list[Result], int]:
        items = [record.item for record in batch]
        decisions = mbr.rerank_many(
            [item.candidates for item in items], [item.source for item in items], [item.references for item in items]
        )
        for record, decision in zip(batch, decisions, strict=True):
            if folder is not None:
                save_matrices(folder / f"{record.position + 1:06d}.npz", decision, record.item.references)
        return [Result(d, item.fields, item.source) for d, item in zip(decisions, items, strict=True)], 0

    return Job(mbr, decide)


def save_matrices(path: Path, decision: Decision, references: Candidates | None) -> None:
    """Write the scores of the target and the guides (NaN: not scored), the completed matrix and expected utilities."""
    pseudo = decision.candidates if references is None else references
    arrays = {
        "candidates": np.array(decision.candidates.texts),
        "counts": decision.candidates.counts,
        "references": np.array(pseudo.texts),
        "reference_counts": pseudo.counts,
        "expected": decision.expected,
        **{f"guide_{k}": guide.dense() for k, guide in enumerate(decision.guides)},
    }
    if decision.observed is not None:
        arrays["observed"] = decision.observed.dense()
    if (completed := decision.completed_matrix) is not None:
        arrays["completed"] = completed
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # takes any names
    write_atomically(path, buffer.getvalue())
