"""The examples about where candidates come from and where results go, run small on the embedded models."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import Dataset

from .test_examples import run


def test_a_pool_of_several_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("model_pool.py", "--num-candidates", "4", "--max-new-tokens", "12", monkeypatch=monkeypatch, cwd=tmp_path)
    assert capsys.readouterr().out.strip()


def test_preference_pairs_become_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(
        "preference_data.py",
        "--num-candidates",
        "8",
        "--output",
        str(tmp_path / "pairs.parquet"),
        monkeypatch=monkeypatch,
        cwd=tmp_path,
    )
    pairs = Dataset.from_parquet(str(tmp_path / "pairs.parquet"), cache_dir=str(tmp_path / "cache"))
    assert {"prompt", "chosen", "rejected"} <= set(pairs.column_names)
    assert all(row["chosen"] != row["rejected"] for row in pairs)


def test_agreement_of_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        "self_consistency.py",
        "--steps",
        "3",
        "--num-candidates",
        "4",
        "--questions",
        "2",
        monkeypatch=monkeypatch,
        cwd=tmp_path,
    )
    assert capsys.readouterr().out.strip()


def test_candidates_of_ctranslate2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2", reason="the engine is not installed: pip install ctranslate2")
    run("ctranslate2_candidates.py", "--num-candidates", "8", monkeypatch=monkeypatch, cwd=tmp_path)
    assert capsys.readouterr().out.strip()
