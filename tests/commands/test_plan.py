"""`acpmbr plan` against the run that it plans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hf_acpmbr.cli.main import main
from hf_acpmbr.cli.plan import choose, extrapolate

SOURCES = ["It is raining.", "Where is the station?", "", "She reads an old book.", "Yes.", "Good morning!"]
DRAWING = ["--num-candidates", "24", "--max-new-tokens", "12", "--batch-size", "2"]
UTILITIES = ["--target", "embedded-d1", "--distilled", "embedded-d2"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    return path


def planned(capsys: pytest.CaptureFixture[str], source: Path, *more: str) -> dict[str, dict[str, str]]:
    """The table's rows by recipe."""
    assert main(["plan", "--input", str(source), *DRAWING, *more]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(names, row, strict=True)) for row in rows}


@pytest.mark.filterwarnings("ignore::hf_acpmbr.completion.PaperWarning")
def test_where_all_lines_are_tried_calls_are_those_of_the_run(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = planned(capsys, source, *UTILITIES, "--recipe", "auto", "paper-high")
    for recipe, row in rows.items():
        output = ["--output", str(tmp_path / recipe), "--recipe", recipe, "--format", "jsonl", "--quiet"]
        assert main(["translate", "--input", str(source), *DRAWING, *UTILITIES, *output]) == 0
        made = [json.loads(line) for line in (tmp_path / recipe).read_text().splitlines()]
        calls = [sum(record["calls"].get(name, 0) for record in made) for name in ("embedded-d1", "embedded-d2")]
        assert [row["target calls"], row["guide calls"]] == [f"{count:,}" for count in calls]
        assert row["CPU time"].endswith("± 0.0 s"), "nothing is extrapolated"
        assert float(row["peak memory"].split()[0]) > 0.1
    assert list(rows) == ["auto", "paper-high"]


def test_a_score_cache_makes_no_pair_free_and_gets_none_of_the_plan(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "scores.db"
    cached = ["--target-option", f"cache={cache}"]
    output = ["--output", str(tmp_path / "out"), "--quiet"]
    assert main(["translate", "--input", str(source), *DRAWING, "--decoder", "mbr", *output, *cached]) == 0
    before = cache.read_bytes()
    row = planned(capsys, source, "--decoder", "mbr", *cached)["auto"]
    assert float(row["target calls"].replace(",", "")) > 0
    assert cache.read_bytes() == before


def test_tried_batches_are_spread_over_all_lengths() -> None:
    lengths = np.random.default_rng(0).permutation(101)
    assert sorted(lengths[choose(lengths, 18, 4)]) == [0, 25, 50, 75, 100]
    assert choose(lengths, 10_000, 4).tolist() == list(range(101))
    assert choose(np.array([7, 7]), 8, 4).tolist() == [0, 1], "a small file is tried as a whole"


def test_a_straight_line_is_extrapolated_without_error() -> None:
    lengths = np.arange(10, 110)
    tried = choose(lengths, 4, 1)
    assert extrapolate(3.0 + 0.5 * lengths[tried], lengths, tried) == pytest.approx(
        (300 + 0.5 * lengths.sum(), 0), abs=1e-9
    )
    same = np.full(40, 7)
    assert extrapolate(np.array([2.0, 2.0, 2.0]), same, np.arange(3)) == pytest.approx((80, 0), abs=1e-9)
    assert extrapolate(np.array([1.0, 2.0]), np.array([5, 6]), np.arange(2)) == pytest.approx((3, 0))


@pytest.mark.parametrize("lines", [3, 8, 30])
def test_nineteen_of_twenty_intervals_hold_the_whole_cost(lines: int) -> None:
    random, held = np.random.default_rng(0), []
    for _ in range(2000):
        lengths = random.gamma(2.0, 30.0, size=200).round().astype(int) + 1
        costs = 5.0 + 0.3 * lengths + random.normal(0.0, 4.0, size=200)
        tried = choose(lengths, lines, 1)
        total, margin = extrapolate(costs[tried], lengths, tried)
        held.append(abs(total - costs.sum()) <= margin)
    assert np.mean(held) == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 2000) ** 0.5)


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("\n \n", [], "has no line with text: there is nothing to plan"),
        ("a\n", ["--model", "my model"], "model 'my model' cannot be loaded: give a hub id, a folder"),
        (
            "a\nb\nc\n",
            ["--lines", "2", "--batch-size", "1"],
            "--lines 2 is too few: give 3, which are 3 batches",
        ),
        ("a\n" * 20, ["--lines", "8"], "--lines 8 is too few: give 12, which are 3 batches"),
        ("a\n", ["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        ("a\n", ["--input", "-"], "plan needs --input FILE"),
        ("a\n", ["--input", "nowhere"], "--input nowhere cannot be read"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    source = tmp_path / "in"
    source.write_text(text, encoding="utf-8")
    assert main(["plan", "--input", str(source), *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--output", "out"], ["--recipe", "fasst"]])
def test_options_of_the_output_and_unknown_recipes_are_refused(
    source: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--input", str(source), *option])
    assert option[-1] in capsys.readouterr().err
