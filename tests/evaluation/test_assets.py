"""Data is found where it is said to be, and what is missing is never replaced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evaluation import assets
from evaluation.benchmarks import completion, peers, scoring, selection
from evaluation.wmt.data import load_sentences
from evaluation.wmt.settings import DataSettings, load_settings


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(assets.VARIABLE, raising=False)


def test_an_argument_goes_before_the_variable(monkeypatch, tmp_path):
    for name in ("given", "variable"):
        (tmp_path / name / "tatoeba").mkdir(parents=True)
        (tmp_path / name / "tatoeba" / "test.en-de.jsonl.gz").write_bytes(b"")
    monkeypatch.setenv(assets.VARIABLE, str(tmp_path / "variable"))
    assert "variable" in str(assets.find("tatoeba", "test.en-de.jsonl.gz"))
    assert "given" in str(assets.find("tatoeba", "test.en-de.jsonl.gz", tmp_path / "given"))
    monkeypatch.setenv(assets.VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(assets.MissingData, match="gone, given by ACPMBR_DATA, is not a folder"):
        assets.find("tatoeba", "test.en-de.jsonl.gz")


@pytest.mark.parametrize("kind", assets.ASSETS)
def test_what_is_missing_is_said_with_its_layout_and_source(kind, tmp_path):
    asset = assets.ASSETS[kind]
    for folder, message in ((None, "set ACPMBR_DATA"), (tmp_path, f"has no {kind}/x")):
        with pytest.raises(assets.MissingData) as caught:
            assets.find(kind, "x", folder)
        for part in (message, asset.files, asset.origin):
            assert part in str(caught.value)


def test_tatoeba_is_never_replaced_by_the_builtin_sentences():
    with pytest.raises(assets.MissingData, match="tatoeba data is needed"):
        load_sentences(DataSettings("tatoeba", ("en-de",)), "en-de")


def test_the_small_configuration_names_the_sentences_that_a_fresh_clone_has():
    settings = load_settings("embedded")
    assert settings.data.name == assets.BUILTIN
    assert len(load_sentences(settings.data, "en-de")) == settings.data.limit
    assert "tatoeba" not in assets.attribution(settings.data.name)
    assert "tatoeba.org" in assets.attribution("tatoeba")


@pytest.mark.parametrize("benchmark", [completion, peers, scoring, selection], ids=lambda m: m.__name__)
def test_benchmarks_refuse_to_run_on_other_data(benchmark, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    with pytest.raises(assets.MissingData, match="set ACPMBR_DATA or pass"):
        benchmark.main()
    assert not list(Path(tmp_path).iterdir())
