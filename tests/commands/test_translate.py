"""acpmbr translate, as a user runs it: on files, with a model folder, and killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_acpmbr.cli import main
from hf_acpmbr.embedded import TRANSLATOR
from tests.models import tiny_pair

LINES = ["the cat sat on the mat", "a dog ran", "we see the sun", "the red dog", "a mat", "a red cat", "the sun"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    for part in tiny_pair("m2m100"):
        part.save_pretrained(path)
    return path


def arguments(folder: Path, source: Path, output: Path, *more: str) -> list[str]:
    fixed = [
        "--num-candidates",
        "20",
        "--epsilon",
        "0",
        "--max-new-tokens",
        "6",
        "--batch-size",
        "2",
        "--device",
        "cpu",
    ]
    return ["translate", "--model", str(folder), "--input", str(source), "--output", str(output), *fixed, *more]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_one_line_in_one_line_out_with_a_summary(
    folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.txt"
    assert main(arguments(folder, source, output)) == 0
    assert output.read_bytes().count(b"\n") == len(LINES)
    assert not list(tmp_path.glob("*.unfinished.json"))
    summary = capsys.readouterr().err
    assert "7 lines in" in summary
    assert "of 140 candidates" in summary
    assert "chrf calls" in summary


def test_jsonl_tells_everything_and_repeats_byte_for_byte(folder: Path, source: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for output in (first, second):
        assert main(arguments(folder, source, output, "--format", "jsonl", "--nbest", "3", "--quiet")) == 0
    assert first.read_bytes() == second.read_bytes()
    records = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    assert [record["source"] for record in records] == LINES
    for record in records:
        assert record["text"] == record["nbest"][0]["text"]
        assert record["drawn"] == 20
        assert record["signature"].startswith("hf_acpmbr:")


def test_killed_and_resumed_gives_the_same_bytes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, whole, killed = tmp_path / "long.txt", tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    part = tmp_path / "killed.jsonl.unfinished"
    source.write_text("".join(f"{line}\n" for line in LINES * 6), encoding="utf-8")
    assert main(arguments(folder, source, whole, "--format", "jsonl", "--quiet")) == 0
    again = arguments(folder, source, killed, "--format", "jsonl", "--quiet")
    process = subprocess.Popen(
        [sys.executable, "-m", "hf_acpmbr", *again],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    while process.poll() is None and (not part.exists() or part.stat().st_size == 0):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run must be killed in the middle"
    assert 0 < part.stat().st_size < whole.stat().st_size
    with part.open("ab") as file:
        file.write(b'{"source": "cut off in the middle of a li')
    assert main(again) == 2
    assert "add --resume to continue it" in capsys.readouterr().err
    assert main([*again, "--resume", "--seed", "1"]) == 2
    assert "(seed: 0 → 1)" in capsys.readouterr().err
    assert main([*again, "--resume"]) == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert main([*again, "--resume"]) == 0, "a finished run has nothing left to do"
    assert killed.read_bytes() == whole.read_bytes()


def test_what_an_earlier_run_left_never_counts_as_done(folder: Path, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("old\nold\n", encoding="utf-8")
    assert main(arguments(folder, source, output, "--quiet")) == 0
    assert b"old" not in output.read_bytes()
    output.write_text("old\n", encoding="utf-8")
    assert main(arguments(folder, source, output, "--quiet", "--resume")) == 2


def test_standard_streams_cannot_be_resumed(folder: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "--model", str(folder), "--input", str(source), "--resume"]) == 2
    assert main(["translate", "--model", str(folder), "--output", "x", "--resume"]) == 2
    assert "standard input cannot be read again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--target-language", "xx"], "this model's tokenizer has no languages"),
        (["--model", "/no/such/folder"], "model '/no/such/folder' cannot be loaded: give a hub id"),
        (["--dtype", "flaot16"], "dtype must be auto or"),
        (["--decoder", "oracle"], "needs real references, which translate does not have"),
        (["--set", "epsilon=0.1"], "epsilon is given twice"),
        (["--generate", "num_beams=4"], "num_beams=4 conflicts with MBR"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(arguments(folder, source, tmp_path / "no.txt", *more)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("acpmbr translate: ")
    assert message in error
    assert not list(tmp_path.glob("no.txt*"))


def test_decoder_only_models_with_a_prompt(source: Path, tmp_path: Path) -> None:
    path, output = tmp_path / "llama", tmp_path / "out.txt"
    for part in tiny_pair("llama"):
        part.save_pretrained(path)
    assert main(arguments(path, source, output, "--quiet", "--prompt", "see {source}", "--chat")) == 0
    assert output.read_bytes().count(b"\n") == len(LINES)


@pytest.mark.skipif(not (TRANSLATOR / "config.json").is_file(), reason="the embedded translator is not there")
def test_the_default_model_translates_english_into_german(tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("Where is the station?\nTom is reading a book.\n", encoding="utf-8")
    files = ["--input", str(source), "--output", str(output)]
    assert main(["translate", *files, "--num-candidates", "32", "--quiet", "--device", "cpu"]) == 0
    first, second = output.read_text(encoding="utf-8").splitlines()
    assert first.startswith("W")
    assert "Tom" in second
