"""The page: what it shows is checked without gradio, and the page itself in a headless browser where there is one."""

from __future__ import annotations

import argparse
import base64
import html
import importlib.util
import json
import re
import shutil
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.commands import ui as command
from hf_acpmbr.differences import highlighted
from hf_acpmbr.ui.analysis import Analysis, completion_error, decide_again, intervals, scores_per_row, with_budget
from hf_acpmbr.ui.jobs import Jobs
from hf_acpmbr.ui.rerank import Reranked, rerank_file
from hf_acpmbr.ui.rounds import rounds_picture
from hf_acpmbr.ui.settings import Form, Limits, Offer
from hf_acpmbr.ui.views import candidates_table, comparison, costs, heat_map, table_headers, table_rows
from hf_acpmbr.ui.workbench import Cancelled, Workbench
from hf_acpmbr.utilities import MatrixUtility

T = TypeVar("T")
SOURCE = "The weather was so bad that we stayed at home all day."


def value_of(steps: Generator[str, None, T]) -> T:
    """Run a job to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


@pytest.fixture(scope="module")
def workbench() -> Workbench:
    return Workbench()


@pytest.fixture(scope="module")
def analysis(workbench: Workbench) -> Analysis:
    """The embedded models on one sentence, all pairs scored."""
    return value_of(workbench.analyse(Form(SOURCE, candidates=20, recipe="fast")))


def test_the_page_shows_what_generate_gives(analysis: Analysis, workbench: Workbench) -> None:
    from hf_acpmbr.models import load_model

    model, tokenizer, language = load_model("embedded", source_language="en", target_language="de")
    mbr = ACPMBR(tokenizer, target="embedded", distilled="embedded-d1", recipe="fast", num_candidates=20)
    inputs = tokenizer(SOURCE, return_tensors="pt")
    limit = 2 * inputs["input_ids"].shape[1] + 20
    out = model.generate(
        **inputs, **language, custom_generate=mbr, return_dict_in_generate=True, max_new_tokens=limit, sources=[SOURCE]
    )
    assert analysis.decision.text == out.texts[0][0]
    assert analysis.decision.signature == out.decisions[0].signature
    assert analysis.decision.calls == out.decisions[0].calls


def test_full_mbr_is_the_best_by_the_true_scores(analysis: Analysis) -> None:
    assert analysis.truth is not None
    worth = [
        sum(w * analysis.truth.matrix[i, j] for j, w in enumerate(analysis.candidates.weights))
        for i in range(len(analysis.candidates))
    ]
    best = int(np.argmax(worth))
    full = next(choice for choice in analysis.choices if choice.method == "Full MBR")
    assert full.text == analysis.candidates.texts[best]
    assert full.expected == pytest.approx(worth[best])
    ranks = analysis.full_ranks()
    assert ranks is not None
    assert sorted(ranks) == list(range(1, len(worth) + 1))
    assert ranks[best] == 1
    errors = replace(analysis, target=MatrixUtility(analysis.truth.matrix, higher_is_better=False)).full_ranks()
    assert errors is not None
    assert errors[int(np.argmin(worth))] == 1


def test_the_error_counts_every_pair_as_often_as_it_was_drawn(analysis: Analysis) -> None:
    texts = analysis.candidates.texts
    counts = np.arange(1, len(texts) + 1)
    uneven = replace(analysis, candidates=Candidates(texts, counts))
    assert uneven.truth is not None
    assert uneven.completed is not None
    squared = np.square(100 / uneven.target.scale * (uneven.completed - uneven.truth.matrix))
    pairs = np.outer(counts, counts)
    assert completion_error(uneven) == pytest.approx((pairs * squared).sum() / pairs.sum())


def test_another_budget_calls_no_utility(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a utility was called")

    for utility in (analysis.target, *analysis.guides):
        monkeypatch.setattr(type(utility), "kernel", fail)
    cheap, dear = decide_again(analysis, 0.5), decide_again(analysis, 64)
    assert cheap.decision.calls["embedded"] < analysis.decision.calls["embedded"]
    assert dear.decision.exact
    assert dear.decision.text == next(choice.text for choice in analysis.choices if choice.method == "Full MBR")
    assert dear.choices[0].error == pytest.approx(0, abs=1e-9)
    assert dear.choices[1:] == analysis.choices[1:], "the other methods stay"


def test_the_recipes_own_budget_gives_its_own_decision_again(analysis: Analysis) -> None:
    again = decide_again(analysis, scores_per_row(analysis.recipe))
    assert again.decision.text == analysis.decision.text
    assert again.decision.calls == analysis.decision.calls
    np.testing.assert_allclose(again.decision.expected, analysis.decision.expected, atol=1e-4)
    assert [list(r.rows) for r in again.decision.trials] == [list(r.rows) for r in analysis.decision.trials]


def test_a_budget_scales_the_guides_budget_alike(analysis: Analysis) -> None:
    decoder: Any = with_budget(analysis.recipe, 3).decoder
    assert decoder.budget.scores_per_row == 3
    assert decoder.guide_budgets[0].scores_per_row == pytest.approx(12)  # "fast": 1 and 4 scores per row with d1


def test_the_rounds_are_those_of_the_decision(analysis: Analysis) -> None:
    trials = analysis.decision.trials
    assert len(trials) == len(analysis.decision.rounds) > 1
    assert sum(map(len, trials)) == analysis.decision.calls["embedded"]
    observed = analysis.decision.observed
    assert observed is not None
    tried = {int(index) for trial in trials for index in trial.rows}
    assert tried == set(observed.rows.tolist())
    picture = rounds_picture(analysis)
    assert picture.count("<g class=") == min(len(tried), 24)
    assert picture.count("<g class='own'>") == 1


def test_without_all_pairs_nothing_is_said_to_be_true(workbench: Workbench) -> None:
    found = value_of(workbench.analyse(Form(SOURCE, candidates=12, recipe="fast", score_all=False)))
    assert found.truth is None
    assert "Rank, full MBR" not in table_headers(found)
    assert [choice.expected for choice in found.choices] == [None] * len(found.choices)
    assert [panel["data"] is None for panel in heat_map(found)["panels"]] == [False, False, False, True, True]
    with pytest.raises(ValueError, match="score all pairs"):
        decide_again(found, 4)


def test_the_table_has_every_candidate_with_its_interval(analysis: Analysis) -> None:
    headers, rows = table_headers(analysis), table_rows(analysis)
    assert len(rows) == len(analysis.candidates)
    assert sum(row[headers.index("Draws")] for row in rows) == 20
    assert rows[0][headers.index("Text")] == analysis.decision.text
    widths = intervals(analysis)
    assert widths is not None
    assert rows[0][headers.index("± 95%")] == pytest.approx(100 * widths[analysis.decision.index], abs=0.01)
    assert (widths > 0).any()
    assert candidates_table(analysis).count("<tr>") == len(rows) + 1


def test_the_heat_map_is_the_matrix_in_the_decisions_order(analysis: Analysis) -> None:
    shown = heat_map(analysis)
    order = analysis.decision.ranking
    assert shown["texts"][0] == analysis.decision.text
    assert analysis.truth is not None
    expected = {"true": analysis.truth.matrix, "completed": analysis.completed}
    for panel in shown["panels"]:
        values = np.frombuffer(base64.b64decode(panel["data"]), dtype="<f4").reshape(len(order), -1)
        if panel["key"] in expected:
            np.testing.assert_allclose(values, 100 * expected[panel["key"]][np.ix_(order, order)], rtol=1e-5)
        if panel["key"] == "target":
            assert np.isfinite(values).sum() == analysis.decision.calls["embedded"] == panel["scored"]
    error = shown["panels"][4]
    assert error["low"] == -error["high"]


def test_costs_add_up_and_the_error_is_the_weighted_mean_square(analysis: Analysis) -> None:
    assert analysis.cost({"embedded": len(analysis.candidates) ** 2}) == pytest.approx(1)
    guide = analysis.guides[0]
    assert analysis.cost({guide.name: len(analysis.candidates) ** 2}) == pytest.approx(
        guide.parameters / analysis.target.parameters
    )
    assert "saved" in costs(analysis)
    assert analysis.decision.signature in html.unescape(costs(analysis))
    completed, truth = analysis.completed, analysis.truth
    assert completed is not None
    assert truth is not None
    counts = analysis.candidates.counts
    wide = np.repeat(np.repeat(completed - truth.matrix, counts, axis=0), counts, axis=1)
    assert completion_error(analysis) == pytest.approx(np.mean((100 * wide) ** 2))


@pytest.mark.parametrize(
    ("text", "reference", "shown"),
    [
        ("the big cat", "the small cat", "the <mark>big</mark> cat"),
        ("the cat", "the cat", "the cat"),
        ("the cat", "the small cat", "the <span class='gap' title='not here: small'>‸</span>cat"),
        ("a <b> c", "a c", "a <mark>&lt;b&gt;</mark> c"),
        ("", "x", "<span class='gap' title='not here: x'>‸</span>"),
        ("x", "", "<mark>x</mark>"),
    ],
)
def test_differences_are_marked_and_texts_escaped(text: str, reference: str, shown: str) -> None:
    assert highlighted(text, reference) == shown


def test_markup_in_a_candidate_stays_text(analysis: Analysis) -> None:
    evil = "<script>alert(1)</script>"
    pool = replace(analysis.candidates, texts=(evil, *analysis.candidates.texts[1:]))
    shown = replace(analysis, candidates=pool, decision=replace(analysis.decision, candidates=pool))
    shown = replace(shown, choices=(replace(shown.choices[0], text=evil), *shown.choices[1:]))
    for page in (comparison(shown), candidates_table(shown), rounds_picture(shown), costs(shown)):
        assert "<script" not in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "  "}, "is empty"),
        ({"source": "x" * 501}, "501 characters, at most 500"),
        ({"candidates": 1}, "from 2 to 256"),
        ({"candidates": 10_000}, "from 2 to 256"),
        ({"model": "gpt2"}, "not offered here"),
        ({"target": "bleurt-20"}, "not offered here"),
        ({"guide": "embedded"}, "not offered here"),
        ({"recipe": "quick"}, "not offered here"),
        ({"target": "chrf", "guide": "chrf"}, "both 'chrf'"),
        ({"target_language": "fr"}, "not a language"),
    ],
)
def test_what_is_not_offered_or_too_much_is_refused(workbench: Workbench, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        value_of(workbench.analyse(Form(**{"source": SOURCE, "candidates": 4, **change})))


def test_a_job_ends_soon_after_it_is_cancelled(workbench: Workbench) -> None:
    model = workbench.model("embedded").model
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(0)
        return len(asked) > 3

    with pytest.raises(Cancelled):
        value_of(workbench.analyse(Form(SOURCE, candidates=20), cancelled))
    assert len(asked) == 4, "it must not go on after the answer"
    assert not model._forward_pre_hooks, "nothing stays behind in the model"
    seen: list[str] = []
    steps = workbench.analyse(Form(SOURCE, candidates=20), lambda: any("all pairs" in line for line in seen))
    with pytest.raises(Cancelled):
        seen.extend(steps)
    assert sum("all pairs" in line for line in seen) == 1


def test_jobs_of_one_visitor_replace_each_other_and_leave_others_alone() -> None:
    jobs = Jobs()
    first, other = jobs.start("a"), jobs.start("b")
    second = jobs.start("a")
    assert first.is_set()
    assert not second.is_set()
    jobs.end("a", first)  # an old job that ends late must not unregister the new one
    assert jobs.cancel("a")
    assert second.is_set()
    assert not other.is_set()
    assert not jobs.cancel("a")


def test_rerank_writes_what_the_command_writes(workbench: Workbench, tmp_path: Path) -> None:
    from hf_acpmbr.cli import main

    lines = [{"candidates": ["the cat sat", "a cat sat", "the cat sat", "dogs run"], "id": 7}, ["Hello.", "Hello!"]]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found: Reranked = value_of(rerank_file(workbench, path, "chrf", "none", "auto"))
    options = ["--target", "chrf", "--format", "jsonl", "--nbest", "5", "--quiet"]
    assert main(["rerank", "--input", str(path), "--output", str(tmp_path / "out.jsonl"), *options]) == 0
    assert found.file.read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    assert [row[1] for row in found.rows] == ["the cat sat", json.loads(found.file.read_text().splitlines()[1])["text"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("not json\n", "the file, line 1 is not JSON"),
        ('["a", "b"]\n["a"]\n["a"]\n', "more than the 2 lines"),
        ('["a", "b", "c", "d"]\n', "line 1 has 4 texts, at most 3"),
        ('["' + "x" * 60 + '"]\n', "a text of 60 characters, at most 50"),
        ("\xff", "UTF-8"),
    ],
)
def test_a_file_beyond_the_limits_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "secret-folder.jsonl"
    path.write_bytes(content.encode("latin-1"))
    limits = Limits(file_lines=2, candidates=3, source_characters=50)
    with pytest.raises(ValueError, match=message) as caught:
        value_of(rerank_file(Workbench(limits=limits), path, "chrf", "none", "auto"))
    assert "secret-folder" not in str(caught.value)


def test_the_command_offers_what_it_is_given_and_binds_to_this_machine() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--model", "folder", "--target", "comet", "--max-candidates", "32"])
    assert args.host == "127.0.0.1"
    offer = command.offer(args)
    assert offer.models == ("folder", "embedded")
    assert offer.targets[:2] == ("comet", "embedded")
    assert command.limits(args).candidates == 32
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        command.limits(parser.parse_args(["--max-jobs", "0"]))


def test_without_gradio_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from hf_acpmbr.ui.page import gradio

    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'hf-acpmbr[ui]'")):
        gradio()


def test_the_space_is_this_page_and_offers_only_the_embedded_models() -> None:
    folder = Path(__file__).resolve().parents[1] / "examples" / "space"
    header = (folder / "README.md").read_text(encoding="utf-8").split("---")[1]
    assert re.search(r"^sdk: gradio$", header, flags=re.M)
    app = re.search(r"^app_file: (.+)$", header, flags=re.M)
    assert app is not None
    assert "hf_acpmbr.ui" in (folder / app.group(1)).read_text(encoding="utf-8")
    assert Offer().models == ("embedded",)


def browser_is_missing() -> str | None:
    if importlib.util.find_spec("gradio") is None:
        return "gradio is not installed (pip install 'hf-acpmbr[ui]')"
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return None if browser() else "there is neither chromium nor chrome on this machine"


def browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The page, served for one visitor."""
    if reason := browser_is_missing():
        pytest.skip(reason)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gradio's own imports
        from hf_acpmbr.ui.page import launch

        blocks = launch(limits=Limits(source_characters=200), wait=False)
    yield blocks.local_url
    blocks.close(verbose=False)


@pytest.fixture
def visit(address: str) -> Iterator[Any]:
    """A browser on the page; whatever it says on its console as an error, or fetches from elsewhere, fails the test."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        page = started.new_page(viewport={"width": 420, "height": 900})
        page.set_default_timeout(120_000)
        errors: list[str] = []
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        inside = (address, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(inside) else errors.append(r.url))
        page.goto(address)
        page.wait_for_selector("#source textarea")
        yield page
        started.close()
    assert errors == []


@pytest.mark.filterwarnings("ignore")
def test_a_visitor_types_runs_sees_table_and_map_and_changes_the_budget(visit: Any) -> None:
    visit.fill("#source textarea", "Where is the station?")
    visit.click("#run")
    visit.wait_for_selector("#comparison table", state="attached")
    assert "Full MBR" in visit.inner_text("#comparison")
    tab = visit.locator("button[role=tab]")
    tab.get_by_text("Candidates", exact=True).last.click(force=True)
    visit.wait_for_selector("#candidates tbody tr")
    assert visit.locator("#candidates tbody tr").count() > 1
    draws = "#candidates tbody tr:first-child td:nth-child(3)"
    visit.click("#candidates th:nth-child(3) button")
    visit.click("#candidates th:nth-child(3) button")
    counts = [int(text) for text in visit.locator("#candidates tbody td:nth-child(3)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    assert int(visit.inner_text(draws)) == max(counts)
    tab.get_by_text("Matrix", exact=True).last.click(force=True)
    canvas = visit.locator("#matrix canvas")
    assert canvas.evaluate("c => c.width") == len(counts)
    visit.click("#matrix button[data-key=true]")
    canvas.hover(position={"x": 3, "y": 3})
    hovered = visit.inner_text("#matrix .map-hover")
    assert re.search(r"true: [\d.]+", hovered)
    assert "candidate 1:" in hovered
    for name in ("Choice", "Candidates", "Matrix", "Cost", "Rounds"):
        tab.get_by_text(name, exact=True).last.click(force=True)
        visit.wait_for_timeout(300)
        assert visit.evaluate("document.documentElement.scrollWidth") <= 420, f"{name} is wider than a phone"
    visit.fill("#budget input[type=number]", "4")
    visit.press("#budget input[type=number]", "Enter")
    visit.dispatch_event("#budget input[type=range]", "pointerup")
    visit.wait_for_function("document.querySelector('#status').innerText.includes('decided again')")


@pytest.mark.filterwarnings("ignore")
def test_a_cancelled_job_ends_and_the_next_one_runs(visit: Any) -> None:
    visit.fill("#source textarea", SOURCE)
    visit.click("#run")
    visit.wait_for_function("/drawing|scoring/.test(document.querySelector('#status').innerText)")
    visit.click("#cancel")
    visit.wait_for_function("document.querySelector('#status').innerText == 'cancelled'")
    visit.wait_for_timeout(1000)
    assert visit.inner_text("#status") == "cancelled", "the job went on"
    visit.fill("#source textarea", "Where is the station?")
    visit.click("#run")
    visit.wait_for_selector("#comparison table", state="attached")


@pytest.mark.filterwarnings("ignore")
def test_a_mistake_is_a_message_and_the_page_goes_on(visit: Any) -> None:
    visit.fill("#source textarea", "  ")
    visit.click("#run")
    visit.wait_for_selector("#status [role=alert]")
    assert "type a sentence" in visit.inner_text("#status")
    visit.get_by_role("tab", name="Rerank a file").click()
    visit.click("#rerank")
    visit.wait_for_selector("#rerank-status [role=alert]")
    assert "upload a file" in visit.inner_text("#rerank-status")


@pytest.mark.filterwarnings("ignore")
def test_a_file_is_reranked_and_offered_for_download(visit: Any, tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text('["the cat sat", "a cat sat", "the cat sat", "dogs run"]\n', encoding="utf-8")
    visit.get_by_role("tab", name="Rerank a file").click()
    visit.set_input_files("#upload input[type=file]", str(path))
    visit.wait_for_selector("#upload >> text=candidates")
    visit.click("#rerank")
    visit.wait_for_selector("#download a[download]")
    assert "the cat sat" in visit.inner_text("#reranked tbody tr:first-child")
