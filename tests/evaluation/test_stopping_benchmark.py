"""The benchmark of draw until sure on small matrices and one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluation.benchmarks import stopping
from evaluation.benchmarks.matrices import made_up
from hf_acpmbr.recipe import EVERY_SENTENCE, ON_AVERAGE


def test_a_pool_is_taken_until_sure_or_to_a_number() -> None:
    case = made_up(size=60)[0]
    total = int(case.counts.sum())
    best = 100 * (case.expected.max() - case.expected)
    for number in (ON_AVERAGE, EVERY_SENTENCE, 10, total):
        draws, lost, stated, calls = stopping.drawn(case, 1, number)
        assert 10 <= draws <= total
        assert calls > 0
        assert np.isclose(best, lost).any()
        assert np.isnan(stated) if isinstance(number, int) else draws == total or stated <= stopping.BOUND
    assert lost == pytest.approx(0, abs=0.1)


def test_tables_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stopping, "NUMBERS", (16, 64))
    monkeypatch.setattr(stopping, "JOBS", (16,))
    stopping.measure_draws(made_up(size=40)[:2], 1, tmp_path / "draws.png")
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[1:]] == ["on", "every", "16", "64"]
    assert (tmp_path / "draws.png").stat().st_size > 1000
    stopping.main(["jobs", "--sentences", "1"])
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[2:]] == ["auto", "16"]
    assert rows[3][1] == "16"
