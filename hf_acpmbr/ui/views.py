"""What the page shows of an Analysis: HTML, and the heat maps' data. Every text is escaped, every score on 0–100."""

from __future__ import annotations

import base64
from collections.abc import Mapping
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
    """One line about the decision: what was scored, what it cost, how it went."""
    decision, n = analysis.decision, len(analysis.candidates)
    again = ", decided again without a call" if analysis.decided_again else ""
    if decision.exact:
        return f"{analysis.method} took all {n * n:,} pairs: this is full MBR{again}."
    said = f"{called(decision.calls)} calls instead of {n * n:,}: {_cost(analysis, decision.calls)} of full MBR's cost"
    went = f", in rounds of {_went(analysis)} candidates" if decision.rounds else ""
    return f"{analysis.method}: {said}{went}{again}."


def _went(analysis: Analysis) -> str:
    return " → ".join(map(str, analysis.decision.rounds))


def called(calls: Mapping[str, int]) -> str:
    """Scored pairs for people."""
    return " + ".join(f"{count:,} {name}" for name, count in calls.items() if count) or "none"


def _cost(analysis: Analysis, calls: Mapping[str, int]) -> str:
    return f"{analysis.cost(calls):.1%}" if calls else "–"


def _percent(value: float | None, utility: Utility) -> str:
    return "–" if value is None else f"{100 * value / utility.scale:.1f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _number(text: str, kind: str = "") -> str:
    return f"<td class='number {kind}'>{text}</td>"


def _note(text: str) -> str:
    return f"<p class='note'>{text}</p>"


def _table(kind: str, head: str, body: str) -> str:
    return f"<div class='wide'><table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _head(columns: Mapping[str, str]) -> str:
    return "".join(f"<th scope='col' class='{kind}'>{name}</th>" for name, kind in columns.items())


def comparison(analysis: Analysis) -> str:
    """All methods' choices as a table, with what differs from the recipe's choice highlighted."""
    own, rows = analysis.decision.text, ""
    for place, choice in enumerate(analysis.choices):
        text = highlighted(choice.text, own) if place else escape(own)
        same = " <span class='same'>same</span>" if place and choice.text == own else ""
        rows += f"<tr class='{'other' if place else 'own'}'><th scope='row'>{escape(choice.method)}</th>"
        rows += f"<td class='text'>{text}{same}</td>" + _number(_percent(choice.expected, analysis.target))
        rows += _number(_cost(analysis, choice.calls)) + f"<td class='more'>{escape(called(choice.calls))}</td>"
        rows += _number(_seconds(choice.seconds), "more") + "</tr>"
    if analysis.full:
        note = "Quality is the expected utility over all pairs, from 0 to 100. Methods without a time "
        note += f"chose from the same scores; those that are cheaper than full MBR spend what {analysis.method} did."
    else:
        note = "Tick “score all pairs” to see full MBR and the true quality of every choice."
    head = _head({"method": "", "choice": "text", "quality": "number", "cost": "number"})
    head += _head({"calls": "more", "time": "number more"})
    return (
        f"<blockquote class='chosen'>{escape(own)}</blockquote>"
        + _note("What each method chooses. Marked: words that this recipe's choice does not have; ‸ where it has more.")
        + _table("comparison", head, rows)
        + _note(escape(note))
    )


def candidates_columns(analysis: Analysis) -> dict[str, list[Cell]]:
    """The columns of the candidates' table, best first; columns of which nothing is known are left out."""
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
    """The candidates as a table that the page's script sorts; numbers carry their value for it."""
    columns = candidates_columns(analysis)
    head = "".join(
        f"<th scope='col' class='{'text' if name == 'Text' else 'number'}' "
        f"aria-sort='{'none' if k else 'ascending'}'><button type='button'>{escape(name)}</button></th>"
        for k, name in enumerate(columns)
    )
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in zip(*columns.values(), strict=True))
    note = "Every different candidate, the best first. Press a column's name to sort by it."
    if "± 95%" in columns:
        note += " ± is the 95% interval of the estimate."
    return f"{_note(note)}<div class='tall'>{_table('sortable', head, rows)}</div>"


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return f"<td class='text'>{escape(value)}</td>"
    if value is None:
        return "<td class='number' data-value='-'>–</td>"
    return f"<td class='number' data-value='{value}'>{f'{value:.2f}' if isinstance(value, float) else value}</td>"


def costs(analysis: Analysis) -> str:
    """What each stage cost, what a call of each utility weighs, and the line that repeats the result."""
    decision, pool, target = analysis.decision, analysis.candidates, analysis.target
    rows: list[tuple[str, str, str, float | None]] = []
    if analysis.drawing is not None:
        work = f"{len(pool)} different of {pool.total} samples, {analysis.drawing[0]:,} decoder rows"
        rows.append(("drawing", work, "", analysis.drawing[1]))
    for stage, seconds in decision.seconds.items():
        counted = {name: decision.calls[name] for name in stage.split("+") if name in decision.calls}
        # Decoders that complete no matrix call their arithmetic so, too.
        name = "estimating" if stage == "completion" and decision.completed_matrix is None else stage
        work, cost = (f"{called(counted)} calls", _cost(analysis, counted)) if counted else ("", "")
        rows.append((name, work, cost, None if analysis.decided_again else seconds))
    for full in analysis.full[:1]:
        rows.append(("full MBR, to compare", f"{called(full.calls)} calls", "100%", sum(full.seconds.values())))
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(work)}</td>{_number(cost)}"
        f"{_number(_seconds(seconds))}</tr>"
        for name, work, cost, seconds in rows
    )
    weights = "; ".join(
        f"a call of {guide.name} costs {guide.parameters / target.parameters:.2f} of one of {target.name} "
        f"({guide.parameters:,} against {target.parameters:,} parameters)"
        for guide in analysis.guides
        if guide.parameters and target.parameters
    )
    signature = "" if analysis.decided_again else f"<p class='signature'><code>{escape(decision.signature)}</code></p>"
    return (
        _note("What each stage cost, as a part of scoring all pairs with the target.")
        + _table("costs", _head({"stage": "", "work": "", "cost": "number", "time": "number"}), body)
        + _note(f"Calls are weighted by the size of their network{escape(f': {weights}' if weights else '')}.")
        + signature
    )


def heat_map(analysis: Analysis) -> dict[str, object]:
    """The matrices as the page's script draws them: candidates in the decision's order, all scores in one scale."""
    decision, order, target = analysis.decision, analysis.decision.ranking, analysis.target
    true = analysis.full[0].completed_matrix if analysis.full else None
    completed = None if decision.exact else decision.completed_matrix
    matrices: list[tuple[str, str, Utility, FloatArray | None]] = [
        ("target", "scored", target, None if decision.observed is None else decision.observed.dense()),
        *(
            ("guide", "scored", guide, scores.dense())
            for guide, scores in zip(analysis.guides, decision.guides, strict=False)
        ),
        ("completed", "completed", target, completed),
        ("true", "all scores", target, true),
        ("error", "completed − all scores", target, None if true is None or completed is None else completed - true),
    ]
    shown = {
        (key, f"{title}: {utility.name}"): matrix[np.ix_(order, order)] * (100 / utility.scale)
        for key, title, utility, matrix in matrices
        if matrix is not None and np.isfinite(matrix).any()
    }
    seen = [values.ravel() for (key, _), values in shown.items() if key != "error"]
    low, high = (float(q) for q in np.nanquantile(np.concatenate(seen), _COLOURED)) if seen else (0.0, 100.0)
    panels = []
    for (key, title), values in shown.items():
        error = float(np.nanquantile(np.abs(values), _COLOURED[1])) if key == "error" else None
        panels.append(
            {
                "key": key,
                "title": title,
                "signed": error is not None,
                "data": base64.b64encode(values.astype("<f4").tobytes()).decode("ascii"),
                "low": low if error is None else -error,
                "high": max(high, low + 1e-9) if error is None else max(error, 1e-9),
                "scored": int(np.isfinite(values).sum()),
                "of": values.size,
            }
        )
    return {
        "texts": [analysis.candidates.texts[index] for index in order.tolist()],
        "counts": [int(analysis.candidates.counts[index]) for index in order.tolist()],
        "panels": panels,
    }


def rounds_picture(analysis: Analysis) -> str:
    """A table with a column per round and a row per candidate that was scored, or why there is none."""
    decision, n = analysis.decision, len(analysis.candidates)
    if not decision.rounds:
        why = "all pairs were scored" if decision.exact else "the pairs to score were chosen at once"
        return _note(f"{escape(analysis.method)} had no rounds: {why}.")
    said = _note(f"Who was in which round: {_went(analysis)} candidates. The area of a dot is the number of new pairs.")
    if not decision.trials:
        return said
    pairs = np.stack([np.bincount(trial.rows, minlength=n) for trial in decision.trials], axis=1)
    # Who stayed longest stands on top, so that the picture reads as a funnel.
    tried = [index for index in decision.ranking.tolist() if pairs[index].any()]
    tried.sort(key=lambda index: (index != decision.index, -int(np.flatnonzero(pairs[index])[-1])))
    rows = ""
    for index in tried[:_ROWS]:
        rows += f"<tr class='{'own' if index == decision.index else 'other'}'>"
        rows += f"<td class='text'>{escape(analysis.candidates.texts[index])}</td>"
        for k, count in enumerate(pairs[index].tolist()):
            size = max(_DOTS[0], round(_DOTS[1] * float(np.sqrt(count / pairs.max()))))
            title = f"{count} new pairs in round {k + 1}"
            dot = f"<i style='width:{size}px;height:{size}px' title='{title}'></i>" if count else ""
            rows += f"<td class='dot'>{dot}</td>"
        rows += "</tr>"
    heads = "".join(f"<th scope='col'>{k}<small>{size}</small></th>" for k, size in enumerate(decision.rounds, 1))
    note = f"{len(tried)} of {n} candidates were scored in {len(decision.rounds)} rounds; the first row is the choice."
    note += f" {len(tried) - _ROWS} rows are not shown." if len(tried) > _ROWS else ""
    head = f"<th scope='col'>round<small>candidates in it</small></th>{heads}"
    return said + _table("rounds", head, rows) + _note(note)
