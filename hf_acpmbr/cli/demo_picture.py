"""The demo's picture: the matrices of one sentence side by side, and error against cost over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

from ..candidates import FloatArray
from ..decoding import AgreementPMBR, Decision
from ..matrix import Pairs
from ..recipe import PAPER_SAMPLES
from ..scoring import MatrixUtility
from .demo import DEFAULT, FULL, Demo, Example

World: TypeAlias = tuple[Example, MatrixUtility, MatrixUtility]  # a sentence, and both utilities' full matrices
SCORES_PER_ROW = (0.5, 1, 3, 8)
_SHOWN, _CURVES = 3, 8


def draw_picture(examples: Sequence[Example], demo: Demo, path: str) -> None:
    """Write the picture to `path`; the sentence shown is the best translated one of those with many candidates."""
    many = 0.85 * max(len(example.candidates) for example in examples)
    rich = [example for example in examples if len(example.candidates) >= many]
    shown = max(rich, key=lambda example: float(example.decisions[FULL].expected.max()))
    decision = _decided("AC-PMBR", _SHOWN, demo, _world(shown, demo))
    order = shown.decisions[FULL].ranking
    figure = Figure(figsize=(17, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 5, width_ratios=[1, 1, 1, 1, 1.35])
    figure.suptitle(f"{shown.source}  →  {shown.decisions[DEFAULT].text}", fontsize=11)
    low, high = np.quantile(shown.truth, [0.02, 0.98])
    panels: list[tuple[str, FloatArray | None, tuple[float | None, float | None]]] = [
        (f"{demo.target.name}: scored", None if decision.observed is None else decision.observed.dense(), (low, high)),
        (f"{demo.distilled.name}: scored", decision.guides[0].dense() if decision.guides else None, (None, None)),
        (f"completed (MSE {decision.completion_error or 0:.1f})", decision.matrix, (low, high)),
        (f"all {shown.truth.size:,} true scores", shown.truth, (low, high)),
    ]
    for axis, (title, matrix, (vmin, vmax)) in zip(axes, panels, strict=False):
        axis.set_title(title, fontsize=10)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_facecolor("0.93")
        if matrix is not None:
            axis.imshow(matrix[np.ix_(order, order)], vmin=vmin, vmax=vmax, interpolation="nearest")
    axes[0].set_ylabel("candidates, best first")
    axes[0].set_xlabel("pseudo-references")
    _draw_errors(axes[4], examples, demo)
    figure.savefig(path, dpi=130)


def _draw_errors(axis: Axes, examples: Sequence[Example], demo: Demo) -> None:
    """Draw the error of PMBR and AC-PMBR against the part of full MBR's cost that they spend."""
    # Few candidates are scored completely by small budgets and say nothing about completion.
    varied = sorted(examples, key=lambda example: -len(example.candidates))[:_CURVES]
    worlds = [_world(example, demo) for example in varied]
    full = np.array([demo.cost({demo.target.name: example.truth.size}) for example in varied])
    for name in demo.completing:
        points = []
        for budget in SCORES_PER_ROW:
            found = [_decided(name, budget, demo, world) for world in worlds]
            cost = np.array([demo.cost(decision.calls) for decision in found]) / full
            points.append((cost.mean(), np.mean([decision.completion_error or 0.0 for decision in found])))
        axis.plot(*np.transpose(points), marker="o", markersize=3, label=name)
    axis.set(xlabel="cost (part of full MBR)", ylabel="MSE of the completed matrix", xscale="log")
    axis.set_ylim(bottom=0)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_title(f"mean of {len(worlds)} sentence(s)", fontsize=10)
    axis.legend()


def _world(example: Example, demo: Demo) -> World:
    """Score all pairs by both utilities, so that many budgets cost no further calls."""
    texts, pairs = example.candidates.texts, Pairs.full(example.truth.shape)
    guide = demo.distilled.prepare(texts, texts, example.source)(pairs.rows, pairs.columns).reshape(example.truth.shape)
    target = MatrixUtility.standing_for(demo.target, example.truth, texts)
    return example, target, MatrixUtility.standing_for(demo.distilled, guide, texts)


def _decided(name: str, scores_per_row: float, demo: Demo, world: World) -> Decision:
    """Decide one sentence by one method at one budget.

    PMBR spends twice AC-PMBR's target scores; AC-PMBR spends the other half on its guide, as in the paper.
    """
    (example, target, guide), recipe = world, demo.completing[name].recipe
    budgets, guides = {"scores_per_row": 2.0 * scores_per_row}, []
    if isinstance(recipe.decoder, AgreementPMBR):
        ratio = recipe.decoder.budget.rate(PAPER_SAMPLES) / recipe.decoder.guide_budgets[0].rate(PAPER_SAMPLES)
        budgets = {"scores_per_row": scores_per_row, "distilled_scores_per_row": ratio * scores_per_row}
        guides = [guide]
    return recipe.changed(**budgets).decoder.decode(
        example.candidates, target=target, guides=guides, seed=recipe.seed, full_matrix=example.truth
    )
