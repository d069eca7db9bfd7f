"""Sentences to evaluate on, each set under its own name: built in, Tatoeba, WMT test sets, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import sacrebleu

from evaluation import assets
from evaluation.wmt.settings import DataSettings
from hf_acpmbr.config import suggest

COUNTS = {("wmt22", "en-de"): 2037, ("wmt22", "de-en"): 1984, ("wmt23", "en-de"): 557, ("wmt23", "de-en"): 549}
COLUMNS = ("id", "source", "reference")


def load_sentences(settings: DataSettings, pair: str, folder: str | Path | None = None) -> datasets.Dataset:
    """Load the sentences that the settings name, for one language pair, as (id, source, reference).

    Args:
        folder: of real data; default: the one that ACPMBR_DATA names.
    """
    name = settings.name
    if name == assets.BUILTIN:
        rows = _dataset(assets.read_lines(assets.BUILTIN_SENTENCES), pair, name)
    elif name == "tatoeba":
        rows = _dataset(assets.read_lines(assets.find("tatoeba", "test.en-de.jsonl.gz", folder)), pair, name)
    elif name.endswith((".jsonl", ".jsonl.gz")):
        rows = _dataset(assets.read_lines(Path(name)), pair, name)
    else:
        rows = load_wmt(name, pair, folder)
    if settings.longest is not None:
        rows = rows.select([k for k, source in enumerate(rows["source"]) if len(source) <= settings.longest])
        if not len(rows):
            raise ValueError(f"data.longest={settings.longest} leaves no sentence of {name} {pair}: raise it")
    return rows if settings.limit is None else rows.select(range(min(settings.limit, len(rows))))


def load_wmt(name: str, pair: str, folder: str | Path | None = None) -> datasets.Dataset:
    """Load a WMT test set as (id, source, reference).

    From the data folder if it holds `wmt/<name>.<pair>.jsonl.gz`, else by sacrebleu, which downloads it once. Known
    sizes are checked, so that nobody compares numbers of different sets.

    Args:
        name: "wmt22", "wmt23", or any set that sacrebleu knows.
        pair: "en-de", "de-en", …
        folder: of real data; a set that is not in a folder given here is not looked for elsewhere.
    """
    _languages(pair)
    try:
        file = assets.find("wmt", f"{name}.{pair}.jsonl.gz", folder)
        rows = _dataset(assets.read_lines(file), pair, str(file))
    except assets.MissingData:
        if folder is not None:
            raise
        rows = _from_sacrebleu(name, pair)
    expected = COUNTS.get((name, pair), len(rows))
    if len(rows) != expected:
        raise ValueError(f"{name} {pair} has {len(rows)} sentences, the published set has {expected}: replace it")
    return rows


def _from_sacrebleu(name: str, pair: str) -> datasets.Dataset:
    if name not in sacrebleu.DATASETS:
        raise ValueError(f"data.name {name!r} is not a test set of sacrebleu: {suggest(name, sacrebleu.DATASETS)}")
    try:
        files = sacrebleu.get_source_file(name, pair), sacrebleu.get_reference_files(name, pair)[0]
    except OSError as error:
        layout = assets.ASSETS["wmt"].files
        raise assets.MissingData(
            f"sacrebleu could not download {name} {pair} ({error}): try again, or set {assets.VARIABLE} to a folder "
            f"with {layout}"
        ) from None
    source, reference = (Path(file).read_text(encoding="utf-8").splitlines() for file in files)
    rows = ({"source": s, "reference": r} for s, r in zip(source, reference, strict=True))
    return _dataset(rows, pair, f"{name}.{pair}")


def _dataset(rows: Iterable[Mapping[str, Any]], pair: str, origin: str) -> datasets.Dataset:
    made = [_row(number, row, pair, origin) for number, row in enumerate(rows)]
    if not made:
        raise ValueError(f"{origin} holds no sentences")
    features = datasets.Features({column: datasets.Value("string") for column in COLUMNS})
    return datasets.Dataset.from_list(made, features=features)


def _row(number: int, row: Mapping[str, Any], pair: str, origin: str) -> dict[str, str]:
    source, target = _languages(pair)
    texts = row.get("translation", row)
    for left, right in (("source", "reference"), ("source", "target"), (source, target)):
        if left in texts and right in texts:
            return {"id": str(row.get("id", f"{number:05d}")), "source": texts[left], "reference": texts[right]}
    raise ValueError(
        f"{origin}, row {number}: needs source and reference, or {source} and {target}; has {sorted(texts)}"
    )


def _languages(pair: str) -> tuple[str, str]:
    parts = pair.split("-")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"a language pair is written like en-de, got {pair!r}")
    return parts[0], parts[1]
