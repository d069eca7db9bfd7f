"""`acpmbr plan` against the run that it plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_acpmbr.cli import main
from hf_acpmbr.commands.plan import Pace
from hf_acpmbr.utilities import load_utility

SOURCES = ["It is raining.", "Where is the station?", "She reads an old book."]
DRAWING = ["--num-candidates", "24", "--max-new-tokens", "12"]
UTILITIES = ["--target", "embedded-d1", "--distilled", "embedded-d2"]


def planned(capsys: pytest.CaptureFixture[str], source: Path, *more: str) -> tuple[str, dict[str, list[str]]]:
    """The lines above the table, and its rows."""
    assert main(["plan", "--input", str(source), *DRAWING, "--pairs", "8", *more]) == 0
    text, _, table = capsys.readouterr().out.partition("\n\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return text, {row[0]: row[1:] for row in rows}


def test_calls_and_candidates_are_those_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(["", *SOURCES, ""]), encoding="utf-8")
    text, rows = planned(capsys, source, *UTILITIES, "--lines", "3")
    for recipe in ("paper-high",):
        options = [*DRAWING, *UTILITIES, "--recipe", recipe, "--format", "jsonl", "--quiet"]
        assert main(["translate", "--input", str(source), "--output", str(output), *options]) == 0
        made = [record for line in output.read_text().splitlines() if (record := json.loads(line))["status"] != "blank"]
        calls = [sum(record["calls"].get(name, 0) for record in made) / 3 for name in ("embedded-d1", "embedded-d2")]
        assert [float(cell.replace(",", "")) for cell in rows[recipe][:2]] == [round(count) for count in calls]
    unique = [record["unique"] for record in made]
    assert f"{sum(unique) / 3:.0f} unique of 24 candidates (from {min(unique)} to {max(unique)})" in text
    assert rows["exact MBR"][0] == f"{sum(n * n for n in unique) / 3:,.0f}"
    assert "3 of 4 lines tried" in text


def test_utilities_that_encode_texts_are_charged_for_texts() -> None:
    pace = Pace(load_utility("chrf"), per_pair=0.5, per_text=2.0)
    assert pace.seconds(10, 3) == 11.0
    assert pace.seconds(0, 3) == 0.0


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("\n \n", [], "has no line with text: there is nothing to plan"),
        ("a\n", ["--lines", "0"], "--lines must be at least 1, got 0"),
        ("a\n", ["--input", "-"], "plan needs --input FILE"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    source = tmp_path / "in"
    source.write_text(text, encoding="utf-8")
    assert main(["plan", "--input", str(source), *more]) == 2
    assert message in capsys.readouterr().err
