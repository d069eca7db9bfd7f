"""The examples on training data, CTranslate2, pools and agreement run as a user would start them."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def start(name: str, *arguments: str, cwd: Path) -> str:
    """In a process of its own: the trainers warn about one another's versions, which is not for us to judge."""
    root = str(EXAMPLES.parent)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "HF_HOME": str(cwd)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install {package}")


@needs("trl")
@pytest.mark.parametrize("options", [[], ["--conversational"]])
def test_dpo_with_trl_learns_to_tell_chosen_from_rejected(options: list[str], tmp_path: Path) -> None:
    out = start(
        "preference_data.py", "--train", "dpo", "--steps", "6", "--num-candidates", "32", *options, cwd=tmp_path
    )
    margins = [float(found) for found in re.findall(r"margin of the rewards (-?[\d.]+)", out)]
    assert margins[0] == 0.0, "before the first step the model is its own reference"
    assert margins[1] > 0.0


@needs("accelerate")
def test_distillation_with_seq2seq_trainer_lowers_the_loss(tmp_path: Path) -> None:
    out = start("preference_data.py", "--train", "distill", "--steps", "6", "--num-candidates", "16", cwd=tmp_path)
    first, last = map(float, re.search(r"loss ([\d.]+) at the first step, ([\d.]+) at", out).groups())  # type: ignore[union-attr]
    assert last < first


@needs("ctranslate2")
def test_ctranslate2_candidates(tmp_path: Path) -> None:
    out = start("ctranslate2_candidates.py", "--num-candidates", "24", cwd=tmp_path)
    assert "Where is the station? → W" in out
    assert out.count("of 24 drawn") == 3


def test_model_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["model_pool.py", "--num-candidates", "8"])
    runpy.run_path(str(EXAMPLES / "model_pool.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert out.count("several models: ") == 2
    assert "several sources: " in out


def test_self_consistency(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "3", "--questions", "2", "--num-candidates", "4"]
    monkeypatch.setattr(sys, "argv", ["self_consistency.py", *options])
    example = runpy.run_path(str(EXAMPLES / "self_consistency.py"), run_name="__main__")
    assert "formulas: right are" in capsys.readouterr().out
    answers = example["agreement"](example["final_number"])
    assert answers(["3+4=7", "3+4=7", "no", "no"], ["4+3=7", "3+4=8", "no", "3+4=7"]) == [1.0, 0.0, 0.0, 0.0]
    programs = example["agreement"](example["results"])
    assert programs(["2*x+1", "2*x+1", "x*"], ["1+x+x", "2*x", "x*"]) == [1.0, 0.0, 0.0]
    assert example["results"]("__import__('os')") is None, "samples are not trusted"
    assert example["results"]("9**9**9") is None


@needs("openai")
def test_openai_client(tmp_path: Path) -> None:
    out = start("openai_client.py", "--requests", "5", "--best-of", "8", cwd=tmp_path)
    assert "Where is the station? → Wo ist der Bahnhof?" in out
    assert out.count("different of 8)") == 5
    assert "5 requests, 4 at a time: " in out
