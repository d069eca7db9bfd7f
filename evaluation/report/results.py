"""The merged results of a run, as table, significance, plots and page read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from evaluation.wmt.rows import Row, all_rows, completer_name, table_rows
from evaluation.wmt.settings import EvaluationSettings, ModelSettings
from hf_acpmbr.decision import nested_signature, signature_text
from hf_acpmbr.runs.shards import json_digest

Floats = npt.NDArray[np.float64]

# Metrics that sacrebleu computes on the whole corpus; all others are means over the sentences.
CORPUS_METRICS = ("bleu", "chrf", "chrf++", "ter")


@dataclass(frozen=True, eq=False)
class RowResults:
    """What one row chose for each sentence, aligned with `Results.indices`.

    Column `regret` is the expected target utility × 100 lost against full MBR, NaN without full matrices; `stated` is
    what the decoder expected to lose, NaN where it does not say.
    """

    row: Row
    texts: list[str]
    columns: dict[str, Floats]
    calls: list[dict[str, int]]

    def mean(self, column: str) -> float | None:
        """Average a column; None if it is unknown."""
        values = self.columns[column]
        return None if np.isnan(values).all() else float(np.nanmean(values))


@dataclass(frozen=True, eq=False)
class Results:
    """One language pair of a run; `indices` says which of the run's sentences no row has failed on."""

    folder: Path
    pair: str
    settings: EvaluationSettings
    utilities: dict[str, dict[str, Any]]
    version: str
    indices: list[int]
    sources: list[str]
    references: list[str]
    rows: dict[str, RowResults]
    run_sentences: list[list[str]]
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def table(self) -> list[RowResults]:
        return [self.rows[row.key] for row in table_rows(self.settings)]

    def figure(self, name: str) -> list[RowResults]:
        return [row for row in self.rows.values() if row.row.figure == name]

    def factor(self, utility: str) -> float:
        """Return what its scores are multiplied by in tables: 100 if they are on 0–1."""
        return 100.0 if float(self.utilities.get(utility, {}).get("scale", 1.0)) == 1.0 else 1.0

    def parameters(self, utility: str) -> float:
        """Return the size of a utility's network; 0 if it is unknown."""
        return float(self.utilities.get(utility, {}).get("parameters", 0))

    def calls(self, row: RowResults, utility: str) -> float:
        """Average the calls of one utility per sentence. Settings may name it by a path, decisions never do."""
        name = str(self.utilities.get(utility, {}).get("name", utility.rstrip("/").rpartition("/")[2]))
        return float(np.mean([made.get(name, 0) for made in row.calls]))

    def higher_is_better(self, metric: str) -> bool:
        return metric != "ter" and bool(self.utilities.get(metric, {}).get("higher_is_better", True))

    @cached_property
    def sentences(self) -> str:
        """Write the number of sentences and a hash of their sources and references: equal texts, equal hash."""
        return f"{len(self.indices)}#{json_digest(list(zip(self.sources, self.references, strict=True)))[:12]}"

    @cached_property
    def signature(self) -> str:
        """Write one line from which the run can be repeated."""
        settings = self.settings
        names = (settings.target, *settings.distilled)
        known = [nested_signature(self.utilities.get(name, {}).get("signature", name)) for name in names]
        parts = {
            "hf_acpmbr": self.version,
            "data": f"{settings.data.name}.{self.pair}",
            **({"longest": settings.data.longest} if settings.data.longest else {}),
            "sentences": self.sentences,
            "model": settings.model.name,
            "generation": _words(settings.model),
            "sampling": settings.drawing,
            "target": known[0],
            "distilled": known[1:],
            "budgets": [
                f"{name}(paper-{name},{settings.density},{self._completers(name)})" for name in settings.budgets
            ],
            "own": [f"{name}({self._own(name)})" for name in settings.own],
            "seed": settings.seed,
        }
        return signature_text(parts)

    def _completers(self, block: str) -> str:
        rows = [row for row in table_rows(self.settings) if block in (row.budget, row.own)]
        return ",".join(dict.fromkeys(filter(None, map(completer_name, rows))))

    def _own(self, name: str) -> str:
        words = [f"{key}={value}" for key, value in self.settings.own[name].items()]
        return ",".join(filter(None, (*words, self._completers(name))))


def _words(model: ModelSettings) -> list[str]:
    """List all of the model's settings but its name, flat."""
    flat = {name: value for name, value in model.to_dict().items() if name != "name" and not isinstance(value, dict)}
    return [f"{name}={value}" for name, value in {**flat, **model.generate, **model.languages}.items()]


def open_results(folder: str | Path) -> list[Results]:
    """Open the results of each language pair in a run's folder."""
    folder = Path(folder)
    runs = sorted(folder.glob("run.*.json"))
    if not runs:
        raise FileNotFoundError(f"{folder} has no run.*.json: it is not a finished run of evaluation/run_wmt.py")
    return [_open(folder, json.loads(path.read_text(encoding="utf-8"))) for path in runs]


def _open(folder: Path, run: Mapping[str, Any]) -> Results:
    settings = EvaluationSettings.from_dict(run["settings"])
    table = pq.read_table(folder / f"results.{run['pair']}.parquet")
    keys = np.array(table["row"].to_pylist())
    indices = np.array(table["index"].to_pylist())
    numbers = [name for name in table.column_names if name not in ("index", "row", "text", "calls", "status", "exact")]
    columns = {name: np.array(table[name].to_pylist(), dtype=np.float64) for name in numbers}
    texts, calls = table["text"].to_pylist(), table["calls"].to_pylist()
    rows, done = {}, sorted(set(indices.tolist()))
    for row in all_rows(settings):
        chosen = np.flatnonzero(keys == row.key)
        own = {name: values[chosen] for name, values in columns.items()}
        rows[row.key] = RowResults(row, [texts[i] for i in chosen], own, [json.loads(calls[i]) for i in chosen])
    failures = (folder / f"failures.{run['pair']}.jsonl").read_text(encoding="utf-8").splitlines()
    failed = {entry["index"]: entry["error"] for entry in map(json.loads, failures)}
    sentences = [run["sentences"][i] for i in done]
    sources, references = ([row[column] for row in sentences] for column in (1, 2))
    known = run["pair"], settings, run["utilities"], run["version"]
    return Results(folder, *known, done, sources, references, rows, run["sentences"], failed)
