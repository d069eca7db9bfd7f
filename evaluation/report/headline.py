"""The key result of a run in one sentence, from its own numbers."""

from __future__ import annotations

from evaluation.report.plots import cost_of, method_name
from evaluation.report.results import Results, RowResults
from evaluation.report.table import metric_name, metric_value


def headline(results: Results) -> str:
    """What the AC-PMBR row that loses least in the cheapest block reaches, against full MBR and PMBR."""
    block = cheapest_block(results)
    guided = [row for row in results.table if row.row.budget == block and row.row.distilled]
    plain = results.rows.get(f"pmbr/{block}")
    full = results.rows.get("mbr")
    if full is None or not guided or any(row.mean("regret") is None for row in guided):
        return by_quality(results)
    best = min(guided, key=lambda row: row.mean("regret") or 0.0)
    said = f"{method_name(best)}, {block}, loses {best.mean('regret') or 0.0:.2f} of full MBR's expected utility × 100 "
    said += f"at {cost_of(results, best) / cost_of(results, full):.1%} of its cost"
    if plain is not None and plain.mean("regret") is not None:
        said += f"; without a guide (PMBR) it is {plain.mean('regret') or 0.0:.2f} "
        said += f"at {cost_of(results, plain) / cost_of(results, full):.1%}"
    return f"{said}."


def cheapest_block(results: Results) -> str:
    """The block of the table whose rows cost least."""
    costs: dict[str, list[float]] = {}
    for row in results.table:
        if row.row.budget:
            costs.setdefault(row.row.budget, []).append(cost_of(results, row))
    return min(costs, key=lambda name: max(costs[name]), default="")


def by_quality(results: Results) -> str:
    """The first metric of beam search or the most probable sample, full MBR and the cheapest block's rows."""
    metric = results.settings.metrics[0]
    shown: list[RowResults] = [results.rows[key] for key in ("map", "mbr") if key in results.rows]
    shown += [row for row in results.table if row.row.budget == cheapest_block(results)]
    values = ", ".join(f"{method_name(row)} {metric_value(results, row, metric):.1f}" for row in shown)
    return f"{metric_name(results, metric)} against the references: {values}."
