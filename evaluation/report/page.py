"""One self-contained page about a run: `python -m evaluation.report RUN [--output report.html]`.

The key result first; tables with significance that sort, figures, signatures, and the sentences on which the decoders
differ most, with the differences marked. Everything is inside the file, nothing is loaded from anywhere. Beside it lie
the tables in Markdown, or in the formats that are asked for.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evaluation.assets import attribution
from evaluation.command import Parser, run_command
from evaluation.report.layout import Layout
from evaluation.report.plots import cost_of, draw, figures, method_name, svg
from evaluation.report.results import Results, RowResults, open_results
from evaluation.report.significance import compare
from evaluation.report.table import (
    above_stated,
    build_table,
    metric_name,
    metric_value,
    published_table,
    row_label,
    significance_table,
)
from hf_acpmbr.differences import highlighted
from hf_acpmbr.files import write_atomically

FORMS = {"text": ("txt", Layout.text), "markdown": ("md", Layout.markdown), "latex": ("tex", Layout.latex)}
CAPTIONS = {
    "mse_by_cost": "Mean squared error of the matrix that ALS and AC-ALS complete against what was spent: here the "
    "utility calls really made per sentence, those of a distilled utility by its share of the target's parameters "
    "where these are known; beside it the paper's values.",
    "mse_by_gamma": "Mean squared error against γ, the strength of the agreement. The dashed line is PMBR at "
    "about equal cost. The paper took 0.1 at low and 1.0 at high.",
    "quality_by_cost": "Quality of the chosen translations against the utility calls really made.",
}
CSS, SCRIPT = (Path(__file__).resolve().with_name(f"page.{kind}") for kind in ("css", "js"))


def write_report(
    folder: Path,
    output: Path | None = None,
    cases: int = 12,
    formats: Sequence[str] = ("markdown",),
    pictures: Sequence[str] = (),
) -> Path:
    """Write the page, the tables beside it, and the figures in these formats in a folder beside it."""
    output = output or folder / "report.html"
    pairs = open_results(folder)
    for results in pairs if pictures else ():
        draw(results, output.parent / "figures", pictures)
    parts = [_head(pairs)]
    for results in pairs:
        compared = compare(results)
        tables = {"table": build_table(results, compared), "significance": significance_table(results, compared)}
        if (beside := published_table(results)) is not None:
            tables["published"] = beside
        for name, layout in tables.items():
            for form in formats:
                extension, write = FORMS[form]
                path = output.parent / f"{name}.{results.pair}.{extension}"
                write_atomically(path, write(layout).rstrip("\n") + "\n")
        parts.append(_section(results, tables, cases))
    script = f"<script type=module>{SCRIPT.read_text(encoding='utf-8')}</script>"
    page = "".join(["<!doctype html><html lang=en>", *parts, script, "</body></html>\n"])
    return write_atomically(output, page)


def _head(pairs: list[Results]) -> str:
    name = html.escape(pairs[0].settings.name)
    links = "".join(f'<a href="#{p.pair}">{p.pair}</a>' for p in pairs)
    nav = f"<nav>{links}</nav>" if len(pairs) > 1 else ""
    return (
        f"<head><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{name}: AC-PMBR evaluation</title><style>{CSS.read_text(encoding='utf-8')}</style></head><body>"
        f"<h1>AC-PMBR evaluation: {name}</h1><p class=muted>Minimum Bayes risk decoding with few calls of the target "
        'utility and more of its distilled version (<a href="https://arxiv.org/abs/2512.01316">arXiv 2512.01316</a>).'
        f"</p>{nav}"
    )


def _section(results: Results, tables: dict[str, Layout], cases: int) -> str:
    parts = [f'<h2 id="{results.pair}">{html.escape(tables["table"].title)}</h2>']
    first, *others = _figures(results)
    parts.append(f"<p class=key>{html.escape(headline(results))}</p>{first}")
    said = [by_quality(results)] if by_quality(results) != headline(results) else []
    parts += [f"<p>{html.escape(text)}</p>" for text in (*said, above_stated(results))]
    parts.append(f"<h3>Table</h3><p class=note>Press a column's name to sort.</p>{_scrolled(tables['table'])}")
    if "published" in tables:
        parts.append(f"<h3>{html.escape(tables['published'].title)}</h3>{_scrolled(tables['published'])}")
    if results.failed:
        parts.append(f"<p><b>{len(results.failed)} sources failed</b> and are left out.</p>")
    parts.append(f"<h3>Figures</h3>{''.join(others)}" if others else "")
    parts.append(f"<h3>Significance</h3>{_scrolled(tables['significance'])}")
    owner = html.escape(attribution(results.settings.data.name))
    marks = "Marked: what differs from full MBR's choice; ‸ where words of it are missing."
    parts.append(f"<h3>Where the decoders differ</h3><p class=note>{marks} {owner}</p>")
    parts.append(_cases(results, cases))
    settings = html.escape(json.dumps(results.settings.to_dict(), ensure_ascii=False, indent=1))
    parts.append(f"<h3>Signature</h3><p class=signature>{html.escape(results.signature)}</p>")
    parts.append(f"<details><summary>All settings</summary><pre class=note>{settings}</pre></details>")
    return "".join(parts)


def headline(results: Results) -> str:
    """Say in one sentence what full MBR's choice costs the package's first row, and what the paper's best rows lose."""
    full, own = results.rows.get("mbr"), [row for row in results.table if row.row.own][:1]
    guided = [
        [row for row in results.table if row.row.budget == b and row.row.distilled] for b in results.settings.budgets
    ]
    rows = own + [min(block, key=lambda row: row.mean("regret") or 0.0) for block in guided if block]
    if full is None or not rows or any(row.mean("regret") is None for row in rows):
        return by_quality(results)
    said = []
    for row in rows:
        share = cost_of(results, row) / cost_of(results, full)
        said.append(f"{method_name(row)} {row.mean('regret') or 0.0:.2f} at {share:.1%} of its cost")
    return f"Expected utility × 100 lost against full MBR: {'; '.join(said)}."


def by_quality(results: Results) -> str:
    """List the first metric of MAP, beam search, full MBR and the package's rows without a guide."""
    metric = results.settings.metrics[0]
    shown = [
        row for row in results.table if row.row.key in ("map", "beam", "mbr") or (row.row.own and not row.row.distilled)
    ]
    values = ", ".join(f"{method_name(row)} {metric_value(results, row, metric):.1f}" for row in shown)
    return f"{metric_name(results, metric)} against the references: {values}."


def _scrolled(table: Layout) -> str:
    return f"<div class=scroll>{table.html()}</div>"


def _figures(results: Results) -> list[str]:
    parts = []
    drawings = [(name, svg(figure)) for name, figure in figures(results)]  # in their style, with ids that repeat
    # What the key result is about comes first: error or quality by cost.
    for name, drawing in sorted(drawings, key=lambda found: found[0] == "mse_by_gamma"):
        # All figures number their parts alike; inside one page the names must differ.
        for before in ('id="', 'href="#', "url(#"):
            drawing = drawing.replace(before, f"{before}{results.pair}-{name}-")
        parts.append(f"<figure>{drawing}<figcaption>{html.escape(CAPTIONS[name])}</figcaption></figure>")
    return parts


def _cases(results: Results, count: int) -> str:
    """Show the sentences with the most different choices, those first whose choices matter most for the target."""
    rows = results.table
    distinct = np.array([len({row.texts[i] for row in rows}) for i in range(len(results.indices))])
    metric = f"metric:{results.settings.target}"
    spread = np.zeros(len(distinct))
    if metric in rows[0].columns:
        scores = np.array([row.columns[metric] for row in rows])
        spread = scores.max(0) - scores.min(0)
    order = np.lexsort((np.arange(len(distinct)), -spread, -distinct))
    shown = [int(i) for i in order[:count] if distinct[i] > 1]
    if not shown:
        return "<p>All decoders chose the same translation for every sentence.</p>"
    return "".join(_case(results, rows, i) for i in shown)


def _case(results: Results, rows: list[RowResults], i: int) -> str:
    grouped: dict[str, list[RowResults]] = {}
    for row in rows:
        grouped.setdefault(row.texts[i], []).append(row)
    shown = [name for name in results.settings.metrics if f"metric:{name}" in rows[0].columns]
    head = "".join(f"<th class=n>{html.escape(metric_name(results, name))}</th>" for name in shown)
    # Compared with full MBR's choice if there is one, else with the first row's.
    base = next((row.texts[i] for row in rows if row.row.key == "mbr"), rows[0].texts[i])
    lines = []
    for text, chosen in grouped.items():
        names = "<br>".join(html.escape(" ".join(filter(None, row_label(row)))) for row in chosen)
        scores = [chosen[0].columns[f"metric:{name}"][i] * results.factor(name) for name in shown]
        values = "".join(f"<td class=n>{score:.1f}</td>" for score in scores)
        lines.append(f"<tr><td>{names}</td><td>{highlighted(text, base)}</td>{values}</tr>")
    return (
        f"<div class=case><p><b>{html.escape(results.sources[i])}</b></p>"
        f"<p class=muted>Reference: {html.escape(results.references[i])}</p><div class=scroll><table><thead><tr>"
        f"<th>chosen by</th><th>translation</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></div>"
    )


def main() -> None:
    parser = Parser(prog="evaluation.report", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--output", type=Path, help="default: RUN/report.html")
    parser.add_argument("--cases", type=int, default=12, help="number of sentences to show")
    parser.add_argument("--formats", nargs="+", default=["markdown"], choices=FORMS, help="of the tables beside")
    parser.add_argument("--figures", nargs="+", default=[], choices=["png", "svg", "pdf"], help="also write figures/")
    run_command(parser, lambda o: print(write_report(o.run, o.output, o.cases, o.formats, o.figures)))
