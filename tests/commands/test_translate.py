"""acpmbr translate, as a user runs it: on files, with a model folder, and killed in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_acpmbr.cli.main import main
from hf_acpmbr.embedded import TRANSLATOR
from hf_acpmbr.runs.formats import OUTPUT_FIELDS
from tests.models import tiny_model, tiny_pair

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
    assert not list(tmp_path.glob("*.parts"))
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
    parts = tmp_path / "killed.jsonl.parts"
    source.write_text("".join(f"{line}\n" for line in LINES * 6), encoding="utf-8")
    assert main(arguments(folder, source, whole, "--format", "jsonl", "--quiet")) == 0
    again = arguments(folder, source, killed, "--format", "jsonl", "--quiet")
    process = subprocess.Popen(
        [sys.executable, "-m", "hf_acpmbr", *again],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    while process.poll() is None and not list(parts.glob("[0-9]*.json")):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run must be killed in the middle"
    made = parts / "00000.txt"
    assert whole.read_bytes().startswith(made.read_bytes())
    assert made.stat().st_size > 0
    made.with_name("00001.txt").write_bytes(b'{"source": "cut off in the middle of a li')
    assert main(again) == 2
    assert "add --resume to continue it" in capsys.readouterr().err
    assert main([*again, "--resume", "--seed", "1"]) == 2
    assert "(seed: 0 → 1)" in capsys.readouterr().err
    assert main([*again, "--resume"]) == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert main([*again, "--resume"]) == 0, "a finished run has nothing left to do"
    assert killed.read_bytes() == whole.read_bytes()


def test_another_model_under_the_same_path_is_not_resumed(
    folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, output = tmp_path / "model", tmp_path / "out.txt"
    shutil.copytree(folder, model)
    assert main(arguments(model, source, output, "--quiet")) == 0
    before = output.read_bytes()
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-len(weights) // 3] ^= 1  # the last digit of one weight
    (model / "model.safetensors").write_bytes(weights)
    assert main(arguments(model, source, output, "--quiet", "--resume")) == 2
    assert "model_files: " in capsys.readouterr().err
    tiny_model("m2m100", len(tiny_pair("m2m100")[1]), seed=1).save_pretrained(model)
    assert main(arguments(model, source, output, "--quiet", "--resume")) == 2
    assert "model: model#" in capsys.readouterr().err
    assert main(arguments(folder, source, output, "--quiet", "--resume", "--max-new-tokens", "5")) == 2
    assert "options.max_new_tokens: 6 → 5" in capsys.readouterr().err
    assert output.read_bytes() == before


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def translated(folder: Path, source: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    def run(*more: str) -> list[dict[str, Any]]:
        output = tmp_path / "translated.jsonl"
        always = ("--format", "jsonl", "--nbest", "99", "--decoder", "mbr", "--quiet")
        assert main(arguments(folder, source, output, *always, *more)) == 0
        return records(output)

    return run


def drawn(found: list[dict[str, Any]]) -> list[dict[str, int]]:
    """What was drawn from the model, and how often."""
    return [{entry["text"]: entry["count"] for entry in record["nbest"]} for record in found]


def test_temperature_reaches_the_sampler(translated: Callable[..., list[dict[str, Any]]]) -> None:
    cold, hot = translated("--temperature", "0.01"), translated("--temperature", "5")
    assert [record["unique"] for record in cold] == [1] * len(LINES), "next to nothing but the most probable text"
    assert all(record["unique"] > 10 for record in hot)


def test_the_seed_reaches_the_sampler(translated: Callable[..., list[dict[str, Any]]]) -> None:
    first = drawn(translated("--seed", "1"))
    assert first == drawn(translated("--seed", "1"))
    assert all(one != other for one, other in zip(first, drawn(translated("--seed", "2")), strict=True))
    assert drawn(translated()) == drawn(translated("--seed", "0"))


def test_pseudo_references_of_their_own_are_as_many_as_asked_for(
    translated: Callable[..., list[dict[str, Any]]],
) -> None:
    for record in translated("--num-references", "1"):
        assert record["calls"] == {"chrf": record["unique"]}
    for record in translated():
        assert record["calls"]["chrf"] > record["unique"]


def test_the_other_sampling_options_reach_the_sampler(translated: Callable[..., list[dict[str, Any]]]) -> None:
    assert [record["drawn"] for record in translated("--num-candidates", "7")] == [7] * len(LINES)
    assert [record["unique"] for record in translated("--epsilon", "0.99")] == [1] * len(LINES)
    assert all(len(entry["text"].split()) <= 2 for r in translated("--max-new-tokens", "2") for entry in r["nbest"])


def test_the_nbest_list_never_repeats_itself(translated: Callable[..., list[dict[str, Any]]]) -> None:
    for record in translated():
        texts = [entry["text"] for entry in record["nbest"]]
        assert len(set(texts)) == len(texts) == record["unique"]
        assert sum(entry["count"] for entry in record["nbest"]) == record["drawn"] == 20


def test_blank_lines_stay_blank_without_asking_the_model(folder: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "blank.txt", tmp_path / "out.jsonl"
    source.write_text("a dog ran\n\n \t \nthe sun\n\u200b\u2060\ufeff\n", encoding="utf-8")
    more = ("--format", "jsonl", "--quiet")
    assert main(arguments(folder, source, output, *more)) == 0
    found = records(output)
    assert [record["source"] for record in found] == ["a dog ran", "", " \t ", "the sun", "\u200b\u2060\ufeff"]
    assert [record["drawn"] for record in found] == [20, 0, 0, 20, 0]
    assert [record["text"] for record in found if not record["drawn"]] == [""] * 3
    blank = ("", None, [], 0, 0, {}, "blank", None)
    assert found[1] == {"source": "", **dict(zip(OUTPUT_FIELDS, blank, strict=True))}
    assert main(arguments(folder, source, tmp_path / "kept.jsonl", *more, "--keep-blank")) == 0
    assert [record["drawn"] for record in records(tmp_path / "kept.jsonl")] == [20] * 5
    assert main(arguments(folder, source, tmp_path / "out.txt", "--quiet")) == 0
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert [line for line, record in zip(lines, found, strict=False) if not record["drawn"]] == [""] * 3


def test_sources_beyond_the_limit_are_cut_with_a_warning_or_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "long.txt", tmp_path / "out.txt"
    source.write_text("a dog ran\nthe sun\nthe cat\n" + "the cat " * 80 + "\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="1 of 2 sources are longer than the model's 128 tokens and are cut"):
        assert main(arguments(folder, source, output, "--quiet")) == 0
    assert output.read_bytes().count(b"\n") == 4
    refused = tmp_path / "refused.txt"
    assert main(arguments(folder, source, refused, "--quiet", "--too-long", "refuse")) == 2
    error = capsys.readouterr().err
    assert "longer than the model's 128 tokens" in error
    assert f"(at {source} line 4); 2 lines are in {refused}.parts" in error, "shards before a bad line are kept"


def test_warnings_are_one_line_of_the_command(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "long.txt"
    source.write_text("the cat " * 80 + "\n", encoding="utf-8")
    settings = json.loads((folder / "generation_config.json").read_text())
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    (own / "generation_config.json").write_text(json.dumps({**settings, "max_length": 20}))
    run = subprocess.run(
        [sys.executable, "-m", "hf_acpmbr", *arguments(own, source, tmp_path / "out.txt", "--quiet")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0
    assert run.stderr.startswith("acpmbr translate: warning: 1 of 1 sources are longer than")
    assert run.stderr.count("\n") == 1, "neither lines of source code nor max_new_tokens against max_length"


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


@pytest.mark.skipif(not (TRANSLATOR / "config.json").is_file(), reason="the embedded translator is not there")
def test_stop_strings_end_the_texts(tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("Where is the station?\n", encoding="utf-8")
    files = ["--input", str(source), "--output", str(output), "--format", "jsonl", "--nbest", "99"]
    more = ["--num-candidates", "32", "--quiet", "--device", "cpu"]
    assert main(["translate", *files, *more]) == 0
    assert any(" ist " in text for text in drawn(records(output))[0]), "without it texts go on"
    assert main(["translate", *files, *more, "--generate", 'stop_strings=[" ist"]']) == 0
    stopped = list(drawn(records(output))[0])
    assert any(text.endswith(" ist") for text in stopped)
    assert not any(" ist " in text for text in stopped)
