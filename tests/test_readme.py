"""What the README shows runs, and the options it names exist."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from hf_acpmbr.cli.main import COMMANDS
from hf_acpmbr.embedded import TRANSLATOR

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


# What stands in for the models of the README, which the tests do not download.
EMBEDDED = {
    '"facebook/m2m100_418M"': repr(str(TRANSLATOR)),
    "bleurt-20-d3": "embedded-d1",
    "bleurt-20": "embedded",
    "num_candidates=1024": "num_candidates=8",
    "num_candidates=256": "num_candidates=8",
}


@pytest.mark.skipif(not (TRANSLATOR / "config.json").is_file(), reason="the embedded translator is not there")
def test_the_python_blocks_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"ds": Dataset.from_dict({"en": ["It is raining."]})}
    for block in blocks("python"):
        for published, embedded in EMBEDDED.items():
            block = block.replace(published, embedded)
        exec(compile(block, "README.md", "exec"), names)
    assert names["ids"].shape[0] == 1
    assert names["decision"].text == "the cat sat"
    assert names["ds"].column_names == ["en", "prediction", "prediction_utility"]
    assert names["recipe"].decoder.budget.scores_per_row == 2
    assert names["mbr"].recipe.sampling.num_candidates == 8


@pytest.mark.parametrize("line", re.findall(r"^acpmbr .*$", README, flags=re.M))
def test_every_command_line_parses(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    assert name in COMMANDS
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(f"hf_acpmbr.cli.{name}").add_arguments(parser)
    parser.parse_args(arguments)


def test_make_targets_and_links_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    for target in re.findall(r"^make ([a-z-]+)", README, flags=re.M):
        assert target in targets
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")):
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
