"""The picture of the decoder benchmark: regret against cost, the Pareto front marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluation.benchmarks.decoders import Row

# Okabe and Ito's colours, which people with any colour vision can tell apart; shapes differ as well.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p", "d", "8", "H"]
FLOOR = 1e-3  # regret below this is drawn here: the axis is logarithmic and 0 has no place on it


def plot(results: Sequence[tuple[str, Sequence[Row]]], path: Path) -> None:
    """One panel for each set of problems."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    families = list(dict.fromkeys(row.family for _, rows in results for row in rows))
    figure, panels = pyplot.subplots(1, len(results), figsize=(6.2 * len(results), 5.2), squeeze=False)
    for panel, (name, rows) in zip(panels[0], results, strict=True):
        front = sorted((row.cost, max(row.regret, FLOOR)) for row in rows if row.front and row.cost > 0)
        if front:
            panel.step(*zip(*front, strict=True), where="post", color="#999999", linewidth=5, alpha=0.35, zorder=0)
        for k, family in enumerate(families):
            own = sorted((row for row in rows if row.family == family and row.cost > 0), key=lambda row: row.cost)
            if not own:
                continue
            colour, marker = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
            costs, regrets = [row.cost for row in own], [max(row.regret, FLOOR) for row in own]
            panel.plot(costs, regrets, color=colour, marker=marker, linewidth=1, markersize=6, label=family)
            best = [(row.cost, max(row.regret, FLOOR)) for row in own if row.front]
            if best:
                panel.scatter(*zip(*best, strict=True), s=150, facecolors="none", edgecolors=colour, linewidths=1.8)
        panel.set(xscale="log", yscale="log", title=name, xlabel="cost as a share of full MBR")
        panel.title.set_fontsize(9)
        panel.grid(alpha=0.25, which="both")
    panels[0][0].set_ylabel("regret × 100 (ringed: Pareto front)")
    handles = {
        text: handle for panel in panels[0] for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    figure.subplots_adjust(bottom=0.24, left=0.07, right=0.99, top=0.93)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    pyplot.close(figure)
