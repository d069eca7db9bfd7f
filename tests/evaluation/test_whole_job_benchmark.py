"""The benchmark of the whole job runs the real command and writes what it measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from evaluation.benchmarks import whole_job


def test_rows_and_picture_of_a_small_run_of_this_package_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, rows, picture = (tmp_path / name for name in ("en.txt", "rows.json", "cost.png"))
    source.write_text("It is raining.\n", encoding="utf-8")
    options = ["--model", "embedded", "--input", source, "--samples", 8, "--mbrs-up-to", 0]
    monkeypatch.setattr(sys, "argv", ["whole_job", *map(str, [*options, "--json", rows, "--plot", picture])])
    assert whole_job.main() == 0
    (row,) = json.loads(rows.read_text(encoding="utf-8"))
    assert (row["count"], row["library"], row["same"]) == (8, "hf_acpmbr", "")
    assert row["generation"] > 0
    assert round(row["calls"] ** 0.5) ** 2 == row["calls"] <= 64, "exact MBR scores all pairs of unique candidates"
    assert 0 < row["forward"] < 1, "what is inside cannot take longer than the whole"
    assert f"| 8 | hf_acpmbr | {row['generation']:.1f} |" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
