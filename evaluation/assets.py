"""Where data lies: a folder given as an argument, else the one that ACPMBR_DATA names, else what is built in, by name.

Only this file knows. Missing data is an error that says how to get it; nothing takes its place.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "ACPMBR_DATA"
BUILTIN = "builtin"
BUILTIN_SENTENCES = Path(__file__).resolve().with_name("builtin.en-de.jsonl")
DATA_HELP = f"folder of real data, laid out as evaluation/README.md says (default: the variable {VARIABLE})"
DATA_OR_BUILTIN_HELP = f"{DATA_HELP}, or '{BUILTIN}' for data made up by this project"


class MissingData(FileNotFoundError):
    """Data that was asked for is not there; the message says how to get it."""


@dataclass(frozen=True)
class Asset:
    """A part of the data folder."""

    files: str
    what: str  # is in them
    origin: str  # how to get it


ASSETS = {
    "wmt": Asset(
        "wmt/<set>.<pair>.jsonl.gz",
        "lines of id, source and reference",
        "sacrebleu downloads the same sets: `sacrebleu -t wmt23 -l en-de --echo src ref`",
    ),
    "tatoeba": Asset(
        "tatoeba/{train,dev,test}.en-de.jsonl.gz",
        'lines of {"en": ..., "de": ...}',
        "https://tatoeba.org/en/downloads, or Helsinki-NLP/tatoeba_mt on the Hub (other splits)",
    ),
    "ratings": Asset(
        "ratings/{mqm,bleurt20}.{train,test}.en-de.jsonl.gz",
        "lines of source, reference, hypothesis and a score named mqm or bleurt20",
        "https://github.com/google/wmt-mqm-human-evaluation and the WMT metrics task",
    ),
    "pools": Asset(
        "pools/wmt22.en-de.jsonl.gz",
        "lines of id, source and candidates (the outputs of many systems)",
        "the system outputs of WMT'22, https://github.com/wmt-conference/wmt22-news-systems",
    ),
    "matrices": Asset(
        "matrices/*.npz",
        "score matrices over the unique samples of one source: target, distilled, weak, and counts",
        "any two utilities give them, see hf_acpmbr.scoring and `evaluation.benchmarks.measures.full_matrix`",
    ),
    "pools_fr-en": Asset(
        "pools_fr-en/*.npz",
        "the same as matrices/, with texts and log-probabilities",
        "as for matrices/; `python -m evaluation.benchmarks.matrices` makes them with the embedded models",
    ),
}
ATTRIBUTIONS = {
    "tatoeba": "Sources and references: tatoeba.org, CC BY 2.0 FR.",
    BUILTIN: "Sources and references: the built-in sentences, written for this project.",
}


def data_folder(given: str | Path | None = None) -> Path | None:
    """Return the folder of real data: the argument, else ACPMBR_DATA, else None."""
    chosen = given or os.environ.get(VARIABLE)
    if not chosen:
        return None
    if not Path(chosen).is_dir():
        raise MissingData(f"{chosen}, given {'as an argument' if given else f'by {VARIABLE}'}, is not a folder")
    return Path(chosen)


def find(kind: str, name: str, given: str | Path | None = None) -> Path:
    """Find a file of the data folder (a pattern's folder, for `matrices`), or fail and say how to get it."""
    asset, folder = ASSETS[kind], data_folder(given)
    if folder is None:
        where = f"{kind} data is needed, and no data folder is known: set {VARIABLE} or pass its argument"
    else:
        path = folder / kind / name
        if path.is_file() or (path.is_dir() and any(path.glob("*.npz"))):
            return path
        where = f"{folder} has no {kind}/{name}"
    raise MissingData(f"{where}. Layout: {asset.files} ({asset.what}). Source: {asset.origin}")


def attribution(name: str) -> str:
    """Say whose sentences a data set has."""
    return ATTRIBUTIONS.get(name, f"Sources and references: {name}.")


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL(.gz) file."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{file}, line {number}: not JSON ({error})") from None
