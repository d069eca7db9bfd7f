"""`--format preferences`: the pairs are those of `Preferences`, however a run is interrupted or shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_acpmbr import ACPMBR
from hf_acpmbr.cli.main import main
from hf_acpmbr.generation.preferences import Preferences
from hf_acpmbr.runs import job
from tests.models import tiny_pair

POOL = ["the cat sat", "the cat sat", "a cat sat here", "dogs run", "the cats sat down"]


def candidates(tmp_path: Path, lines: int = 40, **more: Any) -> Path:
    path = tmp_path / "pools.jsonl"
    pools = [{"candidates": [f"{text} {k}" for text in POOL], "source": f"source {k}", **more} for k in range(lines)]
    pools[lines // 2]["candidates"] = ["the cat sat"]  # a source without a pair
    path.write_text("".join(json.dumps(pool) + "\n" for pool in pools), encoding="utf-8")
    return path


def command(source: Path, *more: str) -> list[str]:
    files = ["--input", str(source), "--output", str(source.parent / "pairs")]
    return ["rerank", *files, "--format", "preferences", "--decoder", "mbr", "--quiet", *more]


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_rerank_writes_the_pairs_of_its_decisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"pairs": "top-k", "k": 2, "min_margin": 5}
    options = [f"{name}={value}" for name, value in settings.items()]
    source = candidates(tmp_path, 3)
    assert main(command(source, "--preferences-option", *options[:2], "--preferences-option", options[2])) == 0
    expected = []
    for k in (0, 2):
        decision = ACPMBR(target="chrf", decoder="mbr").rerank([f"{text} {k}" for text in POOL])
        chosen = Preferences.from_dict(settings).select(decision)
        assert len(chosen) == 2, "more lines than sources"
        expected += [{"row": k, **Preferences().row(pair, f"source {k}")} for pair in chosen]
    written = (tmp_path / "pairs").read_text(encoding="utf-8")
    assert rows(written) == expected
    assert main(command(source, "--output", "-", "--preferences-option", *options)) == 0
    assert capsys.readouterr().out == written


def test_best_beam_compares_with_a_field_of_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preferences-option", "pairs=best-beam", "beam_column=beam"]
    assert main(command(candidates(tmp_path, 2, beam="red sun"), *options)) == 0
    first, _ = rows((tmp_path / "pairs").read_text(encoding="utf-8"))
    assert (first["rejected"], first["beam"]) == ("red sun", "red sun")
    assert main(command(candidates(tmp_path, 2), *options)) == 2
    error = capsys.readouterr().err
    assert "has no text in 'beam': got None" in error
    assert "pools.jsonl line 1" in error


@pytest.mark.parametrize("after", [0, 1, 2])
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    source, pairs = candidates(tmp_path), tmp_path / "pairs"
    assert main(command(source)) == 0
    whole = pairs.read_bytes()
    pairs.unlink()
    original, batches = job.decided, []

    def dies(*given: Any) -> Any:
        batches.append(1)
        if len(batches) > after:
            raise KeyboardInterrupt
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(job, "decided", dies)
        assert main(command(source)) == 130
    assert main(command(source, "--resume")) == 0
    assert pairs.read_bytes() == whole
    assert len(rows(whole.decode())) == 39
    assert main(command(source, "--resume", "--preferences-option", "min_margin=1")) == 2, "another run"


def test_translate_of_a_chat_model_asks_by_messages(tmp_path: Path) -> None:
    for part in tiny_pair("llama"):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "in").write_text("the cat\n\na dog\n", encoding="utf-8")
    options = ["--chat", "--prompt", "see {source}", "--num-candidates", "20", "--max-new-tokens", "5"]
    files = ["--model", str(tmp_path / "model"), "--input", str(tmp_path / "in"), "--output"]
    command = ["translate", *options, "--epsilon", "0", "--quiet", *files]
    assert main([*command, str(tmp_path / "out")]) == 0
    assert main([*command, str(tmp_path / "pairs"), "--format", "preferences"]) == 0
    texts = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    written = rows((tmp_path / "pairs").read_text(encoding="utf-8"))
    assert [(row["row"], row["prompt"], row["chosen"]) for row in written] == [
        (k, [{"role": "user", "content": f"see {source}"}], [{"role": "assistant", "content": texts[k]}])
        for k, source in ((0, "the cat"), (2, "a dog"))
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preferences-option", "k=2"], "--preferences-option: k belongs to pairs='top-k'"),
        (["--preferences-option", "margin=2"], "'margin' is not a setting of Preferences: did you mean 'min_margin'"),
        (["--preferences-option", "k=2", "--format", "jsonl"], "is for --format preferences, got --format jsonl"),
        (["--preferences-option", "pairs=best-beam", "beam_column=margin"], "the output has a field of that name"),
        (["--output", "-", "--resume"], "--resume needs --output FILE"),
        (["--nbest", "2"], "--nbest 2 needs --format jsonl"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    source = candidates(tmp_path)
    assert main(command(source, *options)) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_a_list_without_a_source_is_named_and_translate_has_no_text_of_a_beam(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_text(json.dumps(POOL) + "\n", encoding="utf-8")
    assert main(command(path)) == 2
    assert 'needs the source of every list: give "source" fields or --sources FILE' in capsys.readouterr().err
    beam = ["--format", "preferences", "--preferences-option", "pairs=best-beam", "beam_column=beam"]
    assert main(["translate", "--input", str(path), *beam]) == 2
    assert "pairs=best-beam is for acpmbr rerank" in capsys.readouterr().err


def test_a_text_of_invisible_characters_is_never_rejected_for_being_empty(tmp_path: Path) -> None:
    path = tmp_path / "pools.jsonl"
    texts = ["", "\u200b\ufeff", "😀🎉 Joyeux anniversaire !", "😀🎉 Joyeux anniversaire à toi, Marie !"]
    path.write_text(json.dumps({"candidates": texts, "source": "s"}) + "\n", encoding="utf-8")
    assert main(command(path, "--preferences-option", "max_similarity=1")) == 0
    (row,) = rows((tmp_path / "pairs").read_text(encoding="utf-8"))
    assert {row["chosen"], row["rejected"]} == set(texts[2:])


def test_several_processes_write_the_pairs_of_one(tmp_path: Path) -> None:
    source = candidates(tmp_path)
    assert main(command(source)) == 0
    whole = (tmp_path / "pairs").read_bytes()
    (tmp_path / "pairs").unlink()
    for part in ("1/3", "0/3", "2/3"):
        assert main(command(source, "--shard", part)) == 0
    assert (tmp_path / "pairs").read_bytes() == whole
