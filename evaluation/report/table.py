"""The tables of a run: its own, its significance, and the paper's beside it.

BLEU, chrF and TER are sacrebleu's on the corpus, other metrics means over the sentences (× 100 where they are on 0–1).
MSE is of the completed matrix, or of the distilled utility's own, on the 0–100 scale that the utilities declare; regret
is the expected target utility × 100 lost against full MBR, stated what the decoder expected to lose; cost is the
paper's (parameters / r, in millions); calls are those really made per sentence, by target and by distilled utility.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.report.layout import Bold, Layout
from evaluation.report.results import CORPUS_METRICS, Results, RowResults
from evaluation.report.significance import Comparison, corpus_metric
from evaluation.wmt.rows import completer_name

Compared = Mapping[str, Mapping[str, Comparison]]  # {row: {metric: ...}}
PUBLISHED: dict[str, Any] = json.loads((Path(__file__).resolve().parent / "published.json").read_text("utf-8"))
# Of the columns of the paper: the first is the utility that decided, the last the error of the completed matrix.
PAPER_TARGET, PAPER_ERROR = "BLEURT", "MSE"
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
ROUNDING = 0.005  # losses below it are 0.00 in the table


def metric_name(results: Results, metric: str) -> str:
    return NAMES.get(metric, metric) + ("" if results.higher_is_better(metric) else " ↓")


def metric_value(results: Results, row: RowResults, metric: str) -> float:
    """Score one row's choices by a metric, as the table shows it."""
    if metric in CORPUS_METRICS:
        return float(corpus_metric(metric).corpus_score(row.texts, [results.references]).score)
    return float(row.columns[f"metric:{metric}"].mean() * results.factor(metric))


def row_label(row: RowResults) -> tuple[str, str]:
    """Name a row's method with its completer and block, and its distilled utility."""
    completer = completer_name(row.row)
    label = f"{row.row.label} ({completer})" if completer and not row.row.own else row.row.label
    return f"{label} {row.row.budget}".strip(), row.row.distilled or ""


def build_table(results: Results, compared: Compared | None = None) -> Layout:
    """Lay out the table of one language pair; bold: significantly better than the row's baseline."""
    metrics = results.settings.metrics
    header = ["method", "distilled", *(metric_name(results, metric) for metric in metrics)]
    header += ["MSE", "regret", "stated", "cost M", "target calls", "distilled calls"]
    rows: list[list[str] | None] = []
    block = None
    for row in results.table:
        here = row.row.budget, row.row.key == "oracle", bool(row.row.own)
        if block is not None and here != block:
            rows.append(None)
        block = here
        cells = []
        for metric in metrics:
            better = compared is not None and compared[row.row.key][metric].significant
            cells.append((Bold if better else str)(f"{metric_value(results, row, metric):.2f}"))
        rows.append([*row_label(row), *cells, *_costs(results, row)])
    return Layout(_title(results), header, rows, _notes(results, compared))


def significance_table(results: Results, compared: Compared) -> Layout:
    """Lay out the means ± half of their 95% intervals, and p against the baseline."""
    metrics = results.settings.metrics
    header = ["method", "distilled"]
    for metric in metrics:
        header += [metric_name(results, metric), "p"]
    rows: list[list[str] | None] = []
    for row in results.table:
        cells = list(row_label(row))
        for metric in metrics:
            found = compared[row.row.key][metric]
            cells.append((Bold if found.significant else str)(f"{found.mean:.2f} ± {found.interval:.2f}"))
            cells.append("" if found.p_value is None else f"{found.p_value:.3f}")
        rows.append(cells)
    notes = (
        results.signature,
        "sacreBLEU paired bootstrap; AC-PMBR against PMBR of the same block, the others against MBR",
        "* or bold: better than that baseline, p < 0.05",
    )
    return Layout(_title(results), header, rows, notes)


def published_table(results: Results) -> Layout | None:
    """Lay out the paper's table with this run's figures beside it; None for a language pair that the paper lacks."""
    published = PUBLISHED["tables"].get(results.pair)
    if published is None:
        return None
    columns, ours = PUBLISHED["columns"], our_guides(results)
    metrics = {NAMES.get(name, name): name for name in results.settings.metrics}
    target = results.settings.target
    if target in results.settings.metrics:
        metrics[PAPER_TARGET] = target
    shown = [name for name in columns if name in metrics or name == PAPER_ERROR]
    here = [NAMES.get(target, target) if name == PAPER_TARGET else name for name in shown]
    header = ["method", "distilled", *(f"{name}, paper" for name in columns), *(f"{name}, here" for name in here)]
    rows: list[list[str] | None] = []
    block = None
    for key, values in published.items():
        method, *rest = key.split("/")
        guide = rest.pop() if rest and rest[-1] in PUBLISHED["parameters"] else ""
        if block not in (None, rest):
            rows.append(None)
        block = rest
        row = results.rows.get("/".join(filter(None, (method, *rest, ours.get(guide, "")))))
        if guide and guide not in ours:
            row = None
        cells = [
            f"{_PAPER_LABELS[method]} {' '.join(rest)}".strip(),
            guide.upper() + (f" / {ours[guide]}" if row and guide else ""),
        ]
        cells += ["" if value is None else f"{value:.2f}" for value in values]
        for name in shown:
            if row is None:
                cells.append("")
            elif name == PAPER_ERROR:
                cells.append(_error(row))
            else:
                cells.append(f"{metric_value(results, row, metrics[name]):.2f}")
        rows.append(cells)
    notes = [f"Paper: {PUBLISHED['source']}.", f"Here: {_title(results)}; {_budgets(results)}"]
    if ours:
        notes.append("Our distilled utilities stand beside the paper's of the most similar relative size.")
    if all(value is None for values in published.values() for value in values[:-1]):
        notes.append("Of this direction only the MSE is known to this project.")
    return Layout(f"The paper's Table 1, {results.pair}", header, rows, notes)


_PAPER_LABELS = {"map": "MAP", "mbr": "MBR", "distilled-mbr": "MBR, distilled", "oracle": "Oracle"}
_PAPER_LABELS |= {"pmbr": "PMBR (ALS)", "acpmbr": "AC-PMBR (AC-ALS)"}


def our_guides(results: Results) -> dict[str, str]:
    """Match the paper's distilled utilities with the run's: by name, else by their size relative to the target's."""
    sizes, found = PUBLISHED["parameters"], dict[str, str]()
    guides = [name for name in sizes if name != "target"]
    target = results.parameters(results.settings.target)
    for name in results.settings.distilled:
        own, named = results.parameters(name), name.rpartition("-")[2]
        if name.startswith("bleurt-20-") and named in guides:
            found[named] = name
        elif own > 0 and target > 0:
            ratio = math.log(own / target)
            nearest = min(guides, key=lambda guide: abs(ratio - math.log(sizes[guide] / sizes["target"])))
            found.setdefault(nearest, name)
    return found


def above_stated(results: Results) -> str:
    """Name the rows that lost more than their decoder stated, or say that there are none."""
    found = []
    for row in results.table:
        known = np.isfinite(row.columns["regret"] + row.columns["stated"])
        lost, stated = (row.columns[name][known].sum() / max(known.sum(), 1) for name in ("regret", "stated"))
        if lost > stated + ROUNDING:
            found.append(f"{' '.join(filter(None, row_label(row)))} lost {lost:.2f} and stated {stated:.2f}")
    if found:
        return f"Lost more than stated: {'; '.join(found)}."
    return "No row that states what it expects to lose lost more."


def _title(results: Results) -> str:
    settings, data = results.settings, results.settings.data
    bound = f" of at most {data.longest} characters" if data.longest else ""
    return f"{data.name} {results.pair}, {len(results.indices)} sentences{bound}, N = {settings.drawing.num_candidates}"


def _budgets(results: Results) -> str:
    """Say what the paper's settings mean with this N."""
    if results.settings.density == "rate":
        return "the paper's reduction rates of the drawn pairs."
    unique = results.table[0].columns["unique"].mean()
    return (
        "the paper's scores per row for each unique candidate (low: PMBR 64, AC-PMBR 32 and its guide's 1,024 / r′; "
        f"high: 2, and 1 with its guide's), of rows with {unique:.0f} entries on average where the paper's have 1,024."
    )


def _notes(results: Results, compared: object) -> tuple[str, ...]:
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
    if results.settings.budgets:
        notes.append(f"{', '.join(results.settings.budgets)}: {_budgets(results)}")
    return (*notes, above_stated(results))


def _error(row: RowResults) -> str:
    error = row.mean("completion_error")
    return "" if error is None or row.row.key == "mbr" else f"{error:.2f}"


def _costs(results: Results, row: RowResults) -> list[str]:
    """Write MSE, regret, stated regret, the paper's cost, and real calls of target and distilled utility."""
    regret = row.mean("regret")
    # A decoder that completes states a loss only where nothing was left to complete: no mean of its sentences.
    stated = row.mean("stated") if np.isfinite(row.columns["stated"]).all() else None
    cost = row.mean("paper_cost") if row.row.key != "oracle" else None
    names = (results.settings.target, row.row.distilled)
    calls = [results.calls(row, name) if name else 0.0 for name in names]
    return [
        _error(row),
        "" if regret is None else f"{regret:.2f}",
        "" if stated is None else f"{stated:.2f}",
        "" if not cost else f"{cost / 1e6:.3g}",
        *(f"{count:,.0f}" if count else "" for count in calls),
    ]
