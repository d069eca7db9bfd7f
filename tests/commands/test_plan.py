"""`acpmbr plan` against the run that it plans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, PretrainedConfig, ProphetNetConfig, T5Config

from hf_acpmbr.candidates import Candidates
from hf_acpmbr.cli import main
from hf_acpmbr.commands._calibration import Pace, Spent, shares
from hf_acpmbr.commands._footprint import Footprint, cache_size, free_memory, refuse_what_does_not_fit
from hf_acpmbr.embedded import load_translator
from hf_acpmbr.utilities import load_utility
from hf_acpmbr.utilities.checkpoints import read_weights, stored_weights

SOURCES = ["It is raining.", "Where is the station?", "She reads an old book."]
DRAWING = ["--num-candidates", "24", "--max-new-tokens", "12"]
UTILITIES = ["--target", "embedded-d1", "--distilled", "embedded-d2"]


def planned(
    capsys: pytest.CaptureFixture[str], source: Path, *more: str
) -> tuple[list[str], list[dict[str, list[str]]]]:
    """The lines outside of tables, and the tables' rows by first cell."""
    assert main(["plan", "--input", str(source), *DRAWING, "--pairs", "8", *more]) == 0
    text: list[str] = []
    tables: list[dict[str, list[str]]] = []
    for line in capsys.readouterr().out.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            text.append(line)
        elif cells[0] in ("", "recipe"):
            tables.append({})  # a header
        elif set(line) != {"|", "-"}:
            tables[-1][cells[0]] = cells[1:]
    return text, tables


def test_calls_and_candidates_are_those_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(["", *SOURCES, ""]), encoding="utf-8")
    text, (_, most, rows) = planned(capsys, source, *UTILITIES, "--lines", "3")
    options = [*DRAWING, *UTILITIES, "--recipe", "paper-high", "--format", "jsonl", "--quiet"]
    assert main(["translate", "--input", str(source), "--output", str(output), *options]) == 0
    made = [record for line in output.read_text().splitlines() if (record := json.loads(line))["status"] != "blank"]
    calls = [sum(record["calls"].get(name, 0) for record in made) / 3 for name in ("embedded-d1", "embedded-d2")]
    assert [float(cell.replace(",", "")) for cell in rows["paper-high"][:2]] == [round(count) for count in calls]
    assert rows["paper-high"][-1] == "3 lines decided"
    unique = [record["unique"] for record in made]
    assert any(f"of 24 candidates (from {min(unique)} to {max(unique)})" in line for line in text)
    assert most["exact MBR"] == ["576", "0", "0"], "all candidates may be unique"
    assert float(rows["exact MBR"][0]) <= 576


@pytest.mark.parametrize("target", ["chrf", "embedded-d1"])
def test_a_score_cache_makes_no_pair_free_and_gets_none_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    source, cache = tmp_path / "in", tmp_path / "scores.db"
    source.write_text("\n".join(SOURCES), encoding="utf-8")
    cached = ["--target-option", f"cache={cache}"]
    options = [*DRAWING, "--target", target, "--decoder", "mbr", "--output", str(tmp_path / "out"), "--quiet"]
    assert main(["translate", "--input", str(source), *options, *cached]) == 0
    before = cache.read_bytes()
    _, (_, _, without) = planned(capsys, source, "--target", target)
    _, (_, _, rows) = planned(capsys, source, "--target", target, *cached)
    assert [cells[0] for cells in rows.values()] == [cells[0] for cells in without.values()]
    assert float(rows["exact MBR"][0].replace(",", "")) > 0
    assert cache.read_bytes() == before


def test_pairs_that_need_no_call_have_a_pace(tmp_path: Path) -> None:
    candidates = Candidates.of(["It rains.", "It is raining."])
    for _ in range(2):  # the second time all come from the cache
        pace = Pace.measured(load_utility("embedded-d1", cache=tmp_path / "scores.db"), [candidates], np.ones(1), 9)
        assert pace.per_pair.cpu > 0


def test_without_calibration_no_network_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = load_translator()
    parameters = {"model": sum(weight.numel() for weight in model.parameters())}
    parameters["target"] = load_utility("embedded-d1").parameters

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("hf_acpmbr.models._embedded", refuse)
    monkeypatch.setattr("hf_acpmbr.utilities.bleurt.BLEURT.load", refuse)
    source = tmp_path / "in"
    source.write_text("\n".join(SOURCES), encoding="utf-8")
    text, (networks, most) = planned(capsys, source, *UTILITIES, "--no-calibration")
    assert "3 lines; 3 looked at" in text[0]
    assert {name: int(networks[name][1].replace(",", "")) for name in parameters} == parameters
    assert most["fast"] == ["24", "384", "0"]


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_acpmbr.commands._footprint.free_memory", lambda device: 1_000_000)
    source = tmp_path / "in"
    source.write_text("Hello.", encoding="utf-8")
    assert main(["plan", "--input", str(source), *UTILITIES]) == 2
    out, error = capsys.readouterr()
    assert "the weights do not fit on cpu: model embedded 23.2 MB, target embedded-d1" in error
    assert "| exact MBR |" in out, "what is known is said all the same"


def test_networks_on_one_device_are_added_up_by_whichever_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_acpmbr.commands._footprint.free_memory", lambda device: 1_000_000)
    names = ("cuda", "cuda:0", "cuda:1")
    first, again, second = (Footprint("guide", name, name, 1, "", 600_000) for name in names)
    refuse_what_does_not_fit([first, second])
    with pytest.raises(ValueError, match=r"fit on cuda:0: guide cuda 0\.6 MB, guide cuda:0 0\.6 MB, and 1\.0 MB"):
        refuse_what_does_not_fit([first, again])


def test_a_file_of_torch_is_counted_by_its_size(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1000, 1000, dtype=torch.float16)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text('{"torch_dtype": "float16"}')
    stored = stored_weights(tmp_path)
    assert stored is not None
    assert stored.dtype == "float16"
    assert stored.parameters == pytest.approx(1e6, rel=0.01)
    assert stored_weights(tmp_path / "nothing") is None


def save(folder: Path, **files: int) -> None:
    """Safetensors files of so many numbers."""
    for name, count in files.items():
        save_file({name: torch.zeros(count)}, folder / f"{name}.safetensors")


def test_the_files_that_are_loaded_count_and_no_others(tmp_path: Path) -> None:
    save(tmp_path, model=1000, consolidated=1000)
    (tmp_path / "openvino").mkdir()
    for name in ("training_args.bin", "openvino/model.bin"):
        (tmp_path / name).write_bytes(bytes(5000))
    assert stored_weights(tmp_path) == (1000, 4000, "float32")
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    assert stored_weights(tmp_path) is None
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "model.ckpt").write_bytes(bytes(800))
    assert stored_weights(tmp_path) == (200, 800, "float32")


def test_weights_in_shards_are_known_if_all_are_there(tmp_path: Path) -> None:
    save(tmp_path, first=1000, second=500, consolidated=1500)
    places = {name: f"{name}.safetensors" for name in ("first", "second")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert stored_weights(tmp_path) == (1500, 6000, "float32")
    assert sum(weight.numel() for weight in read_weights(tmp_path).values()) == 1500
    (tmp_path / "second.safetensors").unlink()
    assert stored_weights(tmp_path) is None


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_pointers_in_place_of_weights_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1000000\n")
    with pytest.raises(ValueError, match="is a Git LFS pointer and not the weights: fetch them with git lfs pull"):
        stored_weights(tmp_path)


@pytest.mark.parametrize("there", [0, 5, 20])
def test_weights_that_are_cut_off_are_named(tmp_path: Path, there: int) -> None:
    save(tmp_path, model=10)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:there])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
        stored_weights(tmp_path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (T5Config(num_layers=5, num_decoder_layers=3, num_heads=2, d_kv=4), "0.2 KB per row and token, 0.0 MB for 8 "),
        (
            ProphetNetConfig(
                num_encoder_layers=50,
                num_decoder_layers=10,
                hidden_size=1000,
                num_decoder_attention_heads=10,
                num_encoder_attention_heads=10,
            ),
            "80.0 KB per row and token, 6.4 MB for 8 rows of 10 tokens",
        ),
        (
            LlamaConfig(num_hidden_layers=10, hidden_size=1000, num_attention_heads=10, num_key_value_heads=5),
            "40.0 KB per row and token, 9.6 MB for 8 rows of 30 tokens",
        ),
    ],
)
def test_the_cache_is_that_of_the_decoder_and_of_what_it_keeps(config: PretrainedConfig, expected: str) -> None:
    assert cache_size(config, "float32", 8, read=20, new=10).startswith(expected)
    assert cache_size(config, "float32", None, read=20, new=10) == expected.split(",")[0]


def test_the_cache_has_room_for_the_longest_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in"
    source.write_text("Yes.", encoding="utf-8")
    text, _ = planned(capsys, source, "--no-calibration", "--max-rows", "7")
    assert any(" for 7 rows of 12 tokens;" in line for line in text)
    text, _ = planned(capsys, source, "--no-calibration", "--max-rows", "7", "--generate", "max_new_tokens=34")
    assert any(" for 7 rows of 34 tokens;" in line for line in text)


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("", {"": ("1000", 400)}, 700),
        ("job/step", {"": ("max", 900), "job": ("2000", 900), "job/step": ("max", 500)}, 1200),
        ("job/step", {"job": ("2000", 900), "job/step": ("600", 500)}, 200),
    ],
)
def test_limits_of_control_groups_count_without_files_that_can_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, limits: dict[str, tuple[str, int]], expected: int
) -> None:
    for name, (most, used) in limits.items():
        folder = tmp_path / "groups" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 50\ninactive_file 100\n")
    (tmp_path / "own").write_text(f"12:cpu:/other\n0::/{group}\n")
    monkeypatch.setattr("hf_acpmbr.commands._footprint._CGROUP", tmp_path / "groups")
    monkeypatch.setattr("hf_acpmbr.commands._footprint._OWN_CGROUP", tmp_path / "own")
    assert free_memory("cpu") == expected


def test_every_length_counts_as_often_as_the_file_has_it() -> None:
    weights = shares([10, 200, 20], [*[10] * 6, *[20] * 3, 200])
    np.testing.assert_allclose(weights, [0.6, 0.1, 0.3])
    np.testing.assert_allclose(shares([10, 20], [15]), [0.5, 0.5])
    np.testing.assert_allclose(shares([7, 7, 7], [7, 7]), 1 / 3)


def test_utilities_that_encode_texts_are_charged_for_texts() -> None:
    pace = Pace(load_utility("chrf"), Spent(0.5, 0.25), Spent(2.0, 1.0))
    assert pace.of(10, 3) == Spent(11.0, 5.5)
    assert pace.of(0, 3) == Spent()


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("\n \n", [], "has no line with text: there is nothing to plan"),
        ("a\n", ["--model", "my model"], "model 'my model' cannot be loaded: give a hub id, a folder"),
        ("a\n", ["--lines", "0"], "--lines must be at least 1, got 0"),
        ("a\n", ["--input", "-"], "plan needs --input FILE"),
        ("a\n", ["--seconds", "nan"], "--seconds must be at least 0, got nan"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    source = tmp_path / "in"
    source.write_text(text, encoding="utf-8")
    assert main(["plan", "--input", str(source), *more]) == 2
    assert message in capsys.readouterr().err
