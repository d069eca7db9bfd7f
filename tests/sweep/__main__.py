"""The table of docs/published_models.md: python -m tests.sweep [CLASS ...] prints rows, with --write into the page."""

from __future__ import annotations

import argparse
import inspect
import warnings
from pathlib import Path

import transformers as hf

from tests.sweep.check import Row, check

PAGE = Path(__file__).resolve().parents[2] / "docs" / "published_models.md"
BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"
HEAD = "| class | reads | default | chunked | two sources | prompt | why not |\n|---|---|---|---|---|---|---|\n"


def classes() -> list[str]:
    """List all classes of transformers with `generate`, by name."""
    found = []
    for name in dir(hf):
        kind = getattr(hf, name, None) if not name.startswith("_") else None
        if inspect.isclass(kind) and issubclass(kind, hf.PreTrainedModel) and issubclass(kind, hf.GenerationMixin):
            found.append(name)
    return found


def line(row: Row) -> str:
    """Write a row of the table."""
    return f"| {' | '.join(row)} |".replace("|  |", "| |")


def documented() -> dict[str, Row]:
    """Read the table of the page."""
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[-1].split(END)[0]
    cells = [[cell.strip() for cell in text.strip("| ").split("|")] for text in table.splitlines() if "|" in text]
    rows = [Row(*(own + [""] * (len(Row._fields) - len(own)))) for own in cells[2:]]
    return {row.name: row for row in rows}


def write(rows: dict[str, Row]) -> None:
    """Put the table into the page, with the counts above it."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[-1]
    counts = [f"transformers {hf.__version__}: {len(rows)} classes were run."]
    for reads in ("text", "image", "sound"):
        own = [row for row in rows.values() if row.reads == reads]
        plain = [row for row in own if not row.why.startswith(("not built", "plain generate:"))]
        served = [row for row in plain if row.default in ("prefix-sharing", "chunked")]
        counts.append(
            f"Of {len(own)} that read {reads}, {len(plain)} were built and plain `generate` ran; {len(served)} of "
            "these are served by default."
        )
    table = HEAD + "\n".join(line(rows[name]) for name in sorted(rows, key=str.lower))
    PAGE.write_text(f"{before}{BEGIN}\n" + " ".join(counts) + f"\n\n{table}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CLASS", help="default: all")
    parser.add_argument("--write", action="store_true", help="put the rows into the page")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    hf.logging.set_verbosity_error()
    rows = documented() if args.write else {}
    for name in args.names or classes():
        rows[name] = check(name)
        print(line(rows[name]), flush=True)
    if args.write:
        write(rows)


if __name__ == "__main__":
    main()
