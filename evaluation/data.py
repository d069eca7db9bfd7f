"""Sentences to evaluate on: WMT test sets, Tatoeba, files, Hub datasets, and sentences written for this project."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets

from evaluation.settings import DataSettings

ROOT = Path(__file__).resolve().parent
SHARED = ROOT.parents[1] / "shared" / "data"
BUILTIN = ROOT / "sentences.en-de.jsonl"
COUNTS = {("wmt22", "en-de"): 2037, ("wmt22", "de-en"): 1984, ("wmt23", "en-de"): 557, ("wmt23", "de-en"): 549}
COLUMNS = ("id", "source", "reference")


def load_wmt(name: str, pair: str, folder: str | Path | None = None) -> datasets.Dataset:
    """A WMT test set as (id, source, reference).

    From `folder` (default: ../shared/data/wmt where it is there) if it holds `<name>.<pair>.jsonl[.gz]`, else by
    sacrebleu, which downloads it once. Known sizes are checked, so that nobody compares numbers of different sets.

    Args:
        name: "wmt22", "wmt23", or any set that sacrebleu knows.
        pair: "en-de", "de-en", …
    """
    _languages(pair)
    place = SHARED / "wmt" if folder is None else Path(folder)
    for file in (place / f"{name}.{pair}.jsonl.gz", place / f"{name}.{pair}.jsonl"):
        if file.is_file():
            return _checked(_dataset(_read_lines(file), pair, str(file)), name, pair)
    if folder is not None:
        raise FileNotFoundError(
            f"{place} has no {name}.{pair}.jsonl.gz: leave the folder out to download it by sacrebleu"
        )
    return _checked(_from_sacrebleu(name, pair), name, pair)


def load_sentences(settings: DataSettings, pair: str) -> datasets.Dataset:
    """The sentences that the settings name, for one language pair, as (id, source, reference)."""
    name = settings.name
    if name == "tatoeba":
        file = SHARED / "tatoeba" / "test.en-de.jsonl.gz"
        rows = _dataset(_read_lines(file if file.is_file() else BUILTIN), pair, "tatoeba")
    elif name == "builtin":
        rows = _dataset(_read_lines(BUILTIN), pair, name)
    elif Path(name).is_file():
        rows = _dataset(_read_lines(Path(name)), pair, name)
    elif name.startswith("wmt") and "/" not in name:
        rows = load_wmt(name, pair, settings.folder)
    else:
        rows = load_hub(name, pair)
    if settings.longest is not None:
        rows = rows.select([k for k, source in enumerate(rows["source"]) if len(source) <= settings.longest])
        if not len(rows):
            raise ValueError(f"data.longest={settings.longest} leaves no sentence of {name} {pair}: raise it")
    return rows if settings.limit is None else rows.select(range(min(settings.limit, len(rows))))


def load_hub(name: str, pair: str, split: str = "test") -> datasets.Dataset:
    """A dataset on the Hub with columns source and reference (or target), two language codes, or a `translation`."""
    configurations = datasets.get_dataset_config_names(name)
    source, target = _languages(pair)
    known = [c for c in (pair, f"{target}-{source}", f"{source}{target}") if c in configurations]
    return _dataset(datasets.load_dataset(name, known[0] if known else None, split=split), pair, name)


def _from_sacrebleu(name: str, pair: str) -> datasets.Dataset:
    import sacrebleu

    if name not in sacrebleu.DATASETS:
        raise ValueError(f"data.name {name!r} is no test set of sacrebleu: see `sacrebleu --list`")
    source = Path(sacrebleu.get_source_file(name, pair)).read_text(encoding="utf-8").splitlines()
    reference = Path(sacrebleu.get_reference_files(name, pair)[0]).read_text(encoding="utf-8").splitlines()
    rows = ({"source": s, "reference": r} for s, r in zip(source, reference, strict=True))
    return _dataset(rows, pair, f"{name}.{pair}")


def _read_lines(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{file}, line {number}: no JSON ({error})") from None


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


def _checked(rows: datasets.Dataset, name: str, pair: str) -> datasets.Dataset:
    expected = COUNTS.get((name, pair))
    if expected is not None and len(rows) != expected:
        raise ValueError(
            f"{name} {pair} has {len(rows)} sentences, the published set has {expected}: mend or replace it"
        )
    return rows
