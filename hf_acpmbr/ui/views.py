"""What the page shows of an Analysis: HTML, and the heat maps' data. Every text is escaped, every score on 0–100."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TypeAlias

import numpy as np

from ..candidates import FloatArray
from ..differences import highlighted
from ..scoring import Utility
from .analysis import Analysis

Cell: TypeAlias = "str | int | float | None"  # of a table; None if nothing is known
_NORMAL_95 = 1.96
_COLOURED = [0.02, 0.98]  # quantiles at the ends of the colour scale, so that single scores do not take it all
_ROWS = 24  # of the picture of the rounds
_DOTS = (6, 22)  # their smallest and largest diameter in it, in pixels


def headline(analysis: Analysis) -> str:
    """Say in one line what was scored, what it cost, how it went and what the choice may lose."""
    decision, n = analysis.decision, len(analysis.candidates)
    ended = "" if decision.draws is None else f" Drawing ended: {decision.status.rpartition('; ')[2]}."
    if decision.exact:
        return f"{analysis.method} took all {n * n:,} pairs: this is full MBR.{ended}"
    said = f"{called(decision.calls)} calls instead of {n * n:,}, {_cost(analysis, decision.calls)} of full MBR's cost"
    went = f", in {len(decision.rounds)} rounds" if decision.rounds else ""
    loses = ""
    if decision.expected_regret is not None:
        lost = 100 * decision.expected_regret / analysis.target.scale
        loses = f". It expects to lose {lost:.2f} of 100 against full MBR"
    return f"{analysis.method}: {said}{went}{loses}.{ended}"


def called(calls: Mapping[str, int]) -> str:
    """Write scored pairs for people."""
    return " + ".join(f"{count:,} {name}" for name, count in calls.items() if count) or "none"


def _cost(analysis: Analysis, calls: Mapping[str, int]) -> str:
    return f"{analysis.cost(calls):.1%}" if calls else "–"


def _percent(value: float | None, utility: Utility) -> str:
    return "–" if value is None else f"{100 * value / utility.scale:.1f}"


def _note(text: str) -> str:
    return f"<p class='note'>{text}</p>"


def _table(kind: str, columns: Mapping[str, str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Write a table of cells that are HTML: {name: class} of the columns, (class, cells) of the rows."""
    form = "<button type='button'>{}</button>" if kind == "sortable" else "{}"
    head = "".join(f"<th scope='col' class='{css}'>{form.format(name)}</th>" for name, css in columns.items())
    body = ""
    for row, cells in rows:
        body += f"<tr class='{row}'>"
        for css, cell in zip(columns.values(), cells, strict=True):
            tag, scope = ("th", " scope='row'") if css == "name" else ("td", "")
            body += f"<{tag}{scope} class='{css}'>{cell}</{tag}>"
        body += "</tr>"
    return f"<div class='wide'><table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def comparison(analysis: Analysis) -> str:
    """Show all methods' choices as a table, with what differs from the recipe's choice highlighted."""
    own, rows = analysis.decision.text, list[tuple[str, list[str]]]()
    for place, choice in enumerate(analysis.choices):
        text = highlighted(choice.text, own) if place else escape(own)
        same = " <span class='same'>same</span>" if place and choice.text == own else ""
        cost, calls = _cost(analysis, choice.calls), escape(called(choice.calls))
        quality = _percent(choice.expected, analysis.target)
        rows.append(("other" if place else "own", [escape(choice.method), text + same, quality, cost, calls]))
    if analysis.full:
        note = "Quality: expected utility over all pairs, 0 to 100. Cost: a share of full MBR's. Other decoders are "
        note += "shown as the recipe “fast” has them."
    else:
        note = "Tick “score all pairs” to see full MBR and the true quality of every choice."
    columns = {"method": "name", "choice": "text", "quality": "number", "cost": "number", "calls": "more"}
    return (
        f"<blockquote class='chosen'>{escape(own)}</blockquote>"
        + _note("What each method chooses. Marked: words that this recipe's choice does not have; ‸ where it has more.")
        + _table("comparison", columns, rows)
        + _note(escape(note))
    )


def candidates_columns(analysis: Analysis) -> dict[str, list[Cell]]:
    """List the columns of the candidates' table, best first, without those of which nothing is known."""
    pool, decision, order = analysis.candidates, analysis.decision, analysis.decision.ranking.tolist()
    unit = 100 / analysis.target.scale

    def column(values: FloatArray | None, factor: float = unit) -> list[Cell]:
        if values is None:
            return [None] * len(order)
        return [None if np.isnan(values[i]) else round(float(values[i]) * factor, 2) for i in order]

    full = analysis.full[0] if analysis.full else None
    ranks = {index: rank for rank, index in enumerate(full.ranking.tolist(), 1)} if full else {}
    columns: dict[str, list[Cell]] = {
        "Rank": list(range(1, len(order) + 1)),
        "Text": [pool.texts[i] for i in order],
        "Draws": [int(pool.counts[i]) for i in order],
        "Log-prob.": column(pool.logprobs, 1.0),
        "Estimate": column(decision.expected),
        "± 95%": column(decision.deviation, unit * _NORMAL_95),
        "Quality": column(full.expected if full else None),
        "Rank, full MBR": [ranks.get(i) for i in order],
    }
    return {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}


def candidates_table(analysis: Analysis) -> str:
    """Show the candidates as a table that the page's script sorts."""

    def shown(cell: Cell) -> str:
        return "–" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else escape(str(cell))

    columns = candidates_columns(analysis)
    rows = (("", [shown(cell) for cell in row]) for row in zip(*columns.values(), strict=True))
    note = "Every different candidate, the best first. Press a column's name to sort by it."
    if "± 95%" in columns:
        note += " ± is the 95% interval of the estimate."
    head = {name: "text" if name == "Text" else "number" for name in columns}
    return f"{_note(note)}<div class='tall'>{_table('sortable', head, rows)}</div>"


def costs(analysis: Analysis) -> str:
    """Show what each stage cost, what a call of each utility weighs, and the line that repeats the result."""
    decision, pool, target = analysis.decision, analysis.candidates, analysis.target
    rows: list[tuple[str, str, str, float]] = []
    if analysis.drawing is not None:
        work = f"{len(pool)} different of {pool.total} samples, {analysis.drawing[0]:,} decoder rows"
        rows.append(("drawing", work, "", analysis.drawing[1]))
    for stage, seconds in decision.seconds.items():
        counted = {stage: decision.calls[stage]} if stage in decision.calls else {}
        work, cost = (f"{called(counted)} calls", _cost(analysis, counted)) if counted else ("", "")
        rows.append((stage, work, cost, seconds))
    for full in analysis.full[:1]:
        rows.append(("full MBR, to compare", f"{called(full.calls)} calls", "100%", sum(full.seconds.values())))
    columns = {"stage": "name", "work": "", "cost": "number", "time": "number"}
    cells = [("", [escape(name), escape(work), cost, f"{time:.2f} s"]) for name, work, cost, time in rows]
    weights = "; ".join(
        f"a call of {guide.name} costs {guide.parameters / target.parameters:.2f} of one of {target.name} "
        f"({guide.parameters:,} against {target.parameters:,} parameters)"
        for guide in analysis.guides
        if guide.parameters and target.parameters
    )
    return (
        _note("What each stage cost, as a share of scoring all pairs with the target.")
        + _table("costs", columns, cells)
        + _note(f"Calls are weighted by the size of their network{escape(f': {weights}' if weights else '')}.")
        + f"<details class='signature'><summary><code>{escape(decision.signature)}</code></summary>"
        f"<code>{escape(decision.full_signature)}</code></details>"
    )


def heat_map(analysis: Analysis) -> dict[str, object]:
    """Return the matrices as the page's script draws them: in the decision's order, all scores in one scale."""
    decision, order, target = analysis.decision, analysis.decision.ranking, analysis.target
    shown: dict[str, tuple[str, FloatArray]] = {}

    def show(key: str, title: str, utility: Utility, matrix: FloatArray | None) -> None:
        if matrix is not None and np.isfinite(matrix).any():
            shown[key] = f"{title}: {utility.name}", matrix[np.ix_(order, order)] * (100 / utility.scale)

    if decision.observed is not None:
        show("target", "scored", target, decision.observed.dense())
    for guide, scores in zip(analysis.guides, decision.guides, strict=False):
        show("guide", "scored", guide, scores.dense())
    show("completed", "completed", target, None if decision.exact else decision.completed_matrix)
    show("true", "all scores", target, analysis.full[0].matrix if analysis.full else None)
    seen = np.concatenate([np.zeros(0), *(values.ravel() for _, values in shown.values())])
    low, high = np.nanquantile(seen, _COLOURED).tolist() if seen.size else (0.0, 100.0)
    return {
        "texts": [analysis.candidates.texts[index] for index in order.tolist()],
        "counts": [int(analysis.candidates.counts[index]) for index in order.tolist()],
        "low": low,
        "high": max(high, low + 1e-9),
        "panels": [
            {
                "key": key,
                "title": title,
                "scored": int(np.isfinite(values).sum()),
                "data": base64.b64encode(values.astype("<f4").tobytes()).decode("ascii"),
            }
            for key, (title, values) in shown.items()
        ],
    }


def rounds_picture(analysis: Analysis) -> str:
    """Show a column per round and a row per candidate that was scored, or say why there is none."""
    decision, n = analysis.decision, len(analysis.candidates)
    if not decision.rounds:
        why = "all pairs were scored" if decision.exact else "the pairs to score were chosen at once"
        return _note(f"{escape(analysis.method)} had no rounds: {why}.")
    sizes = " → ".join(map(str, decision.rounds))
    said = _note(f"Who was in which round: {sizes} candidates. The area of a dot is the number of new pairs.")
    if not decision.trials:
        return said
    pairs = np.stack([np.bincount(trial.rows, minlength=n) for trial in decision.trials], axis=1)
    # Who stayed longest stands on top, so that the picture reads as a funnel.
    tried = [index for index in decision.ranking.tolist() if pairs[index].any()]
    tried.sort(key=lambda index: (index != decision.index, -int(np.flatnonzero(pairs[index])[-1])))

    def dot(count: int, number: int) -> str:
        size = max(_DOTS[0], round(_DOTS[1] * float(np.sqrt(count / pairs.max()))))
        title = f"{count} new pairs in round {number}"
        return f"<i style='width:{size}px;height:{size}px' title='{title}'></i>" if count else ""

    rows = [
        (
            "own" if index == decision.index else "other",
            [escape(analysis.candidates.texts[index]), *map(dot, pairs[index].tolist(), range(1, pairs.shape[1] + 1))],
        )
        for index in tried[:_ROWS]
    ]
    columns = {"round<small>candidates in it</small>": "text"}
    columns |= {f"{k}<small>{size}</small>": "dot" for k, size in enumerate(decision.rounds, 1)}
    note = f"{len(tried)} of {n} candidates were scored in {len(decision.rounds)} rounds; the first row is the choice."
    note += f" {len(tried) - _ROWS} rows are not shown." if len(tried) > _ROWS else ""
    return said + _table("rounds", columns, rows) + _note(note)
