"""Sentences to evaluate on, each set under its own name: built in, Tatoeba, WMT test sets, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sacrebleu

from evaluation import assets
from evaluation.wmt.settings import LINES, DataSettings
from hf_acpmbr.config import suggest

COUNTS = {("wmt22", "en-de"): 2037, ("wmt22", "de-en"): 1984, ("wmt23", "en-de"): 557, ("wmt23", "de-en"): 549}


@dataclass(frozen=True)
class Source:
    """One sentence to translate, and its translation; `index` is its place in the run."""

    index: int
    id: str
    text: str
    reference: str


def load_sentences(settings: DataSettings, pair: str, folder: str | Path | None = None) -> list[Source]:
    """Load the sentences that the settings name, for one language pair; real data from `folder`, else ACPMBR_DATA."""
    name = settings.name
    if name == assets.BUILTIN:
        rows = _sources(assets.read_lines(assets.BUILTIN_SENTENCES), pair, name)
    elif name == "tatoeba":
        rows = _sources(assets.read_lines(assets.find("tatoeba", "test.en-de.jsonl.gz", folder)), pair, name)
    elif name.endswith(LINES):
        rows = _sources(assets.read_lines(Path(name)), pair, name)
    else:
        rows = load_wmt(name, pair, folder)
    if settings.longest is not None:
        rows = [row for row in rows if len(row.text) <= settings.longest]
        if not rows:
            raise ValueError(f"data.longest={settings.longest} leaves no sentence of {name} {pair}: raise it")
    return [replace(row, index=index) for index, row in enumerate(rows[: settings.limit])]


def load_wmt(name: str, pair: str, folder: str | Path | None = None) -> list[Source]:
    """Load a WMT test set.

    From the data folder if it holds `wmt/<name>.<pair>.jsonl.gz`, else by sacrebleu, which downloads it once. Known
    sizes are checked, so that nobody compares numbers of different sets. What is not in a `folder` given here is not
    looked for elsewhere.
    """
    try:
        file = assets.find("wmt", f"{name}.{pair}.jsonl.gz", folder)
        rows = _sources(assets.read_lines(file), pair, str(file))
    except assets.MissingData:
        if folder is not None:
            raise
        rows = _from_sacrebleu(name, pair)
    expected = COUNTS.get((name, pair), len(rows))
    if len(rows) != expected:
        raise ValueError(f"{name} {pair} has {len(rows)} sentences, the published set has {expected}: replace it")
    return rows


def _from_sacrebleu(name: str, pair: str) -> list[Source]:
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
    return _sources(rows, pair, f"{name}.{pair}")


def _sources(rows: Iterable[Mapping[str, Any]], pair: str, origin: str) -> list[Source]:
    made = [_source(number, row, pair, origin) for number, row in enumerate(rows)]
    if not made:
        raise ValueError(f"{origin} holds no sentences")
    return made


def _source(number: int, row: Mapping[str, Any], pair: str, origin: str) -> Source:
    source, target = pair.split("-")
    texts = row.get("translation", row)
    for left, right in (("source", "reference"), ("source", "target"), (source, target)):
        if isinstance(texts.get(left), str) and isinstance(texts.get(right), str):
            return Source(number, str(row.get("id", f"{number:05d}")), texts[left], texts[right])
    raise ValueError(
        f"{origin}, row {number}: needs source and reference, or {source} and {target}; has {sorted(texts)}"
    )
