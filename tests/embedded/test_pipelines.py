"""Every training and report script from its command line, on a corpus of a few sentences."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import sacrebleu
from transformers import AutoTokenizer

from evaluation.benchmarks import which_rule
from evaluation.training import distill_utility, train_translator, train_utility
from hf_acpmbr import load_utility

FEW_STEPS = ["--steps", "2", "--warmup", "1", "--eval-every", "2", "--batch-tokens", "300"]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def data(pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows: list[dict[str, object]] = [{"en": english, "de": german} for english, german in pairs]
    write(folder / "tatoeba" / "train.en-de.jsonl.gz", rows)
    write(folder / "tatoeba" / "dev.en-de.jsonl.gz", rows[:4])
    write(folder / "tatoeba" / "test.en-de.jsonl.gz", rows[:4])
    for name, low, high in (("bleurt20", 0.4, 0.9), ("mqm", -5.0, 0.0)):
        rated: list[dict[str, object]] = [
            {"source": en, "reference": de, "hypothesis": pairs[k - 1][1], name: low + (high - low) * k / len(pairs)}
            for k, (en, de) in enumerate(pairs)
        ]
        write(folder / "ratings" / f"{name}.train.en-de.jsonl.gz", rated)
        write(folder / "ratings" / f"{name}.test.en-de.jsonl.gz", rated[:8])
    return folder


@pytest.fixture(scope="module")
def translator_folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("translator")
    sizes = ["--vocabulary", "80", "--width", "16", "--heads", "2", "--feed-forward", "32", "--dev-sentences", "4"]
    command = ["--data", str(data), "--output", str(output), *sizes, *FEW_STEPS]
    train_translator.main(command)
    return output / "model"


def test_the_translator_continues_from_its_export(translator_folder: Path, data: Path, tmp_path: Path) -> None:
    command = ["--data", str(data), "--output", str(tmp_path), "--init", str(translator_folder)]
    sizes = ["--vocabulary", "80", "--width", "16", "--heads", "2", "--feed-forward", "32", "--encoder-layers", "4"]
    options = ["--dev-sentences", "4", "--dropout", "0.1", "--segmentations", "0.5", "--bfloat16", *FEW_STEPS]
    train_translator.main([*command, *sizes, *options])
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (settings["dropout"], settings["encoder_layers"]) == (0.1, 4)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").src_lang == "en"
    before, after = (folder / "vocab.json" for folder in (translator_folder, tmp_path / "model"))
    assert json.loads(after.read_text(encoding="utf-8")) == json.loads(before.read_text(encoding="utf-8"))
    assert len(after.read_text(encoding="utf-8").splitlines()) == 1  # as small as it can be


def test_the_rules_of_choice_are_compared(translator_folder: Path, data: Path, tmp_path: Path) -> None:
    options = ["--data", str(data), "--model", str(translator_folder), "--output", str(tmp_path), "--samples", "4"]
    with pytest.raises(SystemExit, match="0"):
        which_rule.main([*options, "--weights", "0", "1e6", "--resamples", "20", "--utilities", "chrf", "embedded"])
    record = json.loads((tmp_path / "test_texts.json").read_text(encoding="utf-8"))["en→de"]
    weighted = [
        f"MBR, {name}{weight}" for name in ("chrf", "embedded") for weight in ("", " + 1e+06 × log-probability")
    ]
    added = [f"{row}, beam 5 added" for row in weighted]
    rows = ["greedy", "beam 5", "most probable of 4", *weighted, *added]
    assert list(record) == ["sources", "references", *rows]
    assert record[weighted[1]] == record[weighted[3]] == record["most probable of 4"], "the weight decides alone"
    table = (tmp_path / "test.md").read_text(encoding="utf-8")
    numbers = json.loads((tmp_path / "test.json").read_text(encoding="utf-8"))
    for direction in ("en→de", "de→en", "both"):
        assert table.count(f"| {direction} | BLEU | chrF | TER | embedded | characters |") == 1
        assert list(numbers[direction]) == rows
    chrf = sacrebleu.corpus_chrf(record["beam 5"], [record["references"]]).score
    assert f"| beam 5 | 0.0 | {chrf:.1f} |" in table
    greedy = sacrebleu.corpus_chrf(record["greedy"], [record["references"]]).score
    assert numbers["en→de"]["greedy"]["chrF"][:2] == pytest.approx([greedy, greedy - chrf], abs=0.006)


def test_the_utility_is_trained_and_distilled(translator_folder: Path, data: Path, tmp_path: Path) -> None:
    common = ["--data", str(data), "--translator", str(translator_folder), "--chunks", "2", "--chunk-sentences", "6"]
    target = tmp_path / "target"
    options = ["--output", str(target), "--held-out", "10", "--joined", "12"]
    train_utility.main([*common, *options, *FEW_STEPS])
    assert {"pearson_synthetic", "pearson_bleurt", "pearson_mqm"} <= set(
        json.loads((target / "finetuning" / "curve.jsonl").read_text().splitlines()[-1])
    )
    again = ["--output", str(tmp_path / "again"), "--init", str(target / "model"), "--held-out", "10", "--joined", "12"]
    train_utility.main([*common, *again, *FEW_STEPS])
    assert not (tmp_path / "again" / "pretraining").exists()
    student = tmp_path / "student"
    sizes = ["--size", "embedded-d2", "--target", str(target / "model"), "--output", str(student)]
    distill_utility.main([*common, *sizes, "--pairs-per-source", "3", *FEW_STEPS])
    big, small = load_utility(str(target / "model")), load_utility(str(student / "model"))
    assert small.parameters < big.parameters / 4
    assert small.score(["Ich sehe Brot."], ["Ich mag Brot."]).shape == (1,)
