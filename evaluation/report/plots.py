"""The paper's figures of a run.

MSE against cost, with the published values beside; MSE against γ for each block; quality against cost for all rows.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart; markers and dashes say the same again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from evaluation.report.results import Results, RowResults
from evaluation.report.table import PAPER_ERROR, PUBLISHED, metric_name, metric_value
from hf_acpmbr.recipe import PAPER_SAMPLES

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#555555"
MARKERS = ("o", "s", "^", "D", "v", "P")
OWN_MARKERS = ("X", "P", "h", "8")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "hf_acpmbr",  # the same run gives the same file
    "figure.constrained_layout.use": True,
}


def style(place: int) -> dict[str, Any]:
    """Return how the curve at a place looks: PMBR's, then AC-PMBR's with each distilled utility."""
    k = place % len(COLOURS)
    return {"color": COLOURS[k], "marker": MARKERS[k], "linestyle": DASHES[k], "markersize": 5, "linewidth": 1.6}


def method_name(row: RowResults) -> str:
    """Name a row by method, block and what guides it."""
    return " ".join(filter(None, (series_name(row), row.row.budget)))


def series_name(row: RowResults) -> str:
    """Name a row's method and what guides it."""
    return f"{row.row.label} ({row.row.distilled})" if row.row.distilled else row.row.label


def series_of(results: Results, rows: Sequence[RowResults]) -> Iterator[tuple[list[RowResults], dict[str, Any]]]:
    """Yield the rows of each method, and how their curve looks and is called: the same in all figures."""
    for place, name in enumerate(["PMBR", *(f"AC-PMBR ({guide})" for guide in results.settings.distilled)]):
        if curve := [row for row in rows if series_name(row) == name]:
            yield curve, {"label": name, **style(place)}


def cost_of(results: Results, row: RowResults) -> float:
    """Return a row's cost per sentence: calls really made, weighted by their utilities' sizes if these are known."""
    if not (size := results.parameters(results.settings.target)):
        return sum(sum(calls.values()) for calls in row.calls) / len(row.calls)
    names = (results.settings.target, *results.settings.distilled)
    return sum(results.calls(row, name) * results.parameters(name) for name in names) / size


def cost_label(results: Results) -> str:
    sized = results.parameters(results.settings.target)
    return "target-size utility calls per sentence" if sized else "utility calls per sentence"


def error_by_cost(results: Results) -> Figure | None:
    """Draw the MSE of the completed matrix against what was spent."""
    rows = results.figure("cost")
    if not rows or rows[0].mean("completion_error") is None:
        return None
    published = published_errors(results.pair)
    figure, panels = plt.subplots(1, 2 if published else 1, figsize=(9.6 if published else 5.6, 3.8), squeeze=False)
    for curve, look in series_of(results, rows):
        points = [(cost_of(results, row), row.mean("completion_error") or nan) for row in curve]  # log(0)
        panels[0][0].plot(*zip(*sorted(points), strict=True), **look)
    panels[0][0].set(xlabel=cost_label(results), ylabel="MSE (0–100 scale)", title=f"This run, {results.pair}")
    for place, (name, points) in enumerate(published.items()):
        panels[0][1].plot(*zip(*points, strict=True), label=name, **style(place))
        panels[0][1].set(xlabel="BLEURT-20-size scores per candidate", title=f"Published, WMT'23 {results.pair}")
    for axes in panels[0]:
        _logarithmic(axes)
        axes.legend(fontsize=8)
    return figure


def published_errors(pair: str) -> dict[str, list[tuple[float, float]]]:
    """Read the paper's MSE by cost, in scores per row of the target's size: {method: [(cost, MSE), ...]}."""
    table, sizes = PUBLISHED["tables"].get(pair, {}), PUBLISHED["parameters"]
    place, found = PUBLISHED["columns"].index(PAPER_ERROR), dict[str, list[tuple[float, float]]]()
    for key, values in table.items():
        method, *rest = key.split("/")
        if method in ("pmbr", "acpmbr"):
            rates, guide = PUBLISHED["rates"][rest[0]], rest[1] if len(rest) > 1 else None
            cost = 1 / rates[method] + (sizes[guide] / sizes["target"] / rates[guide] if guide else 0.0)
            name = f"AC-PMBR ({guide.upper()})" if guide else "PMBR"
            found.setdefault(name, []).append((PAPER_SAMPLES * cost, values[place]))
    return {name: sorted(points) for name, points in found.items()}


def error_by_agreement(results: Results) -> Figure | None:
    """Draw the MSE against γ; the line is PMBR, which has no γ."""
    rows = results.figure("agreement")
    if not rows or rows[0].mean("completion_error") is None:
        return None
    budgets = [name for name in results.settings.budgets if any(row.row.budget == name for row in rows)]
    figure, panels = plt.subplots(1, len(budgets), figsize=(3.6 * len(budgets) + 0.4, 3.5), squeeze=False)
    for axes, budget in zip(panels[0], budgets, strict=True):
        for curve, look in series_of(results, [row for row in rows if row.row.budget == budget]):
            points = [(row.row.x, row.mean("completion_error")) for row in curve]
            axes.plot(*zip(*points, strict=True), **look)
        base = results.rows[f"pmbr/{budget}"].mean("completion_error")
        axes.axhline(base, color=COLOURS[0], linewidth=1.2, linestyle=DASHES[1], label="PMBR")
        axes.set(xlabel="γ", title=f"{budget}, {results.pair}", ylim=(0, None))
    panels[0][0].set_ylabel("MSE (0–100 scale)")
    panels[0][-1].legend(fontsize=8)
    return figure


def quality_by_cost(results: Results) -> Figure | None:
    """Draw the first metric against what was spent, for all decoders: curves if there are several budgets."""
    metric = results.settings.metrics[0]
    figure, axes = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
    curves = results.figure("cost") or [row for row in results.table if row.row.budget]
    for curve, look in series_of(results, curves):
        points = sorted((cost_of(results, row), metric_value(results, row, metric)) for row in curve)
        axes.plot(*zip(*points, strict=True), **look)
    for row in results.table:
        quality = metric_value(results, row, metric)
        if row.row.key in ("map", "beam", "oracle"):
            axes.axhline(quality, color=GREY, linewidth=1, linestyle="--" if row.row.key == "oracle" else ":")
            axes.annotate(row.row.label, (0.005, quality), xycoords=axes.get_yaxis_transform(), va="bottom", color=GREY)
        elif row.row.full or row.row.own:
            k = 0 if row.row.distilled is None else results.settings.distilled.index(row.row.distilled) + 1
            colour = "black" if k == 0 else COLOURS[k]
            marker = "*" if k == 0 else MARKERS[k]
            if row.row.own:
                marker = OWN_MARKERS[list(results.settings.own).index(row.row.own) % len(OWN_MARKERS)]
            dot: dict[str, Any] = {"color": colour, "marker": marker, "s": 90, "zorder": 3, "edgecolors": "black"}
            axes.scatter(cost_of(results, row), quality, label=method_name(row), **dot)
    _logarithmic(axes, vertical=False)
    name = metric_name(results, metric)
    axes.set(xlabel=cost_label(results), ylabel=name, title=f"Quality by cost, {results.pair}")
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    return figure


FIGURES = {"mse_by_cost": error_by_cost, "mse_by_gamma": error_by_agreement, "quality_by_cost": quality_by_cost}


def _logarithmic(axes: Axes, vertical: bool = True) -> None:
    axes.set(xscale="log", yscale="log" if vertical else "linear")
    for axis in (axes.xaxis, axes.yaxis) if vertical else (axes.xaxis,):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def figures(results: Results) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) of one language pair; each is closed when the next is asked for."""
    with plt.rc_context(STYLE):
        for name, make in FIGURES.items():
            figure = make(results)
            if figure is not None:
                yield name, figure
                plt.close(figure)


def svg(figure: Figure) -> str:
    """Write a figure as the text of an SVG element."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def draw(results: Results, folder: Path, formats: Sequence[str]) -> None:
    """Write all figures of one language pair to files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures(results):
        for form in formats:
            path = folder / f"{name}.{results.pair}.{form}"
            figure.savefig(path, dpi=160, metadata={"Date": None} if form == "svg" else None)
