"""What a release promises: one version, true metadata, a wheel of reasonable size that holds every file it needs."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from hf_acpmbr.version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="reading pyproject.toml needs Python 3.11 or tomli")

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hf_acpmbr"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MEGABYTE = 10**6


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "hf_acpmbr.version.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z]+\d+)?", __version__)
    pattern = re.compile(rf"\b{re.escape(__version__)}\b")
    files = [PACKAGE / "version.py", *(path for path in PACKAGE.rglob("*.py"))]
    assert {path.name for path in files if pattern.search(path.read_text(encoding="utf-8"))} == {"version.py"}
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.M)
    assert cited is None or cited.group(1) == __version__


def test_the_changelog_has_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert __version__ in headings
    assert headings[0] in ("Unreleased", __version__)


def test_licences_name_code_and_weights() -> None:
    project = PROJECT["project"]
    assert {"Apache-2.0", "CC-BY-2.0"} <= set(re.split(r"[ ()]+", project["license"]))
    for pattern in project["license-files"]:
        assert list(ROOT.glob(pattern)), pattern
    for card in PACKAGE.glob("embedded/*/README.md"):
        assert re.search(r"^license: \S+", card.read_text(encoding="utf-8"), flags=re.M), card


def test_classifiers_urls_and_python_versions_agree_with_the_workflow() -> None:
    project = PROJECT["project"]
    classified = {name.rsplit(" ", 1)[1] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert classified == set(matrix["python"])
    assert set(matrix["versions"]) == {"floors", "newest"}
    assert "exclude" not in matrix
    lowest = min(classified, key=lambda version: int(version.split(".")[1]))
    assert project["requires-python"] == f">={lowest}"
    assert all(url.startswith("https://") for url in project["urls"].values())
    assert "Paper" in project["urls"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_templates_are_yaml_and_run_targets_that_exist(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    assert yaml.safe_load(content)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    for target in re.findall(r"run: make ([a-z-]+)$", content, flags=re.M):
        assert target in targets
    if "make test-${{" in content:
        assert {"test-floors", "test-newest"} <= set(targets)


def test_the_releases_readme_has_absolute_links_and_its_metadata_the_repository() -> None:
    release = runpy.run_path(str(ROOT / ".github" / "absolute_links.py"))
    address = "https://github.com/someone/something"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", release["absolute"](text, address, "v1.0"))
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", text))
    assert all(link.startswith(("https://", "#")) for link in links)
    for view, path in re.findall(rf"{address}/(blob|raw)/v1.0/(\S+)", "\n".join(links)):
        assert (ROOT / path.split("#")[0]).exists(), path
        assert (view == "raw") == path.endswith(".png")
    project = tomllib.loads(release["with_urls"]((ROOT / "pyproject.toml").read_text(encoding="utf-8"), address))
    assert project["project"]["urls"] == {
        "Repository": address,
        "Issues": f"{address}/issues",
        **PROJECT["project"]["urls"],
    }


def test_every_file_of_the_package_goes_into_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["hf_acpmbr"]
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern) if path.is_file()}
    others = {
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    }
    assert {path.relative_to(PACKAGE).as_posix() for path in others - shipped} == set()


def test_the_weights_are_small_enough_for_the_wheel() -> None:
    # With the code on top an installed package has 20 MB, and the wheel, which is compressed, 18.
    files = [path for path in (PACKAGE / "embedded").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 19.1 * MEGABYTE


def test_the_source_distribution_takes_along_what_its_tests_read() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    for folder in ("docs", "evaluation", "examples", "tests", ".github"):
        assert f"graft {folder}" in manifest
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml", "constraints.txt"):
        assert name in manifest


def test_the_space_asks_for_what_the_package_needs() -> None:
    asked = (ROOT / "examples" / "space" / "requirements.txt").read_text(encoding="utf-8").split()
    assert set(asked) == set(PROJECT["project"]["dependencies"])
    card = (ROOT / "examples" / "space" / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^sdk_version: (\d+\.\d+)\.", card, flags=re.M)
    assert shown is not None
    assert f"gradio>={shown.group(1)}" in PROJECT["project"]["optional-dependencies"]["ui"]


def test_every_extra_of_a_message_exists_and_is_installed_from_the_repository() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    for path in (*PACKAGE.rglob("*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.*"), ROOT / "README.md"):
        text = path.read_text(encoding="utf-8", errors="ignore")
        for found in re.findall(r"'\.\[([a-z,-]+)\]'", text):
            assert set(found.split(",")) <= extras, f"{path.name}: [{found}]"
        # No package index has a distribution of this name, and somebody could put one there.
        assert not re.search(r"install[^\n]*hf-acpmbr|pypi\.org/project/hf-acpmbr", text), path
