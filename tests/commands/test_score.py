"""`acpmbr score` on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sacrebleu

from hf_acpmbr.cli.main import main


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {"hypotheses": "a cat\nthe dog\n", "references": "a cat\na dog\n", "sources": "eine Katze\nein Hund\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: str(tmp_path / name) for name in texts}


def score(files: dict[str, str], *more: str) -> list[str]:
    return ["score", "--hypotheses", files["hypotheses"], "--references", files["references"], *more]


def test_prints_scores_of_lines_and_corpus(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(score(files, "--utility", "chrf")) == 0
    result = json.loads(capsys.readouterr().out)
    expected = [sacrebleu.sentence_chrf(h, [r]).score for h, r in [("a cat", "a cat"), ("the dog", "a dog")]]
    assert result["scores"] == pytest.approx(expected)
    assert result["corpus_score"] == pytest.approx(sum(expected) / 2)
    assert (result["lines"], result["utility"], result["higher_is_better"]) == (2, "chrf", True)
    assert result["signature"].startswith("chrf|char_order:6|word_order:0|beta:2|")


def test_options_output_and_cache(files: dict[str, str], tmp_path: Path) -> None:
    output, cache = tmp_path / "scores.json", tmp_path / "cache.db"
    more = ["--utility", "chrf", "--option", "beta=1", f"cache={cache}", "--output", str(output)]
    assert main(score(files, *more)) == 0
    assert json.loads(output.read_text())["signature"].startswith("chrf|char_order:6|word_order:0|beta:1|")
    assert cache.is_file()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--utility", "chrff"], "unknown utility 'chrff'"),
        (["--utility", "chrf", "--option", "betta=1"], "betta"),
        (["--utility", "comet", "--option", "device=cpu"], "needs --sources FILE"),
        (["--utility", "chrf", "--hypotheses", "-", "--references", "-"], "can be standard input"),
        (["--utility", "chrf", "--output", "{references}"], "is the --references file: choose another --output"),
    ],
)
def test_mistakes_are_named(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(score(files, *(word.format(**files) for word in more))) == 2
    assert message in capsys.readouterr().err


def test_files_must_be_aligned(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files["references"]).write_text("only one\n", encoding="utf-8")
    assert main(score(files, "--utility", "chrf")) == 2
    assert "--references has 1 lines, --hypotheses has 2" in capsys.readouterr().err
    command = ["score", "--utility", "chrf", "--hypotheses", files["hypotheses"]]
    assert main(command) == 2
    assert "needs --references FILE" in capsys.readouterr().err
