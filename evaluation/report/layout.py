"""A table of cells as text, Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass


class Bold(str):
    """A cell that is significant."""


@dataclass(frozen=True)
class Layout:
    """A table ready to be printed."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str] | None]  # cells; None is a rule between blocks
    notes: Sequence[str] = ()
    numbers: int = 2  # the first column of numbers, which are right-aligned

    def text(self) -> str:
        body = [row and [cell + "*" * isinstance(cell, Bold) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.header, *filter(None, body), strict=True)]

        def line(cells: Sequence[str]) -> str:
            columns = enumerate(zip(cells, widths, strict=True))
            return "  ".join(c.ljust(w) if i < self.numbers else c.rjust(w) for i, (c, w) in columns).rstrip()

        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        lines = [line(row) if row else rule for row in body]
        return "\n".join([self.title, line(self.header), rule, *lines, rule, *self.notes])

    def markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(map(_markdown, cells)) + " |"

        rows = [[f"**{c}**" if isinstance(c, Bold) else c for c in row] for row in self.rows if row]
        marks = ["---" if i < self.numbers else "---:" for i in range(len(self.header))]
        lines = [f"### {_markdown(self.title)}", "", line(list(self.header)), line(marks), *map(line, rows)]
        return "\n".join([*lines, "", *(f"{_markdown(note)}\n" for note in self.notes)]).rstrip() + "\n"

    def latex(self) -> str:
        form = "l" * self.numbers + "r" * (len(self.header) - self.numbers)
        lines = [f"% {_one_line(self.title)}", rf"\begin{{tabular}}{{{form}}}", r"\toprule"]
        lines.append(" & ".join(map(_tex, self.header)) + r" \\ \midrule")
        for row in self.rows:
            cells = [rf"\textbf{{{_tex(c)}}}" if isinstance(c, Bold) else _tex(c) for c in row or ()]
            lines.append(" & ".join(cells) + r" \\" if row else r"\midrule")
        notes = [f"% {_one_line(note)}" for note in self.notes]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"

    def html(self) -> str:
        def cell(tag: str, i: int, text: str) -> str:
            inner = f"<b>{html.escape(text)}</b>" if isinstance(text, Bold) else html.escape(text)
            return f"<{tag}{' class=n' if i >= self.numbers else ''}>{inner}</{tag}>"

        head = "".join(cell("th", i, name) for i, name in enumerate(self.header))
        parts = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
        for row in self.rows:
            cells = "".join(cell("td", i, text) for i, text in enumerate(row or ()))
            parts.append(f"<tr>{cells}</tr>" if row else "</tbody><tbody>")
        notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in self.notes)
        return "".join([*parts, "</tbody></table>"]) + notes


_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "±": r"$\pm$",
    "′": "$'$",
    "–": "--",
    "γ": r"$\gamma$",
    "↓": r"$\downarrow$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in _one_line(text))


def _one_line(text: str) -> str:
    """Join the lines: a name cannot end the comment or the row that it stands in."""
    return " ".join(text.split())


def _markdown(text: str) -> str:
    return _one_line(html.escape(text, quote=False)).replace("|", r"\|")
