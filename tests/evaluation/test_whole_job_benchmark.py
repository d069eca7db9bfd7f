"""The benchmark of the whole job runs the real command and writes what it measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evaluation.benchmarks import whole_job


def test_the_row_of_a_small_run_of_this_package_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "en.txt"
    source.write_text("It is raining.\n", encoding="utf-8")
    options = ["--model", "embedded", "--input", source, "--samples", 8, "--mbrs-up-to", 0]
    monkeypatch.setattr(sys, "argv", ["whole_job", *map(str, options)])
    assert whole_job.main() == 0
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")]
    count, library, generation, scoring, whole, calls, same = row
    assert (count, library, same) == ("8", "hf_acpmbr", "")
    assert float(generation) > 0
    assert float(whole) == pytest.approx(float(generation) + float(scoring), abs=0.11)
    assert round(int(calls) ** 0.5) ** 2 == int(calls) <= 64, "exact MBR scores all pairs of unique candidates"
