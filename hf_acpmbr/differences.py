"""Where a text differs from another, word by word."""

from __future__ import annotations

import difflib
import re
from html import escape
from typing import NamedTuple

_WORDS = re.compile(r"\w+|[^\w\s]")


class Piece(NamedTuple):
    """A part of the text; `differs` where the other text has other words, `missing` what it has and this one lacks."""

    text: str
    differs: bool = False
    missing: str = ""


def pieces(text: str, other: str) -> list[Piece]:
    """Cut the whole text into pieces, marking what differs from the other one."""
    spans = list(_WORDS.finditer(text))
    ours, theirs = [span.group() for span in spans], _WORDS.findall(other)
    found, position = [], 0
    for tag, first_theirs, last_theirs, first, last in difflib.SequenceMatcher(
        None, theirs, ours, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            continue
        if tag == "delete":
            start = end = spans[first].start() if first < len(spans) else len(text)
            piece = Piece("", missing=" ".join(theirs[first_theirs:last_theirs]))
        else:
            start, end = spans[first].start(), spans[last - 1].end()
            piece = Piece(text[start:end], differs=True)
        found += [Piece(text[position:start]), piece]
        position = end
    return [*found, Piece(text[position:])]


def highlighted(text: str, reference: str) -> str:
    """Write the text as HTML: words that the reference lacks in this place are marked, gaps are where it has others."""
    shown = []
    for piece in pieces(text, reference):
        if piece.missing:
            shown.append(f"<span class='gap' title='not here: {escape(piece.missing, quote=True)}'>‸</span>")
        elif piece.differs:
            shown.append(f"<mark>{escape(piece.text)}</mark>")
        else:
            shown.append(escape(piece.text))
    return "".join(shown)
