"""The benchmark of a long input kills and resumes the real command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evaluation.benchmarks import corpus


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_a_small_run_is_killed_resumed_and_equal_to_an_uninterrupted_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--lines", "1500", "--kill-at", "0.3", "--compare", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["corpus", *options])
    assert corpus.main() == 0
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")]
    assert row[0] == "1,500"
    assert 450 <= int(row[-2].replace(",", "")) < 1500, "it was killed on its way"
    assert len((tmp_path / "killed.txt").read_text().splitlines()) == 1500
    assert float(row[3]) > 0
