"""The sampling benchmark measures what it says it measures."""

from __future__ import annotations

import pytest

from evaluation.benchmarks.sampling import synthetic_rows


def test_rows_and_entropy_of_a_small_run(capsys: pytest.CaptureFixture[str]) -> None:
    sharp, flat = synthetic_rows(n=32, tokens=5, max_rows=16, nats=[0.3], vocabulary=100, size=64)
    assert sharp.plain_rows == flat.plain_rows == 32 * 5
    assert sharp.nats_per_token == pytest.approx(0.3, abs=0.2)
    assert sharp.shared_rows < sharp.plain_rows / 2
    assert flat.unique == 32
    assert 0 < sharp.shares.forward <= 1
    assert sharp.shares.products > 0
    assert capsys.readouterr().out.count("\n") == 2
