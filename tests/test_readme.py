"""What the README shows runs, and the options it names exist."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from hf_acpmbr.cli import COMMANDS

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_every_python_block_compiles():
    assert len(blocks("python")) >= 3
    for block in blocks("python"):
        compile(block, "README.md", "exec")


def test_the_block_on_strings_runs():
    block = next(block for block in blocks("python") if ".rerank(" in block)
    names: dict[str, object] = {}
    exec("from hf_acpmbr import ACPMBR\n" + block, names)
    assert names["decision"].text == "the cat sat"


@pytest.mark.parametrize("line", re.findall(r"^acpmbr .*$", README, flags=re.M))
def test_every_command_line_parses(line):
    name, *arguments = shlex.split(line)[1:]
    assert name in COMMANDS
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(f"hf_acpmbr.commands.{name}").add_arguments(parser)
    parser.parse_args(arguments)


def test_make_targets_and_links_exist():
    root = Path(__file__).resolve().parents[1]
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), flags=re.M)
    for target in re.findall(r"^make ([a-z-]+)", README, flags=re.M):
        assert target in targets
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (root / link).exists(), link
