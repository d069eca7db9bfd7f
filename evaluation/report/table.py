"""The paper's table of a run, and the table of its significance.

BLEU, chrF and TER are sacrebleu's on the corpus, other metrics means over the sentences (× 100 where they are on 0–1).
MSE is of the completed matrix, or of the distilled utility's own, on the 0–100 scale that the utilities declare;
regret is the expected target utility × 100 lost against full MBR; cost is the paper's (parameters / r, in millions);
calls are those really made per sentence, by target and by distilled utility.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.report.layout import Cell, Layout
from evaluation.report.results import CORPUS_METRICS, Results, RowResults
from evaluation.report.significance import Comparison, corpus_metric

Compared = Mapping[str, Mapping[str, Comparison]]  # {row: {metric: ...}}
PUBLISHED = Path(__file__).resolve().parent / "published.json"
NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "bleurt-20": "BLEURT",
    "xcomet-xl": "XCOMET",
    "xcomet-xxl": "XCOMET-XXL",
    "metricx-24-xl": "MetricX",
    "metricx-24": "MetricX",
    "embedded": "embedded",
}


def metric_name(results: Results, metric: str) -> str:
    return NAMES.get(metric, metric) + ("" if results.higher_is_better(metric) else " ↓")


def metric_value(results: Results, row: RowResults, metric: str) -> float:
    """Score one row's choices by a metric, as the table shows it."""
    if metric in CORPUS_METRICS:
        return float(corpus_metric(metric).corpus_score(row.texts, [results.references]).score)
    return float(row.columns[f"metric:{metric}"].mean() * results.factor(metric))


def row_label(row: RowResults) -> tuple[str, str]:
    return f"{row.row.label} {row.row.budget}".strip(), row.row.distilled or ""


def build_table(results: Results, compared: Compared | None = None, published: bool = False) -> Layout:
    """Lay out the table of one language pair; bold: significantly better than the row's baseline."""
    metrics = results.settings.metrics
    theirs = published_rows(results) if published else {}
    extra = theirs.get("columns", [])
    header = ["method", "distilled", *(metric_name(results, metric) for metric in metrics)]
    header += ["MSE", "regret", "cost M", "target calls", "distilled calls", *(f"{name} (published)" for name in extra)]
    rows: list[tuple[Cell, ...] | None] = []
    block = None
    for row in results.table:
        if block is not None and (row.row.budget, row.row.key == "oracle") != block:
            rows.append(None)
        block = (row.row.budget, row.row.key == "oracle")
        bold = {metric: bool(compared and compared[row.row.key][metric].significant) for metric in metrics}
        cells = [Cell(text) for text in row_label(row)]
        cells += [Cell(f"{metric_value(results, row, metric):.2f}", bold[metric]) for metric in metrics]
        cells += [Cell(text) for text in _costs(results, row)]
        values = theirs.get("rows", {}).get(_published_key(row), {})
        cells += [Cell(f"{values[name]:.2f}" if values.get(name) is not None else "") for name in extra]
        rows.append(tuple(cells))
    return Layout(_title(results), tuple(header), tuple(rows), _notes(results, compared, published and bool(extra)))


def significance_table(results: Results, compared: Compared) -> Layout:
    """Lay out the means ± half of their 95% intervals, and p against the baseline."""
    metrics = results.settings.metrics
    header = ["method", "distilled"]
    for metric in metrics:
        header += [metric_name(results, metric), "p"]
    rows: list[tuple[Cell, ...] | None] = []
    for row in results.table:
        cells = [Cell(text) for text in row_label(row)]
        for metric in metrics:
            found = compared[row.row.key][metric]
            cells.append(Cell(f"{found.mean:.2f} ± {found.interval:.2f}", found.significant))
            cells.append(Cell("" if found.p_value is None else f"{found.p_value:.3f}"))
        rows.append(tuple(cells))
    notes = (
        results.signature,
        "sacreBLEU paired bootstrap; AC-PMBR against PMBR of the same block, the others against MBR",
        "* or bold: better than that baseline, p < 0.05",
    )
    return Layout(_title(results), tuple(header), tuple(rows), notes)


def _title(results: Results) -> str:
    settings, data = results.settings, results.settings.data
    bound = f" of at most {data.longest} characters" if data.longest else ""
    return f"{data.name} {results.pair}, {len(results.indices)} sentences{bound}, N = {settings.drawing.num_candidates}"


def _notes(results: Results, compared: object, published: bool) -> tuple[str, ...]:
    notes = [results.signature]
    for metric in results.settings.metrics:
        if metric in CORPUS_METRICS:
            scorer = corpus_metric(metric)
            scorer.corpus_score(results.table[0].texts, [results.references])
            notes.append(f"{NAMES[metric]}: {scorer.get_signature()}")
    if results.failed:
        notes.append(f"{len(results.failed)} sources failed and are left out")
    if compared:
        notes.append("* or bold: better than PMBR of the same block (AC-PMBR) or than MBR (others), p < 0.05")
    if published:
        notes.append("published: arXiv 2512.01316, M2M100 and BLEURT-20 on all of WMT'23, N = 1,024")
    return tuple(notes)


def _costs(results: Results, row: RowResults) -> list[str]:
    """Write MSE, regret, the paper's cost, and real calls of target and distilled utility."""
    error, regret = row.mean("completion_error"), row.mean("regret")
    cost = row.mean("paper_cost") if row.row.key != "oracle" else None
    names = (results.settings.target, row.row.distilled)
    calls = [results.calls(row, name) if name else 0.0 for name in names]
    return [
        "" if error is None or row.row.key == "mbr" else f"{error:.2f}",
        "" if regret is None else f"{regret:.2f}",
        "" if not cost else f"{cost / 1e6:.3g}",
        *(f"{count:,.0f}" if count else "" for count in calls),
    ]


def published_rows(results: Results) -> dict[str, Any]:
    """Read the paper's numbers for this data, if it has any: {"columns": [...], "rows": {key: {column: value}}}."""
    known = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    found = known["tables"].get(f"{results.settings.data.name}.{results.pair}")
    if found is None:
        return {}
    rows = {row[0]: dict(zip(found["columns"], row[1:], strict=True)) for row in found["rows"]}
    return {"columns": found["columns"], "rows": rows}


def _published_key(row: RowResults) -> str:
    parts = [row.row.method, row.row.budget, (row.row.distilled or "").rpartition("-")[2]]
    return "/".join(part for part in parts if part)
