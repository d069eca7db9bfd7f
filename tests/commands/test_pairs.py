"""`--preferences FILE`: the pairs are those of `Preferences`, and a run that was killed ends with the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_acpmbr import ACPMBR
from hf_acpmbr.cli import main
from hf_acpmbr.preferences import Preferences
from hf_acpmbr.runs import job
from tests.models import tiny_pair

POOL = ["the cat sat", "the cat sat", "a cat sat here", "dogs run", "the cats sat down"]


def candidates(tmp_path: Path, lines: int = 40, **more: Any) -> Path:
    path = tmp_path / "pools.jsonl"
    pools = [{"candidates": [f"{text} {k}" for text in POOL], "source": f"source {k}", **more} for k in range(lines)]
    path.write_text("".join(json.dumps(pool) + "\n" for pool in pools), encoding="utf-8")
    return path


def command(source: Path, *more: str) -> list[str]:
    folder = source.parent
    files = ["--input", str(source), "--output", str(folder / "out"), "--preferences", str(folder / "pairs")]
    return ["rerank", *files, "--decoder", "mbr", "--quiet", *more]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "pairs").read_text(encoding="utf-8").splitlines()]


def test_rerank_writes_the_pairs_of_its_decisions(tmp_path: Path) -> None:
    settings = ["--preferences-option", "pairs=top-k", "k=2", "--preferences-option", "min_margin=20"]
    assert main(command(candidates(tmp_path, 3), *settings)) == 0
    expected = []
    for k in range(3):
        decision = ACPMBR(target="chrf", decoder="mbr").rerank([f"{text} {k}" for text in POOL])
        chosen = Preferences(pairs="top-k", k=2, min_margin=20).select(decision)
        assert len(chosen) == 1, "the second pair is too close"
        expected += [{"row": k, **Preferences().row(pair, f"source {k}")} for pair in chosen]
    assert rows(tmp_path) == expected


def test_best_beam_compares_with_a_field_of_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preferences-option", "pairs=best-beam", "beam_column=beam"]
    assert main(command(candidates(tmp_path, 1, beam="red sun"), *options)) == 0
    (row,) = rows(tmp_path)
    assert (row["rejected"], row["beam"]) == ("red sun", "red sun")
    assert main(command(candidates(tmp_path, 1), *options)) == 2
    assert "row 0 has no text in 'beam': got None" in capsys.readouterr().err


def interrupted(patch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C after so many batches."""
    original, batches = job.decided, []

    def dies(*given: Any) -> Any:
        batches.append(1)
        if len(batches) > after:
            raise KeyboardInterrupt
        return original(*given)

    patch.setattr(job, "decided", dies)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    source = candidates(tmp_path)
    assert main(command(source)) == 0
    whole = {name: (tmp_path / name).read_bytes() for name in ("out", "pairs")}
    (tmp_path / "out").unlink()
    with monkeypatch.context() as patch:
        interrupted(patch, after)
        assert main(command(source)) == 130
    part = tmp_path / "pairs.unfinished"
    if part.exists():
        with part.open("ab") as file:  # of a batch whose lines are not there, and cut off by the kill
            file.write(b'{"row": 38, "prompt": "gone"}\n{"row"')
    assert main(command(source, "--resume")) == 0
    assert {name: (tmp_path / name).read_bytes() for name in whole} == whole
    assert not part.exists()


def test_a_kill_between_the_renames_at_the_end_is_repaired_and_lost_pairs_are_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = candidates(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("hf_acpmbr.runs.output.OutputFile.merge", lambda self, about, shards: False)
        assert main(command(source)) == 0
    whole = (tmp_path / "pairs").read_bytes()
    assert (tmp_path / "out.parts").exists()
    assert main(command(source, "--resume")) == 0
    assert (tmp_path / "pairs").read_bytes() == whole
    (tmp_path / "pairs").unlink()
    assert main(command(source, "--resume")) == 2
    assert "pairs is gone, with the pairs of earlier lines" in capsys.readouterr().err


def test_translate_of_a_chat_model_asks_by_messages(tmp_path: Path) -> None:
    for part in tiny_pair("llama"):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "in").write_text("the cat\n\na dog\n", encoding="utf-8")
    options = [
        "--chat",
        "--prompt",
        "see {source}",
        "--num-candidates",
        "20",
        "--max-new-tokens",
        "5",
        "--epsilon",
        "0",
    ]
    files = [
        "--input",
        str(tmp_path / "in"),
        "--output",
        str(tmp_path / "out"),
        "--preferences",
        str(tmp_path / "pairs"),
    ]
    assert main(["translate", "--model", str(tmp_path / "model"), *files, *options, "--quiet"]) == 0
    texts = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert [(row["row"], row["prompt"], row["chosen"]) for row in rows(tmp_path)] == [
        (k, [{"role": "user", "content": f"see {source}"}], [{"role": "assistant", "content": texts[k]}])
        for k, source in ((0, "the cat"), (2, "a dog"))
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preferences-option", "k=2"], "--preferences-option: k belongs to pairs='top-k'"),
        (["--preferences-option", "margin=2"], "'margin' is not a setting of Preferences: did you mean 'min_margin'"),
        (["--preferences", "-"], "--preferences -: give a regular file"),
        (["--preferences", "out"], "--preferences out is the --output file"),
        (["--output", "-", "--resume"], "--resume needs --output FILE"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    source = candidates(tmp_path)
    assert main(command(source, *options)) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_a_list_without_a_source_is_named_and_other_commands_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_text(json.dumps(POOL) + "\n", encoding="utf-8")
    assert main(command(path)) == 2
    assert 'needs the source of every list: give "source" fields or --sources FILE' in capsys.readouterr().err
    assert main(["rerank", "--input", str(path), "--preferences-option", "k=2"]) == 2
    assert "--preferences-option without --preferences FILE" in capsys.readouterr().err
    beam = ["--preferences", str(tmp_path / "p"), "--preferences-option", "pairs=best-beam", "beam_column=beam"]
    assert main(["translate", "--input", str(path), *beam]) == 2
    assert "pairs=best-beam is for acpmbr rerank" in capsys.readouterr().err
