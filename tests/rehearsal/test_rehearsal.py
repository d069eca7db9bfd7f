"""Dress rehearsal: what README, docs, examples and evaluation say about published models runs as it is written.

The models are tiny, but under the published ids and in the published files (hub.py), in a cache of the Hub that is all
there is. Sizes that are replaced in a text stand in `SMALLER`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.report.page import write_report
from evaluation.report.results import open_results
from evaluation.report.table import build_table
from evaluation.wmt import run as evaluation_run
from hf_acpmbr.scoring import load_utility
from tests.metrics.cases import MODULE
from tests.metrics.checkpoints import SENTENCES
from tests.rehearsal import hub as published
from tests.rehearsal.pages import PAGES, ROOT, commands, snippets

# The README is run as it stands; elsewhere fewer candidates do, and there may be no GPU.
SMALLER = {"num_candidates=1024": "num_candidates=64", 'device="cuda:0"': 'device="cpu"'}
# Names that pages use without defining them; README's blocks define the rest.
GIVEN = f"""
import evaluate
from datasets import Dataset
ds = Dataset.from_dict({{"en": ["It is raining."]}})
hypotheses = candidates = {SENTENCES[:3]!r}
references = {SENTENCES[2:5]!r}
rows, columns = [0, 1], [1, 2]
my_function = lambda hypotheses, references: [float(len(text)) for text in hypotheses]
my_evaluate_module = evaluate.load("path/to/evaluate_script.py")
"""
PROGRAMS = ("vllm", "ray")  # pages about other programs, which the tests do not install
README = PAGES[0]
SNIPPETS = [
    {"page": page.name, "python": text, "name": f"{page.relative_to(ROOT)}:{number}"}
    for page in PAGES
    for number, text in enumerate(snippets(page))
]
SMALL = ["--num-candidates", "16", "--max-new-tokens", "12", "--input", "src.txt", "--quiet"]
TRANSLATE = {
    "nllb": ["--model", published.NLLB, "--source-language", "eng_Latn", "--target-language", "deu_Latn"],
    "opus": [
        "--model",
        published.OPUS,
        "--target",
        "bertscore",
        "--target-option",
        "checkpoint=FacebookAI/roberta-large",
        "layer=17",
    ],
    "llama": ["--model", published.LLAMA, "--chat", "--prompt", "see {source}", "--target", "comet"],
    "qwen": ["--model", published.QWEN, "--chat", "--target", "xcomet-xl"],
}
_PROGRAMS = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem != "llm_judge"]
EXAMPLES = [  # a judge's answers need tokens of their own, which the tiny chat models do not have
    *commands(*_PROGRAMS, program="python"),
    *commands(*sorted((ROOT / "docs").rglob("*.md")), program="accelerate launch"),
]
FILES = ["--hypotheses", "hypotheses.txt", "--references", "references.txt", "--sources", "src.txt"]
SCORED = ["bleurt-20", "bleurt-20-d12", "bleurt-20-d6", "bleurt-20-d3", "comet", "xcomet-xl", "metricx-24", "bertscore"]
SCORED += ["cometkiwi", "metricx-24-qe", "metricx-24-xl", "Unbabel/wmt22-comet-da", "lucadiliello/BLEURT-20-D3"]
COMMANDS = {
    "README": commands(*PAGES, program="acpmbr")[0][1:],
    **{f"translate {name}": ["translate", *options, *SMALL] for name, options in TRANSLATE.items()},
    "rerank by comet": ["rerank", "--input", "candidates.jsonl", "--target", "comet", "--quiet"],
    "rerank by metricx and bleurt": [
        *("rerank", "--input", "candidates.jsonl", "--target", "metricx-24", "--distilled", "bleurt-20-d3", "--quiet"),
    ],
    "score": ["score", "--utility", "metricx-24", *FILES],
    "demo": ["demo", "--source", "It rains.", "--target", "bleurt-20", "--distilled", "bleurt-20-d12"],
}


@dataclass(frozen=True)
class Place:
    """A folder with the files that the commands read, and the environment of a user with the cache and no network."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Standard output of a command that must succeed."""
        done = subprocess.run(
            command, cwd=cwd or self.folder, env=self.environment, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("rehearsal")
    cache = published.build(folder / "published")
    texts = {"src": "The cat sat on the mat.\n\nWhere is the station?\n", "hypotheses": "a cat\n\nthe station\n"}
    texts["references"] = "the cat\nno\nthe old station\n"
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    line = {"source": SENTENCES[2], "candidates": [SENTENCES[1], SENTENCES[4], SENTENCES[1], SENTENCES[6]]}
    (folder / "candidates.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    (folder / "path" / "to").mkdir(parents=True)
    module = MODULE.replace('"lengths"', '"scores"')
    (folder / "path" / "to" / "evaluate_script.py").write_text(module, encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK", "HF_HOME")}
    own = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folder / "modules")}
    own |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true"}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return Place(folder, {**inherited, **own, "PATH": programs})


@pytest.fixture(scope="session")
def session(place: Place) -> dict[str, dict[str, Any]]:
    """What came of every snippet and command, by name; one process for all, since loading libraries takes longest."""
    steps: dict[str, dict[str, Any]] = {"given": {"page": README.name, "python": GIVEN}}
    for snippet in SNIPPETS:
        text = snippet["python"]
        for large, small in SMALLER.items() if snippet["page"] != README.name else ():
            text = text.replace(large, small)
        steps[snippet["name"]] = {"page": snippet["page"], "python": text}
        if snippet["name"] == "README.md:0":
            shown = "print(tokenizer.batch_decode(ids, skip_special_tokens=True)[0])"
            steps["README's translation"] = {"page": README.name, "python": shown}
    steps |= {name: {"acpmbr": arguments} for name, arguments in COMMANDS.items()}
    files = place.folder / "steps.json", place.folder / "results.json"
    files[0].write_text(json.dumps(list(steps.values())), encoding="utf-8")
    place.run(sys.executable, "-m", "tests.rehearsal.session", *map(str, files))
    return dict(zip(steps, json.loads(files[1].read_text(encoding="utf-8")), strict=True))


def succeeded(result: dict[str, Any]) -> str:
    assert result["code"] == 0, result["errors"]
    assert "Traceback" not in result["errors"]
    return str(result["output"])


@pytest.mark.parametrize("name", [snippet["name"] for snippet in SNIPPETS])
def test_a_snippet_that_names_something_published_runs(session: dict[str, dict[str, Any]], name: str) -> None:
    succeeded(session["given"])
    for program in PROGRAMS:
        if f"No module named '{program}'" in session[name]["errors"]:
            pytest.skip(f"{name} is about {program}, which is not installed")
    succeeded(session[name])


def test_the_readme_translates(session: dict[str, dict[str, Any]]) -> None:
    text = succeeded(session["README's translation"])
    assert "leid" in text
    assert "__de__" not in text


def test_the_readme_s_command_writes_one_line_per_line(session: dict[str, dict[str, Any]], place: Place) -> None:
    succeeded(session["README"])
    first, blank, last, end = (place.folder / "out.txt").read_text(encoding="utf-8").split("\n")
    assert "Katze" in first, "in German; which of the translations is up to random weights, which differ with torch"
    assert (blank, end) == ("", "")
    assert last.endswith("?")


@pytest.mark.parametrize("name", [f"translate {name}" for name in TRANSLATE])
def test_every_published_family_translates(session: dict[str, dict[str, Any]], name: str) -> None:
    first, blank, last = succeeded(session[name]).splitlines()
    assert first.strip()
    assert last.strip()
    assert not blank


@pytest.mark.parametrize("name", ["rerank by comet", "rerank by metricx and bleurt"])
def test_published_utilities_rerank(session: dict[str, dict[str, Any]], name: str) -> None:
    assert succeeded(session[name]).strip() in (SENTENCES[1], SENTENCES[4], SENTENCES[6])


def test_the_demo_takes_published_utilities(session: dict[str, dict[str, Any]]) -> None:
    assert "bleurt-20" in succeeded(session["demo"])


@pytest.mark.parametrize("name", SCORED)
def test_every_published_utility_loads_by_its_name(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", place.environment["HF_HUB_CACHE"])
    utility = load_utility(name)
    sources, hypotheses, references = SENTENCES[:4], SENTENCES[4:8], SENTENCES[8:]
    scores = utility.score(hypotheses, references if utility.needs_reference else None, sources)
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 1e-3, "texts must differ in score"
    assert f"@{'a' * 12}" in utility.signature, "the commit of the cache"


def test_the_command_scores_as_the_library_does(
    session: dict[str, dict[str, Any]], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", place.environment["HF_HUB_CACHE"])
    texts = [(place.folder / f"{name}.txt").read_text().split("\n")[:3] for name in ("hypotheses", "references", "src")]
    expected = load_utility("metricx-24").score(*texts)
    assert json.loads(succeeded(session["score"]))["scores"] == pytest.approx(expected.tolist(), abs=1e-5)


def paper_run(place: Place, name: str, data: Path, *more: str) -> Path:
    """A configuration of the paper as evaluation/README.md launches it, on one source and 8 candidates."""
    (command,) = commands(
        ROOT / "evaluation" / "README.md", program="accelerate launch", mark=f"--config paper --budgets {name}"
    )
    output = place.folder / "runs" / "".join((name, *more))
    smaller = ["--limit", "1", "--num-candidates", "8", "--data-folder", str(data), "--output", str(output)]
    printed = place.run(*command, *smaller, *more, cwd=ROOT)  # of an option that is given twice the last one holds
    assert f"AC-PMBR (AC-ALS) {name}" in printed
    assert "sources failed" not in printed
    return output


def check_paper(folder: Path) -> None:
    """Every row and column of the paper's table is there for both directions, and full MBR has no regret."""
    results = open_results(folder)
    assert sorted(result.pair for result in results) == ["de-en", "en-de"]
    for result in results:
        table = build_table(result)
        rows = [row for row in table.rows if row is not None]
        methods = [row[0].split()[0].rstrip(",") for row in rows]
        assert methods == ["MAP", "Beam", *["MBR"] * 4, "PMBR", *["AC-PMBR"] * 3, "Oracle"]
        metrics = slice(2, 2 + len(result.settings.metrics))
        assert list(table.header[metrics]) == ["BLEURT", "XCOMET", "BLEU", "chrF", "MetricX ↓"]
        assert np.isfinite([[float(value) for value in row[metrics]] for row in rows]).all()
        assert float(rows[2][table.header.index("regret")]) == 0
        assert result.failed == {}


def test_the_paper_s_high_run_goes_through_to_the_report(place: Place, shared_data: Path) -> None:
    output = paper_run(place, "high", shared_data)
    check_paper(output)
    assert "BLEURT" in write_report(output).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_paper_s_low_run_goes_through_to_the_report(place: Place, shared_data: Path) -> None:
    output = paper_run(place, "low", shared_data)
    check_paper(output)
    place.run(sys.executable, "-m", "evaluation.report", str(output))
    assert "BLEURT" in (output / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_without_full_matrices_scores_what_is_observed(place: Place, shared_data: Path) -> None:
    output = paper_run(place, "high", shared_data, "--no-full-matrices")
    for result in open_results(output):
        methods = [row[0].text.split()[0] for row in build_table(result).rows if row is not None]
        assert methods == ["MAP", "Beam", "PMBR", *["AC-PMBR"] * 3, "Oracle"]


@pytest.mark.slow
@pytest.mark.parametrize("command", EXAMPLES, ids=[" ".join(command) for command in EXAMPLES])
def test_the_commands_of_the_examples_run(place: Place, command: list[str]) -> None:
    files = {"en.txt": str(place.folder / "src.txt"), "de.txt": str(place.folder / "de.txt")}
    command = [{"8": "1", **files}.get(word, word) for word in command if word != "--multi_gpu"]  # one process, no GPU
    said = place.run(*command, cwd=ROOT)
    assert (Path(files["de.txt"]).read_text(encoding="utf-8") if files["de.txt"] in command else said).strip()


@pytest.mark.slow
def test_the_installed_program_does_the_same_as_the_session(
    session: dict[str, dict[str, Any]], place: Place, tmp_path: Path
) -> None:
    expected = (place.folder / "out.txt").read_text(encoding="utf-8")
    again = tmp_path / "again.txt"
    place.run("acpmbr", *COMMANDS["README"], "--output", str(again))
    assert again.read_text(encoding="utf-8") == expected


def test_a_missing_checkpoint_ends_the_run_before_any_work(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", place.environment["HF_HUB_CACHE"])
    options = ["--config", "paper", "--data", "builtin", "--pairs", "en-de", "--metrics", "xcomet-xxl"]
    options += ["--model", "embedded"]  # which is there in any case
    assert evaluation_run.main([*options, "--output", str(tmp_path / "run")]) != 0
    assert "metric-xcomet-xxl: its files cannot be had" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.parquet"))
