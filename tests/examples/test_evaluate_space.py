"""The folder for a Space: any utility by configuration name through `evaluate.load`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import evaluate
import pytest
import sacrebleu

from hf_acpmbr import load_utility

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "evaluate_space"
TEXTS = {"predictions": ["the cat sat", "a dog ran home"], "references": ["a cat sat", "the dogs ran"]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path / "metrics"))


def load(*names: str, **options: Any) -> Any:
    return evaluate.load(str(FOLDER), *names, **options)


def test_the_default_is_chrf_as_sacrebleu_computes_it() -> None:
    expected = [
        sacrebleu.sentence_chrf(hypothesis, [reference]).score
        for hypothesis, reference in zip(TEXTS["predictions"], TEXTS["references"], strict=True)
    ]
    for metric in (load(), load("chrf")):
        result = metric.compute(**TEXTS)
        assert result["scores"] == pytest.approx(expected)
        assert result["mean_score"] == pytest.approx(sum(expected) / 2)


def test_the_configuration_name_is_the_utility_and_options_reach_it() -> None:
    metric = load("embedded", utility_options={"device": "cpu"})
    assert metric.config_name == "embedded"
    expected = load_utility("embedded", device="cpu").score(TEXTS["predictions"], TEXTS["references"])
    assert metric.compute(**TEXTS)["scores"] == pytest.approx(expected.tolist(), abs=1e-6)


def test_batches_are_collected() -> None:
    metric = load("ter")
    metric.add_batch(predictions=["a b"], references=["a b"])
    metric.add(prediction="a", reference="b")
    assert metric.compute()["scores"] == pytest.approx([0.0, 100.0])


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown utility 'chrff'.*configuration names are the utilities: chrf, "):
        load("chrff")


def test_the_page_scores_filled_rows_and_refuses_half_filled_ones(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed: pip install '.[ui]'")
    program = (
        "import json, runpy, sys; compute = runpy.run_path(sys.argv[0])['compute']\n"
        "print(json.dumps(compute([['the cat sat', 'a cat sat'], ['', '']])['scores']))\n"
        "for rows in [['', '']], [['the cat sat', 'a cat sat'], ['a', '']]:\n"
        "    try: compute(rows)\n"
        "    except Exception as error: print(error)\n"
    )
    start = f"import sys; sys.argv = [{str(FOLDER / 'app.py')!r}]; {program}"
    # A process of its own: gradio leaves event loops behind.
    done = subprocess.run(
        [sys.executable, "-c", start],
        env={**os.environ, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    scores, *errors = done.stdout.splitlines()
    assert json.loads(scores) == pytest.approx([sacrebleu.sentence_chrf("the cat sat", ["a cat sat"]).score])
    assert [error.strip("'") for error in errors] == [
        "fill in at least one row, each with predictions and references"
    ] * 2


def test_the_header_names_the_page_and_marks_a_metric() -> None:
    yaml = pytest.importorskip("yaml")
    header = yaml.safe_load((FOLDER / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert (FOLDER / header["app_file"]).is_file()
    assert header["sdk"] == "gradio"
    assert header["tags"] == ["evaluate", "metric"]


def test_two_metrics_of_the_folder_combine_under_their_own_names() -> None:
    combined = evaluate.combine([load("chrf"), load("ter")])
    wrapped = [[reference] for reference in TEXTS["references"]]
    result = combined.compute(predictions=TEXTS["predictions"], references=wrapped)
    assert {f"{name}_{field}" for name in ("chrf", "ter") for field in ("scores", "mean_score")} == set(result)
    assert result["chrf_scores"] == pytest.approx(load("chrf").compute(**TEXTS)["scores"])
