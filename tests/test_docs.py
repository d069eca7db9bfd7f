"""The documentation: its code runs, its commands parse, its links lead somewhere; reading it needs no network."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from hf_acpmbr.cli.main import COMMANDS
from hf_acpmbr.embedded import TRANSLATOR

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))
# Fenced code with what stands right before it: a comment there says why a block is not run.
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?```python\n(?P<code>.*?)```", flags=re.S)
# What stands in for the models of the pages, which the tests do not download.
STAND_INS = {
    '"facebook/m2m100_418M"': repr(str(TRANSLATOR)),
    "bleurt-20-d12": "embedded-d1",
    "bleurt-20-d3": "embedded-d1",
    "bleurt-20": "embedded",
    "num_candidates=1024": "num_candidates=8",
    "cuda:0": "cpu",
    'tokenizer.get_lang_id("de")': 'tokenizer.convert_tokens_to_ids("__de__")',
}


def name_of(path: Path) -> str:
    return path.relative_to(DOCS).as_posix()


def python_blocks(path: Path) -> list[str]:
    found = BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [block["code"] for block in found if block["reason"] is None]


@pytest.fixture(scope="module")
def around() -> dict[str, Any]:
    """What the pages take for granted: a model, its inputs, some texts."""
    if not (TRANSLATOR / "config.json").is_file():
        pytest.skip("the embedded translator is not there")
    from hf_acpmbr import ACPMBR
    from hf_acpmbr.generation.models import load_model

    model, tokenizer, language = load_model("embedded", source_language="en", target_language="de")
    texts = ["the cat sat", "a cat sat", "dogs run"]

    def my_function(hypotheses: list[str], references: list[str]) -> list[float]:
        return [float(one == other) for one, other in zip(hypotheses, references, strict=True)]

    return {
        "model": model,
        "tokenizer": tokenizer,
        "language": language,
        "inputs": tokenizer(["It is raining."], return_tensors="pt"),
        "mbr": ACPMBR(tokenizer, target="chrf", num_candidates=8),
        "ACPMBR": ACPMBR,
        "candidates": texts,
        "hypotheses": texts,
        "references": texts,
        "rows": [0, 1],
        "columns": [1, 2],
        "my_function": my_function,
    }


@pytest.mark.parametrize("path", [page for page in PAGES if python_blocks(page)], ids=name_of)
def test_the_python_blocks_of_a_page_run_one_after_the_other(
    path: Path, around: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = dict(around)
    for block in python_blocks(path):
        for published, embedded in STAND_INS.items():
            block = block.replace(published, embedded)
        exec(compile(_without_foreign_lines(block), str(path), "exec"), names)


def _without_foreign_lines(block: str) -> str:
    """Without lines about objects that the reader brings: a module of evaluate, a script, a file."""
    return "\n".join(line for line in block.splitlines() if not re.search(r"my_evaluate_module|path/to/", line))


def command_lines() -> list[tuple[str, str]]:
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        found += [(name_of(path), line) for line in re.findall(r"^acpmbr [a-z].*$", text, flags=re.M)]
    return found


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_every_command_line_parses(page: str, line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)[1:]
    assert name in COMMANDS, f"{page}: {line}"
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(f"hf_acpmbr.cli.{name}").add_arguments(parser)
    parser.parse_args(arguments)


def test_every_setting_of_a_recipe_is_on_its_page() -> None:
    from hf_acpmbr.recipe import NAMED

    page = (DOCS / "recipes.md").read_text(encoding="utf-8")
    assert all(f'"{name}"' in page for name in NAMED)


def test_every_picture_says_what_it_shows() -> None:
    for path in (*PAGES, ROOT / "README.md"):
        for alt in re.findall(r"!\[([^\]]*)\]", path.read_text(encoding="utf-8")):
            assert len(alt.split()) >= 3, f"{path.name}: {alt!r} is not a description"


class _Links(HTMLParser):
    """Links, anchors and resources of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.resources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.resources.append(given.get("href", ""))
        elif "src" in given:
            self.resources.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, _Links]:
    """The built site: every page with its links. Warnings of the build are errors."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (pip install '.[docs]')")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = _Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def test_links_inside_the_site_lead_somewhere(site: dict[Path, _Links]) -> None:
    for path, page in site.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert parts.scheme in ("http", "https", "mailto"), f"{path.name}: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target in site:
                assert unquote(parts.fragment) in site[target].anchors | {"__codelineno-0-1"}, f"{path.name}: {link}"


def test_the_site_is_read_without_a_network(site: dict[Path, _Links]) -> None:
    for path, page in site.items():
        for resource in page.resources:
            assert not urlsplit(resource).netloc, f"{path.name} fetches {resource}"


def test_every_page_is_in_the_site_and_every_public_name_in_the_reference(site: dict[Path, _Links]) -> None:
    import hf_acpmbr

    names = {path.stem for path in site}
    assert {path.stem for path in PAGES} <= names
    anchors = set().union(*(page.anchors for page in site.values()))
    for name in hf_acpmbr.__all__:
        if name != "__version__":
            assert f"hf_acpmbr.{name}" in anchors, f"{name} is not in the reference"


def test_the_tables_of_which_rule_are_those_that_the_benchmark_wrote() -> None:
    from evaluation.benchmarks.which_rule import table

    page = (DOCS / "which_rule.md").read_text(encoding="utf-8")
    for part, titles in (("dev", ["both"]), ("test", ["both", "en→de", "de→en"])):
        numbers = json.loads((ROOT / f"evaluation/results/which_rule/{part}.json").read_text(encoding="utf-8"))
        for title in titles:
            assert "\n".join(table(title, numbers[title])) in page, f"{part}: {title}"
