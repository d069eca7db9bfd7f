from __future__ import annotations

from pathlib import Path

import pytest

from hf_acpmbr.cli import main

from .test_models import needs_translator


@needs_translator
def test_demo_translates_a_sentence_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    assert main(["demo", "--source", "She is reading a book.", "--candidates", "32", "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    for name in ("MAP (beam 5)", "MBR", "PMBR", "AC-PMBR", "AC-PMBR, rounds"):
        assert f"\n  {name} " in printed
    for word in ("She is reading a book.", "saved", "MSE"):
        assert word in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_translator
@pytest.mark.slow
def test_demo_shows_both_directions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--picture", ""]) == 0
    printed = capsys.readouterr().out
    assert printed.count("en→de") == printed.count("de→en") == 6


def test_demo_refuses_an_unknown_language(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--source", "Hi.", "--to", "fr"])
    assert "invalid choice" in capsys.readouterr().err
