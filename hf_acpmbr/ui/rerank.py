"""The second tab: an uploaded JSONL of candidates → the best of each line, to see and to download."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from ..files import write_atomically
from ..mbr import ACPMBR
from ..runs.candidate_lists import CandidateList, candidate_input
from ..runs.formats import OUTPUT_FIELDS, Result, output_line
from ..runs.inputs import Record
from .settings import NO_GUIDE, Limits, check_method
from .views import Cell
from .workbench import Cancelled, Workbench

HEADERS = ["Line", "Chosen", "Expected", "Different", "Drawn", "Calls"]
_FORM = argparse.Namespace(format="jsonl", nbest=5)


@dataclass(frozen=True)
class Reranked:
    """The rows of the table and the file to download."""

    rows: list[list[Cell]]
    file: Path


def rerank_file(
    workbench: Workbench,
    path: str | os.PathLike[str],
    target: str,
    guide: str,
    recipe: str,
    cancelled: Callable[[], bool] = lambda: False,
) -> Generator[str, None, Reranked]:
    """Progress line by line; its value is the result. The file has what `acpmbr rerank --format jsonl` writes."""
    check_method(target, guide, recipe, workbench.offer)
    records = read_records(path, workbench.limits)
    yield "loading utilities"
    guides = [] if guide == NO_GUIDE else [workbench.utility(guide)]
    mbr = ACPMBR(target=workbench.utility(target), distilled=guides, recipe=recipe)
    rows: list[list[Cell]] = []
    lines: list[str] = []
    for number, record in enumerate(records, 1):
        yield f"line {number:,} of {len(records):,}"
        if cancelled():
            raise Cancelled
        item = record.item
        try:
            decision = mbr.rerank(item.candidates, item.source, item.references)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        lines.append(output_line(_FORM, Result(decision, item.fields)))
        pool = decision.candidates
        expected = round(float(decision.expected[decision.index]), 4)
        rows.append([number, decision.text, expected, len(pool), pool.total, decision.total_calls])
    folder = Path(tempfile.mkdtemp(prefix="acpmbr-"))
    return Reranked(rows, write_atomically(folder / "best.jsonl", "\n".join(lines) + "\n"))


def read_records(path: str | os.PathLike[str], limits: Limits) -> list[Record[CandidateList]]:
    """The lines of the file, checked against the limits before anything is computed."""
    size = os.path.getsize(path)
    if size > limits.file_megabytes * 10**6:
        raise ValueError(f"the file has {size / 10**6:.1f} MB, at most {limits.file_megabytes} MB are allowed")
    source = candidate_input(os.fspath(path), "jsonl", size=None, sources=None, logprobs=False, reserved=OUTPUT_FIELDS)
    records: list[Record[CandidateList]] = []
    try:
        for record in source:
            if len(records) == limits.file_lines:
                raise ValueError(f"the file has more than the {limits.file_lines:,} lines that are allowed here")
            _check_size(record, limits)
            records.append(record)
    except ValueError as error:  # where the upload lies on the server is nobody's business
        raise ValueError(str(error).replace(os.fspath(path), "the file,")) from error
    if not records:
        raise ValueError('the file is empty: one line per source, {"candidates": [...]} or a list of texts')
    return records


def _check_size(record: Record[CandidateList], limits: Limits) -> None:
    for pool in (record.item.candidates, record.item.references):
        if pool is None:
            continue
        if len(pool) > limits.candidates:
            raise ValueError(f"{record.where} has {len(pool):,} texts, at most {limits.candidates} are allowed here")
        longest = max(map(len, pool.texts))
        if longest > limits.source_characters:
            raise ValueError(
                f"{record.where} has a text of {longest:,} characters, at most {limits.source_characters:,} are allowed"
            )
