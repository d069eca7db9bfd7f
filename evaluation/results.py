"""The merged results of a run: written by the main process, read by table, significance, plots and report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.phases import Corpus, Phase
from evaluation.rows import Row, figure_rows, table_rows
from evaluation.scoring import UtilityPhase
from evaluation.settings import EvaluationSettings, parse_settings
from evaluation.shards import write_atomically
from hf_acpmbr import __version__

# Metrics that sacrebleu computes on the whole corpus; all others are means over the sentences.
CORPUS_METRICS = ("bleu", "chrf", "chrf++", "ter")


def merge(settings: EvaluationSettings, corpus: Corpus, phases: Sequence[Phase], folder: Path) -> None:
    """One file for the pair, sorted by sentence and row, whoever made the shards; and what failed."""
    decisions = next(phase for phase in phases if phase.name == "decisions")
    metrics = [phase for phase in phases if isinstance(phase, UtilityPhase) and phase.kind == "metric"]
    records = []
    for shard in corpus.shards:
        scores = {
            phase.utility_name: {(row["index"], row["row"]): row["score"] for row in phase.store.read(shard)}
            for phase in metrics
        }
        for row in decisions.store.read(shard):
            key = (row["index"], row["row"])
            if all(key in known for known in scores.values()):
                records.append({**row, **{f"metric:{name}": known[key] for name, known in scores.items()}})
    if not records:
        raise RuntimeError(f"no source of {corpus.pair} came through; see the notes in {folder / 'shards'}")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), sink, compression="zstd")
    write_atomically(folder / f"results.{corpus.pair}.parquet", sink.getvalue().to_pybytes())
    failed = {index: message for phase in phases for index, message in phase.failures().items()}
    lines = [json.dumps({"index": i, "id": corpus.sources[i].id, "error": failed[i]}) for i in sorted(failed)]
    write_atomically(folder / f"failures.{corpus.pair}.jsonl", "".join(line + "\n" for line in lines).encode())
    described = {p.utility_name: dict(p.known()) for p in phases if isinstance(p, UtilityPhase)}
    run = {
        "settings": settings.to_dict(),
        "pair": corpus.pair,
        "sentences": [[source.id, source.text, source.reference] for source in corpus.sources],
        "utilities": described,
        "version": __version__,
    }
    text = json.dumps(run, ensure_ascii=False, indent=1)
    write_atomically(folder / f"run.{corpus.pair}.json", (text + "\n").encode())


@dataclass(frozen=True, eq=False)
class RowResults:
    """What one row chose for every sentence, aligned with `Results.indices`."""

    row: Row
    texts: list[str]
    columns: dict[str, np.ndarray]
    calls: list[dict[str, int]]

    def mean(self, column: str) -> float | None:
        """The mean of a column; None where it is unknown."""
        values = self.columns[column]
        return None if np.isnan(values).all() else float(np.nanmean(values))

    @property
    def regret(self) -> np.ndarray:
        """(sentences,) expected target utility lost against full MBR; NaN without full matrices."""
        return np.abs(self.columns["best_expected"] - self.columns["full_expected"])

    @property
    def total_calls(self) -> float:
        """Utility calls for a sentence, on average."""
        return float(np.mean([sum(calls.values()) for calls in self.calls]))


@dataclass(frozen=True, eq=False)
class Results:
    """One language pair of a run."""

    folder: Path
    pair: str
    settings: EvaluationSettings
    utilities: dict[str, dict[str, Any]]
    version: str
    indices: list[int]
    sources: list[str]
    references: list[str]
    rows: dict[str, RowResults]
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def table(self) -> list[RowResults]:
        return [self.rows[row.key] for row in table_rows(self.settings)]

    def figure(self, name: str) -> list[RowResults]:
        return [self.rows[row.key] for row in figure_rows(self.settings) if row.figure == name]

    def scale(self, utility: str) -> float:
        return float(self.utilities.get(utility, {}).get("scale", 1.0))

    def calls(self, row: RowResults, utility: str) -> float:
        """Calls of one utility for a sentence, on average. Settings may name it by a path, decisions never do."""
        name = str(self.utilities.get(utility, {}).get("name", utility.rstrip("/").rpartition("/")[2]))
        return float(np.mean([made.get(name, 0) for made in row.calls]))

    def higher_is_better(self, metric: str) -> bool:
        return metric != "ter" and bool(self.utilities.get(metric, {}).get("higher_is_better", True))

    @cached_property
    def signature(self) -> str:
        """One line from which the run can be repeated."""
        settings, sampling = self.settings, self.settings.sampling
        known = [self.utilities.get(name, {}).get("signature", name) for name in (settings.target, *settings.distilled)]
        budgets = "+".join(f"{name}({_compact(budget)})" for name, budget in settings.budgets.items())
        parts = {
            "hf_acpmbr": self.version,
            "data": f"{settings.data.name}.{self.pair}",
            **({"longest": settings.data.longest} if settings.data.longest else {}),
            "sentences": len(self.indices),
            "model": settings.model.name,
            "n": sampling.num_candidates,
            "sampling": f"eps{sampling.epsilon:g},t{sampling.temperature:g},k{sampling.top_k},p{sampling.top_p:g}",
            "target": known[0].replace("|", ","),
            "distilled": "+".join(known[1:]).replace("|", ","),
            "budgets": budgets,
            "seed": settings.seed,
        }
        return "|".join(f"{name}:{value}" for name, value in parts.items())


def _compact(budget: Any) -> str:
    parts = [budget.preset, "paper" if budget.paper else "", budget.count if budget.count != "drawn" else ""]
    parts += [f"{name}={value}" for name, value in sorted(budget.mbr.items())]
    return ",".join(part for part in parts if part)


def open_results(folder: str | Path) -> list[Results]:
    """The results of every language pair in a run's folder."""
    folder = Path(folder)
    runs = sorted(folder.glob("run.*.json"))
    if not runs:
        raise FileNotFoundError(f"{folder} has no run.*.json: it is no finished run of evaluation/run_wmt.py")
    return [_open(folder, json.loads(path.read_text(encoding="utf-8"))) for path in runs]


def _open(folder: Path, run: dict[str, Any]) -> Results:
    settings = parse_settings(run["settings"])
    table = pq.read_table(folder / f"results.{run['pair']}.parquet")
    keys = np.array(table["row"].to_pylist())
    indices = np.array(table["index"].to_pylist())
    numbers = [name for name in table.column_names if name not in ("index", "row", "text", "calls", "status", "exact")]
    columns = {name: np.array(table[name].to_pylist(), dtype=np.float64) for name in numbers}
    texts, calls = table["text"].to_pylist(), table["calls"].to_pylist()
    rows, done = {}, sorted(set(indices.tolist()))
    for row in [*table_rows(settings), *figure_rows(settings)]:
        chosen = np.flatnonzero(keys == row.key)
        rows[row.key] = RowResults(
            row,
            [texts[i] for i in chosen],
            {name: values[chosen] for name, values in columns.items()},
            [json.loads(calls[i]) for i in chosen],
        )
    failures = (folder / f"failures.{run['pair']}.jsonl").read_text(encoding="utf-8").splitlines()
    failed = {entry["index"]: entry["error"] for entry in map(json.loads, failures)}
    sentences = [run["sentences"][i] for i in done]
    return Results(
        folder,
        run["pair"],
        settings,
        run["utilities"],
        run["version"],
        done,
        [source for _, source, _ in sentences],
        [reference for _, _, reference in sentences],
        rows,
        failed,
    )
