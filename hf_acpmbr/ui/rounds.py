"""The rounds as a picture: who was tried, who stayed."""

from __future__ import annotations

from html import escape

import numpy as np

from .analysis import Analysis

_ROWS = 24
_ROW, _COLUMN, _TOP, _LEFT, _LABEL = 44, 70, 40, 4, 530
_RADIUS = (3.5, 10.0)


def rounds_picture(analysis: Analysis) -> str:
    """An SVG with one column per round and one row per candidate that took part, or why there is none."""
    if not analysis.decision.trials:
        exact = (
            "all pairs were scored" if analysis.decision.exact else "all pairs were chosen at once, before any score"
        )
        return f"<p class='note'>There were no rounds: {exact}.</p>"
    n = len(analysis.candidates)
    pairs = np.stack([np.bincount(trial.rows, minlength=n) for trial in analysis.decision.trials], axis=1)
    # Who stayed longest stands on top, so that the picture reads as a funnel.
    tried = [index for index in analysis.decision.ranking.tolist() if pairs[index].any()]
    tried.sort(key=lambda index: (index != analysis.decision.index, -int(np.flatnonzero(pairs[index])[-1])))
    shown = tried[:_ROWS]
    width = _LEFT + max(pairs.shape[1] * _COLUMN, _LABEL)
    height = _TOP + len(shown) * _ROW + 8
    heads = "".join(
        f"<text x='{_x(k)}' y='14' text-anchor='middle'>round {k + 1}</text>"
        f"<text x='{_x(k)}' y='27' text-anchor='middle' class='small'>{np.count_nonzero(column)} tried</text>"
        for k, column in enumerate(pairs.T)
    )
    rows = "".join(_row(analysis, place, index, pairs) for place, index in enumerate(shown))
    left = n - len(tried)
    known = "the guide and what is known of them beforehand" if analysis.guides else "what is known of them beforehand"
    more = f" {len(tried) - len(shown)} of them are not shown." if len(tried) > len(shown) else ""
    others = f" {left} were judged by {known} alone." if left else ""
    alt = f"{len(tried)} of {n} candidates were tried in {pairs.shape[1]} rounds; the first row is the choice."
    return (
        f"<div class='wide'><svg class='rounds' role='img' aria-label='{alt}' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}'>{heads}{rows}</svg></div>"
        f"<p class='note'>{escape(alt)}{more}{others} "
        "A dot's area is the number of pairs that were scored.</p>"
    )


def _x(k: int) -> float:
    return _LEFT + (k + 0.5) * _COLUMN


def _row(analysis: Analysis, place: int, index: int, pairs: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> str:
    y = _TOP + place * _ROW + 30
    chosen = index == analysis.decision.index
    took = np.flatnonzero(pairs[index])
    most = int(pairs.max())
    line = f"<line x1='{_x(int(took[0]))}' x2='{_x(int(took[-1]))}' y1='{y}' y2='{y}'/>"
    dots = ""
    for k in took.tolist():
        share = np.sqrt(pairs[index, k] / most)
        radius = max(_RADIUS[0], _RADIUS[1] * float(share))
        title = f"<title>{int(pairs[index, k])} pairs in round {k + 1}</title>"
        dots += f"<circle cx='{_x(k)}' cy='{y}' r='{radius:.1f}'>{title}</circle>"
    text = analysis.candidates.texts[index]
    short = text if len(text) <= 66 else text[:65] + "…"
    label = f"<text x='{_LEFT}' y='{y - 16}'>{escape(short)}<title>{escape(text)}</title></text>"
    return f"<g class='{'own' if chosen else 'other'}'>{line}{dots}{label}</g>"
