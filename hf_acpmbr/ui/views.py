"""What the page shows of an Analysis: HTML, table rows and the heat map's data. Every text is escaped."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

import numpy as np

from ..candidates import FloatArray, IntArray
from ..differences import highlighted
from ..utilities import Utility
from .analysis import Analysis, Choice, intervals

Cell: TypeAlias = "str | int | float | None"  # of a table; None where nothing is known
_COMPARED = ("method", "translation", "true expected utility", "calls", "cost", "time", "matrix error")
_NOTE = (
    "Press a column's name to sort by it. Utilities are on a 0–100 scale; ± is the 95% interval against the other "
    "candidates, where the completion knows it."
)


def comparison(analysis: Analysis) -> str:
    """All methods' choices as a table, with what differs from the recipe's choice highlighted."""
    own = analysis.decision.text
    rows = [_compared(analysis, choice, own) for choice in analysis.choices]
    note = "Marked: what differs from this recipe's choice; ‸ where words of it are missing."
    if analysis.truth is None:
        note += " Tick “score all pairs” to see full MBR and the true expected utilities."
    else:
        note += " Rounds, AC-PMBR, PMBR and halving spend what this recipe did."
    wordy = ("method", "translation", "calls")
    header = "".join(
        f"<th scope='col' class='{'text' if name in wordy else 'number'}'>{name}</th>" for name in _COMPARED
    )
    return (
        f"<blockquote class='chosen'>{escape(own)}</blockquote>"
        f"<div class='wide'><table class='comparison'><thead><tr>{header}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div><p class='note'>{note}</p>"
    )


def _compared(analysis: Analysis, choice: Choice, own: str) -> str:
    text = escape(choice.text) if choice.own else highlighted(choice.text, own)
    same = "" if choice.own or choice.text != own else " <span class='same'>same</span>"
    cells = [
        f"<td class='text'>{text}{same}</td>",
        _number(_percent(choice.expected, analysis.target)),
        f"<td>{escape(called(choice.calls))}</td>",
        _number(f"{analysis.cost(choice.calls):.1%}" if choice.calls else "–"),
        _number("–" if choice.seconds is None else f"{choice.seconds:.2f} s"),
        _number("–" if choice.error is None else f"{choice.error:.1f}"),
    ]
    kind = " class='own'" if choice.own else ""
    return f"<tr{kind}><th scope='row'>{escape(choice.method)}</th>{''.join(cells)}</tr>"


def _number(text: str) -> str:
    return f"<td class='number'>{text}</td>"


def called(calls: Mapping[str, int]) -> str:
    """Scored pairs for people."""
    return " + ".join(f"{count:,} {name}" for name, count in calls.items() if count) or "none"


def _percent(value: float | None, utility: Utility) -> str:
    """A score on a 0–100 scale."""
    return "–" if value is None else f"{100 * value / utility.scale:.1f}"


def table_headers(analysis: Analysis) -> list[str]:
    """The columns of the candidates' table."""
    known = ["True expected", "Rank, full MBR"] if analysis.truth is not None else []
    return ["Rank", "Text", "Draws", "Log-prob.", "Expected", "± 95%", *known]


def table_rows(analysis: Analysis) -> list[list[Cell]]:
    """One row per candidate, the best first; scores on a 0–100 scale, None where nothing is known."""
    pool, decision = analysis.candidates, analysis.decision
    unit = 100 / analysis.target.scale
    widths, exact, full = intervals(analysis), analysis.exact, analysis.full_ranks()
    rows: list[list[Cell]] = []
    for rank, index in enumerate(decision.ranking.tolist(), 1):
        row: list[Cell] = [rank, pool.texts[index], int(pool.counts[index])]
        row.append(None if pool.logprobs is None else round(float(pool.logprobs[index]), 2))
        expected = float(decision.expected[index]) * unit
        row.append(None if np.isnan(expected) else round(expected, 2))
        row.append(None if widths is None else round(float(widths[index]) * unit, 2))
        if exact is not None and full is not None:
            row += [round(float(exact[index]) * unit, 2), full[index]]
        rows.append(row)
    return rows


def candidates_table(analysis: Analysis) -> str:
    """The candidates as an HTML table that the page's script sorts."""
    return sortable(table_headers(analysis), table_rows(analysis), note=_NOTE)


def sortable(headers: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = "") -> str:
    """An HTML table; numbers carry their value for sorting, and the first row is the one that counts."""
    text = [isinstance(value, str) for value in (rows[0] if rows else headers)]
    head = "".join(
        f"<th scope='col' class='{'text' if text[k] else 'number'}' aria-sort='{'none' if k else 'ascending'}'>"
        f"<button type='button'>{escape(name)}</button></th>"
        for k, name in enumerate(headers)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table class='sortable'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='wide tall'>{table}</div><p class='note'>{note}</p>"


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return f"<td class='text'>{escape(value)}</td>"
    if value is None:
        return "<td class='number' data-value='-'>–</td>"
    shown = f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
    return f"<td class='number' data-value='{value}'>{shown}</td>"


def costs(analysis: Analysis) -> str:
    """What each stage cost, and what was saved against scoring all pairs."""
    pool, decision = analysis.candidates, analysis.decision
    n = len(pool)
    rows = [
        ("drawing", f"{n} different of {pool.total} samples", f"{analysis.model_rows:,} decoder rows"),
    ]
    times = [analysis.sampling_seconds]
    for stage, spent in decision.seconds.items():
        counted = {name: decision.calls[name] for name in stage.split("+") if name in decision.calls}
        calls = called(counted) if counted else "no calls"
        rows.append((stage, calls, f"{analysis.cost(counted):.1%} of full MBR" if counted else ""))
        times.append(spent)
    body = ""
    for (stage, what, more), spent in zip(rows, times, strict=True):
        shown = "–" if analysis.decided_again and stage != "drawing" else f"{spent:.2f} s"
        body += f"<tr><th scope='row'>{escape(stage)}</th><td>{escape(what)}</td><td>{more}</td>{_number(shown)}</tr>"
    if analysis.truth is not None:
        what = f"{n * n:,} {analysis.target.name}"
        body += f"<tr class='full'><th scope='row'>full MBR, to compare</th><td>{escape(what)}</td><td>100%</td>"
        body += f"{_number(f'{analysis.truth.seconds:.2f} s')}</tr>"
    return (
        f"<p class='saved'>{_saved(analysis)}</p><div class='wide'><table class='costs'><thead><tr>"
        "<th scope='col'>stage</th><th scope='col'>work</th><th scope='col'></th>"
        "<th scope='col' class='number'>time</th></tr></thead>"
        f"<tbody>{body}</tbody></table></div><p class='note'>Cost counts calls by the size of their network.</p>"
        f"<p class='note signature'><code>{escape(decision.signature)}</code></p>"
    )


def _saved(analysis: Analysis) -> str:
    part = analysis.cost(analysis.decision.calls)
    if analysis.decision.exact:
        return f"All pairs of different candidates were scored: this is full MBR ({escape(analysis.decision.status)})."
    saved = f"{1 - part:.0%} saved" if part < 1 else f"{part:.0%} of full MBR's cost"
    said = f"<strong>{saved}</strong>: {escape(called(analysis.decision.calls))} calls instead of "
    said += f"{len(analysis.candidates) ** 2:,} {escape(analysis.target.name)}. {escape(analysis.decision.status)}."
    if analysis.decided_again:
        said += " Decided again from the scores that were there: nothing was scored."
    return said


def heat_map(analysis: Analysis) -> dict[str, object]:
    """The matrices as the page's script draws them: candidates in the order of the decision, float32 as base64."""
    decision, order = analysis.decision, analysis.decision.ranking
    true = None if analysis.truth is None else analysis.truth.matrix
    completed = analysis.completed
    guide = decision.guides[0].dense() if decision.guides else None
    target = None if decision.observed is None else decision.observed.dense()
    known = [matrix for matrix in (true, completed, target) if matrix is not None]
    low, high = (float(q) for q in np.nanquantile(np.concatenate([m.ravel() for m in known]), [0.02, 0.98]))
    error = None if true is None or completed is None else completed - true
    guides = analysis.guides
    unit = 100 / analysis.target.scale
    panels = [
        _panel("target", "observed target", analysis.target.name, target, order, unit, (low, high)),
        _panel("guide", "observed guide", guides[0].name if guides else "", guide, order, _unit(guides), None),
        _panel("completed", "completed", analysis.target.name, completed, order, unit, (low, high)),
        _panel("true", "true", analysis.target.name, true, order, unit, (low, high)),
        _panel("error", "error", "completed − true", error, order, unit, None, signed=True),
    ]
    texts = [analysis.candidates.texts[index] for index in order.tolist()]
    counts = [int(analysis.candidates.counts[index]) for index in order.tolist()]
    return {"texts": texts, "counts": counts, "panels": panels}


def _unit(guides: Sequence[Utility]) -> float:
    return 100 / guides[0].scale if guides else 1.0


def _panel(
    key: str,
    title: str,
    name: str,
    matrix: FloatArray | None,
    order: IntArray,
    unit: float,
    limits: tuple[float, float] | None,
    signed: bool = False,
) -> dict[str, object]:
    panel: dict[str, object] = {"key": key, "title": title, "name": name, "signed": signed, "data": None}
    if matrix is None:
        return panel
    values = matrix[np.ix_(order, order)] * unit
    scored = int(np.isfinite(values).sum())
    if limits is None:
        low, high = (float(q) for q in np.nanquantile(values, [0.02, 0.98]))
        if signed:
            high = max(abs(low), abs(high), 1e-9)
            low = -high
    else:
        low, high = limits[0] * unit, limits[1] * unit
    panel["data"] = base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")
    return {**panel, "low": low, "high": max(high, low + 1e-9), "scored": scored, "of": values.size}
