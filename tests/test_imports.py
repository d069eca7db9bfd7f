"""Who may import whom, read from the source, and what importing the package costs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hf_acpmbr"

# Every part of the package, and which others it may import besides those that all share. From the bottom up.
SHARED = {"version", "types", "files", "devices", "config", "candidates", "matrix"}
BELOW_MBR = {"sampling", "scoring", "completion", "decoding", "decision", "recipe"}
ALLOWED: dict[str, set[str]] = {
    **{name: set() for name in ("version", "types", "files", "devices", "matrix", "engines")},
    **{name: set() for name in ("differences", "embedded")},
    "config": {"sampling", "completion", "decoding"},  # for its types alone
    "candidates": {"engines"},
    "sampling": set(),
    "scoring": {"metrics"},  # `load` reads what kind of checkpoint a folder is
    "metrics": {"scoring", "embedded"},
    "completion": set(),
    "decision": {"decoding", "completion"},  # for its types alone
    "decoding": {"scoring", "completion", "decision", "recipe"},
    "recipe": {"decoding", "sampling", "scoring"},  # of decoding and sampling the types alone
    "until_sure": {"sampling", "scoring", "decoding", "decision"},
    "mbr": {*BELOW_MBR, "generation", "until_sure"},
    "generation": {*BELOW_MBR, "mbr", "embedded"},
    "runs": {*BELOW_MBR, "mbr", "generation"},
    "serve": {*BELOW_MBR, "mbr", "generation"},
    "cli": {*BELOW_MBR, "mbr", "generation", "runs", "serve", "ui", "embedded", "differences"},
    "ui": {*BELOW_MBR, "mbr", "generation", "embedded", "differences"},
    "__init__": {"candidates", "decision", "mbr", "recipe", "scoring", "generation"},
    "__main__": {"cli"},
}
# Where each heavy library belongs, whether it is imported at the top of a file or inside a function.
LIBRARIES = {
    "transformers": {"sampling", "metrics", "scoring", "mbr", "generation", "cli", "types", "runs", "embedded"},
    "sentence_transformers": {"metrics"},
    "evaluate": {"scoring"},
    "datasets": {"scoring", "generation", "runs"},
    "accelerate": set(),
    "matplotlib": {"cli", "embedded"},
    "gradio": {"ui", "cli"},
    "starlette": {"serve"},
    "pydantic": {"serve"},
    "httpx": {"serve"},
    "uvicorn": {"cli"},
}


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Absolute names of all modules a file imports, at any depth of the code."""
    package = ("hf_acpmbr", *path.relative_to(PACKAGE).parts[:-1]) if PACKAGE in path.parents else ()
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            names |= {f"{module}.{alias.name}" for alias in node.names} if module == "hf_acpmbr" else {module}
    return names


def test_every_part_of_the_package_is_named_here():
    assert {part_of(path) for path in sources(PACKAGE)} == set(ALLOWED)


@pytest.mark.parametrize("path", sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_part_imports_only_what_it_may(path):
    part = part_of(path)
    for name in imported(path):
        top, *rest = name.split(".")
        if top == "hf_acpmbr" and rest:
            assert rest[0] in ALLOWED[part] | SHARED | {part}, f"{part} must not import {name}"
            private = [word for word in rest[1:] if word.startswith("_") and not word.startswith("__")]
            assert rest[0] == part or not private, f"{part} must not import the private module {name}"
        if top in LIBRARIES:
            assert part in LIBRARIES[top], f"{top} does not belong in {part}"


def test_no_public_name_stands_for_two_things():
    shared = {"run", "add_arguments"}  # one per command
    places: dict[str, list[str]] = {}
    for path in sources(PACKAGE):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names = [node.name]
            elif "TypeVar" in ast.unparse(node) or "getLogger" in ast.unparse(node):
                names = []
            else:
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            for name in names:
                if not name.startswith("_") and name not in shared:
                    places.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_private_functions_of_transformers_generation_are_called_in_one_file():
    private = re.compile(r"\bmodel\._[a-z]|\bgetattr\(request\.model|GenerationMixin\._")
    users = {path.name for path in sources(PACKAGE) if private.search(path.read_text(encoding="utf-8"))}
    assert users == {"generation_mixin.py"}


@pytest.mark.parametrize("folder", ["evaluation", "examples"])
def test_evaluation_and_examples_use_public_names_only(folder):
    for path in sources(ROOT / folder):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "hf_acpmbr":
                assert not any(part.startswith("_") and part != "__version__" for part in parts), f"{path}: {name}"


def test_importing_the_package_is_cheap_and_changes_nothing():
    program = """
import json, logging, os, sys, warnings
before = dict(os.environ), list(warnings.filters), logging.getLogger().handlers[:]
import torch
filters = list(warnings.filters)
import hf_acpmbr
import hf_acpmbr.cli.main
loaded = [name for name in ("transformers", "evaluate", "datasets", "matplotlib", "sacrebleu") if name in sys.modules]
same = dict(os.environ) == before[0] and filters == list(warnings.filters)
print(json.dumps([loaded, same and logging.getLogger().handlers == before[2]]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, unchanged = json.loads(done.stdout)
    assert loaded == [], "these are loaded only when they are used"
    assert unchanged, "importing must not touch the environment, warnings or logging"


def test_the_public_api_fits_on_one_screen():
    import hf_acpmbr

    assert sorted(hf_acpmbr.__all__) == hf_acpmbr.__all__
    assert len(hf_acpmbr.__all__) <= 24
    for name in hf_acpmbr.__all__:
        assert getattr(hf_acpmbr, name) is not None
