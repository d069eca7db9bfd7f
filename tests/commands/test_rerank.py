"""acpmbr rerank on files of candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_acpmbr import ACPMBR
from hf_acpmbr.cli import main

POOLS = [
    ["the cat sat", "the cat sat", "a cat sat down", "dogs"],
    ["one", "one two", "one two three", "one two"],
    ["x", "y", "z", "x"],
]


def rerank(tmp_path: Path, text: str, *more: str) -> tuple[int, Path]:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(text, encoding="utf-8")
    options = ["--input", str(source), "--output", str(output), "--decoder", "mbr", "--quiet", *more]
    return main(["rerank", *options]), output


def test_jsonl_lists_objects_and_plain_lines_give_the_choice_of_the_library(tmp_path: Path) -> None:
    mbr = ACPMBR(target="chrf", decoder="mbr")
    expected = [mbr.rerank(pool).text for pool in POOLS]
    counted = [
        {"candidates": list(dict.fromkeys(pool)), "counts": [pool.count(t) for t in dict.fromkeys(pool)]}
        for pool in POOLS
    ]
    for text, more in (
        ("".join(json.dumps(pool) + "\n" for pool in POOLS), ()),
        ("".join(json.dumps(entry) + "\n" for entry in counted), ()),
        ("".join(line + "\n" for pool in POOLS for line in pool), ("--candidates-per-source", "4")),
    ):
        code, output = rerank(tmp_path, text, *more)
        assert code == 0
        assert output.read_text(encoding="utf-8").splitlines() == expected


def test_jsonl_output_with_sources_and_nbest(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.write_text("a\nb\nc\n", encoding="utf-8")
    text = "".join(json.dumps(pool) + "\n" for pool in POOLS)
    code, output = rerank(tmp_path, text, "--format", "jsonl", "--nbest", "2", "--sources", str(sources))
    assert code == 0
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [record["source"] for record in records] == ["a", "b", "c"]
    assert [len(record["nbest"]) for record in records] == [2, 2, 2]
    assert records[0]["drawn"] == 4


def test_resume_after_a_kill_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(json.dumps([f"{a} {pool[0]}", *pool]) + "\n" for a in range(15) for pool in POOLS)
    code, output = rerank(tmp_path, text)
    whole = output.read_bytes()
    output.unlink()
    calls = []
    original = ACPMBR.rerank

    def dies(self: ACPMBR, *args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ACPMBR, "rerank", dies)
    code, output = rerank(tmp_path, text)
    assert code == 130
    assert output.read_bytes().count(b"\n") == 16
    monkeypatch.setattr(ACPMBR, "rerank", original)
    code, output = rerank(tmp_path, text, "--resume")
    assert code == 0
    assert output.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("not json\n", (), "line 1 of the input is no JSON"),
        ("{}\n", (), "line 1 of the input has no candidates"),
        ('["a"]\n{"candidates": ["a"], "count": [1]}\n', (), r"line 2 of the input has unknown fields ['count']"),
        ("a\nb\nc\n", ("--candidates-per-source", "2"), "does not divide the 3 lines"),
    ],
)
def test_wrong_input_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: tuple[str, ...], message: str
) -> None:
    code, _ = rerank(tmp_path, text, *more)
    assert code == 1
    assert message in capsys.readouterr().err
