"""The page: what it shows is checked without gradio, and the page itself in a headless browser where there is one."""

from __future__ import annotations

import argparse
import base64
import html
import importlib.util
import re
import shutil
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from hf_acpmbr import ACPMBR, Recipe
from hf_acpmbr.cli import ui as command
from hf_acpmbr.differences import highlighted
from hf_acpmbr.ui.analysis import Analysis, Workbench, fast, other_choices
from hf_acpmbr.ui.session import NO_GUIDE, OPENING, PASTE, Cancelled, Form, Jobs, Limits, Offer
from hf_acpmbr.ui.views import (
    candidates_columns,
    candidates_table,
    comparison,
    costs,
    headline,
    heat_map,
    rounds_picture,
)

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
    from hf_acpmbr.generation.models import load_model

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


def true_worth(analysis: Analysis) -> list[float]:
    """Expected utilities by a loop over pairs of the utility's own `score`."""
    pool = analysis.candidates
    return [
        sum(w * u for w, u in zip(pool.weights, analysis.target.score([text] * len(pool), pool.texts), strict=True))
        for text in pool.texts
    ]


def test_pasted_candidates_give_what_rerank_gives(workbench: Workbench) -> None:
    lines = ["the cat sat", "a cat sat", "the cat sat", "dogs run"]
    form = Form("", mode=PASTE, pasted="\n".join(lines) + "\n\n", target="chrf", guide="none")
    found = value_of(workbench.analyse(form))
    expected = ACPMBR(target="chrf").rerank(lines)
    assert found.decision.signature == expected.signature
    assert found.decision.text == expected.text == "the cat sat"
    assert found.drawing is None
    assert "Beam search" not in [choice.method for choice in found.choices]


def test_full_mbr_is_the_best_by_the_true_scores(analysis: Analysis) -> None:
    worth = true_worth(analysis)
    best = int(np.argmax(worth))
    full = next(choice for choice in analysis.choices if choice.method == "Full MBR")
    assert full.text == analysis.candidates.texts[best]
    assert full.expected == pytest.approx(worth[best], abs=1e-5)
    columns = candidates_columns(analysis)
    ranks = dict(zip(columns["Text"], columns["Rank, full MBR"], strict=True))
    assert sorted(ranks.values()) == list(range(1, len(worth) + 1))
    assert ranks[full.text] == 1


def test_every_choice_is_worth_what_all_scores_say(analysis: Analysis) -> None:
    worth = dict(zip(analysis.candidates.texts, true_worth(analysis), strict=True))
    inside = [choice for choice in analysis.choices if choice.text in worth]
    assert len(inside) >= len(analysis.choices) - 1, "only beam search may find another text"
    for choice in inside:
        assert choice.expected == pytest.approx(worth[choice.text], abs=1e-5), choice.method


def test_other_decoders_are_those_of_the_recipe_fast_and_call_no_utility(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = analysis.guides[0].name
    for utility in (analysis.target, *analysis.guides):
        monkeypatch.setattr(type(utility), "kernel", lambda *_: pytest.fail("a utility was called"))
    again = {choice.method: choice for choice in other_choices(analysis, None, Offer())}
    for name, method, guides in (
        ("acpmbr", "AC-PMBR (transfer)", [guide]),
        ("pmbr", "PMBR (als)", []),
        ("halving", "Halving", []),
    ):
        mbr = ACPMBR(target="embedded", distilled=guides, decoder=name, recipe="fast")
        found = fast(name, analysis.recipe)
        assert found is not None
        assert (found.decoder, found.distilled) == (mbr.recipe.decoder, mbr.recipe.distilled)
        assert again[f"{method}, fast"].calls["embedded"] <= (1 if guides else 2) * analysis.candidates.total


def test_another_budget_is_the_recipes_own_setting() -> None:
    cheap = Form(SOURCE, candidates=20, recipe="fast", scores=0.5).build()
    assert cheap == Recipe.named(
        "fast", target="embedded", distilled="embedded-d1", num_candidates=20, scores_per_row=0.5
    )
    assert Form(SOURCE, candidates=20, recipe="fast").build() != cheap


def test_status_and_rounds_agree(analysis: Analysis) -> None:
    trials = analysis.decision.trials
    assert len(trials) == len(analysis.decision.rounds) > 1
    tried = {int(index) for trial in trials for index in trial.rows}
    picture = rounds_picture(analysis)
    assert picture.count("<td class='text'>") == min(len(tried), 24)
    assert picture.count("<tr class='own'>") == 1
    assert [int(size) for size in re.findall(r"class='dot'>\d+<small>(\d+)<", picture)] == [*analysis.decision.rounds]
    went = " → ".join(map(str, analysis.decision.rounds))
    assert went in picture
    assert f" in {len(analysis.decision.rounds)} rounds." in headline(analysis)


def test_drawing_until_sure_says_how_many_and_why(workbench: Workbench) -> None:
    form = Form(SOURCE, candidates=80, until_sure=True, guide=NO_GUIDE, score_all=False)
    shown = value_of(workbench.analyse(form))
    draws = shown.decision.draws
    assert draws is not None
    assert draws.most == 80
    why = "all 80 draws taken" if draws.drawn == 80 else f"{draws.drawn} of at most 80 draws, expected loss below"
    assert f"Drawing ended: {why}" in headline(shown)
    with pytest.raises(ValueError, match="states none"):
        value_of(workbench.analyse(replace(form, recipe="fast")))


def test_a_decoder_that_completes_nothing_shows_no_completion(workbench: Workbench, analysis: Analysis) -> None:
    def keys(shown: Analysis) -> list[str]:
        return [panel["key"] for panel in heat_map(shown)["panels"]]

    assert keys(analysis) == ["target", "guide", "true"]
    for page in (costs(analysis), comparison(analysis), rounds_picture(analysis)):
        assert "complet" not in re.sub("<code>.*</code>", "", page)
    completing = value_of(workbench.analyse(Form(SOURCE, candidates=20, recipe="fast", decoder="acpmbr")))
    assert keys(completing) == ["target", "guide", "completed", "true"]


def test_without_all_pairs_nothing_is_said_to_be_true(workbench: Workbench) -> None:
    found = value_of(workbench.analyse(Form(SOURCE, candidates=12, recipe="fast", score_all=False)))
    assert found.full == ()
    assert not {"Rank, full MBR", "Quality"} & set(candidates_columns(found))
    assert [choice.expected for choice in found.choices] == [None] * len(found.choices)
    assert [panel["key"] for panel in heat_map(found)["panels"]] == ["target", "guide"]


def test_the_page_opens_with_a_sentence_whose_methods_differ(workbench: Workbench) -> None:
    opened = value_of(workbench.analyse(Form(OPENING)))
    texts = {choice.method: choice.text for choice in opened.choices}
    assert len(set(texts.values())) > 2
    assert opened.decision.text == texts["Full MBR"] != texts["Beam search"]
    assert opened.cost(opened.decision.calls) < 0.35


def test_a_decoder_from_elsewhere_is_offered_and_compared() -> None:
    found = value_of(
        Workbench(Offer(decoders=("rounds", "pruning"))).analyse(
            Form("", mode=PASTE, pasted="a b\na c\nb c\na b", target="chrf", guide="none", decoder="pruning")
        )
    )
    assert found.choices[0].method == "pruning (this recipe)"
    assert "Rounds, fast" in [choice.method for choice in found.choices]


def test_the_table_has_every_candidate_with_its_interval(analysis: Analysis) -> None:
    columns = candidates_columns(analysis)
    assert len(columns["Text"]) == len(analysis.candidates)
    assert sum(columns["Draws"]) == 20
    assert columns["Text"][0] == analysis.decision.text
    deviation = analysis.decision.deviation
    assert deviation is not None
    assert columns["± 95%"][0] == pytest.approx(196 * deviation[analysis.decision.index], abs=0.01)
    assert candidates_table(analysis).count("<tr") == len(analysis.candidates) + 1


def test_the_heat_map_is_the_matrix_in_the_decisions_order_and_in_one_scale(analysis: Analysis) -> None:
    shown = heat_map(analysis)
    order = analysis.decision.ranking
    assert shown["texts"][0] == analysis.decision.text
    for panel in shown["panels"]:
        values = np.frombuffer(base64.b64decode(panel["data"]), dtype="<f4").reshape(len(order), -1)
        if panel["key"] == "true":
            text = shown["texts"][1]
            row = analysis.target.score([text] * len(order), shown["texts"])
            np.testing.assert_allclose(values[1], 100 * row, rtol=1e-4)
        if panel["key"] == "target":
            assert np.isfinite(values).sum() == analysis.decision.calls["embedded"] == panel["scored"]
    assert 0 <= shown["low"] < shown["high"] <= 100


def test_costs_count_calls_by_the_size_of_their_network(analysis: Analysis) -> None:
    pairs = len(analysis.candidates) ** 2
    guide = analysis.guides[0]
    part = guide.parameters / analysis.target.parameters
    assert analysis.cost({"embedded": pairs}) == pytest.approx(1)
    assert analysis.cost({guide.name: pairs}) == pytest.approx(part)
    assert f"costs {part:.2f} of one" in costs(analysis)
    assert analysis.decision.signature in html.unescape(costs(analysis))


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
    shown = replace(analysis, decision=replace(analysis.decision, candidates=pool))
    shown = replace(shown, others=(replace(shown.others[0], text=evil), *shown.others[1:]))
    for page in (comparison(shown), candidates_table(shown), rounds_picture(shown), costs(shown)):
        assert "<script" not in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "  "}, "is empty"),
        ({"source": "x" * 501}, "501 characters, at most 500"),
        ({"mode": PASTE, "pasted": "only one"}, "from 2 to 256, got 1"),
        ({"mode": PASTE, "pasted": "a\n" * 257}, "from 2 to 256, got 257"),
        ({"mode": PASTE, "pasted": "a\n" + "x" * 501}, "501 characters, at most 500"),
        ({"mode": "upload"}, "not offered here"),
        ({"decoder": "oracle"}, "not offered here"),
        ({"candidates": 1}, "from 2 to 256"),
        ({"candidates": 10_000}, "from 2 to 256"),
        ({"model": "gpt2"}, "not offered here"),
        ({"target": "bleurt-20"}, "not offered here"),
        ({"guide": "embedded"}, "not offered here"),
        ({"recipe": "quick"}, "not offered here"),
        ({"target": "chrf", "guide": "chrf"}, "both 'chrf'"),
        ({"target_language": "fr"}, "not a language"),
        ({"target_language": "en"}, "choose two"),
        ({"mode": PASTE, "pasted": "a\nb", "logprob_weight": 1.0}, "pasted candidates have no log-probabilities"),
        ({"mode": PASTE, "pasted": "a\nb", "add_beam": True}, "leave the model's own output out"),
    ],
)
def test_what_is_not_offered_or_too_much_is_refused(workbench: Workbench, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        value_of(workbench.analyse(Form(**{"source": SOURCE, "candidates": 4, **change})))


def test_the_weight_of_the_log_probability_and_the_models_own_output_reach_the_choice(workbench: Workbench) -> None:
    form = Form(SOURCE, candidates=20, target="chrf", guide="none", logprob_weight=1e3, add_beam=True)
    found = value_of(workbench.analyse(form))
    assert found.decision.index == int(np.argmax(found.candidates.logprobs)), "the weight decides alone"
    assert found.candidates.total == 21
    assert next(choice.text for choice in found.others if choice.method == "Beam search") in found.candidates.texts
    assert "logprob_weight:1000|" in found.decision.full_signature


@pytest.mark.parametrize("form", [Form(SOURCE, candidates=20), Form("", mode=PASTE, pasted="a b\nb c\nc d e\nd")])
def test_a_job_ends_at_the_next_step_of_any_network(workbench: Workbench, form: Form) -> None:
    from torch.nn.modules import module

    value_of(workbench.analyse(form))  # utilities are loaded, and nothing is in the way
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(0)
        return len(asked) > 3

    with pytest.raises(Cancelled):
        value_of(workbench.analyse(form, cancelled))
    assert len(asked) == 4, "it must not go on after the answer"
    assert not module._global_forward_pre_hooks, "nothing stays behind in torch"


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


def test_the_command_offers_what_it_is_given_and_binds_to_this_machine() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--model", "folder", "--target", "comet", "--max-candidates", "32"])
    assert args.host == "127.0.0.1"
    offer, limits = command.settings(args)
    assert offer.models == ("folder", "embedded")
    assert offer.targets[:2] == ("comet", "embedded")
    assert limits.candidates == 32
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        command.settings(parser.parse_args(["--max-jobs", "0"]))


def test_without_gradio_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from hf_acpmbr.ui.page import gradio

    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=re.escape("pip install '.[ui]'")):
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
        return "gradio is not installed (pip install '.[ui]')"
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
        page.set_default_timeout(60_000)
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
def test_a_visitor_types_runs_and_sees_table_and_map(visit: Any) -> None:
    visit.fill("#source textarea", "Where is the station?")
    visit.click("#run")
    visit.wait_for_function("document.querySelector('#choice')?.innerText.includes('Bahnhof')")
    assert "Full MBR" in visit.inner_text("#choice")
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
    assert re.search(r"all scores: embedded: [\d.]+", hovered)
    assert "candidate 1:" in hovered
    for name in ("Choice", "Candidates", "Matrix", "Cost", "Rounds"):
        tab.get_by_text(name, exact=True).last.click(force=True)
        visit.wait_for_timeout(300)
        assert visit.evaluate("document.documentElement.scrollWidth") <= 420, f"{name} is wider than a phone"


@pytest.mark.filterwarnings("ignore")
def test_a_cancelled_job_ends_and_the_next_one_runs(visit: Any) -> None:
    visit.wait_for_selector("#choice table")
    visit.fill("#source textarea", SOURCE)
    visit.click("#run")
    visit.wait_for_function("/drawing|scoring/.test(document.querySelector('#status').innerText)")
    visit.click("#cancel")
    visit.wait_for_function("document.querySelector('#status').innerText == 'cancelled'")
    visit.wait_for_timeout(1000)
    assert visit.inner_text("#status") == "cancelled", "the job went on"
    visit.fill("#source textarea", "Where is the station?")
    visit.click("#run")
    visit.wait_for_function("document.querySelector('#choice')?.innerText.includes('Bahnhof')")


@pytest.mark.filterwarnings("ignore")
def test_a_mistake_is_a_message_and_pasted_candidates_are_chosen_from(visit: Any) -> None:
    visit.fill("#source textarea", "  ")
    visit.click("#run")
    visit.wait_for_selector("#status [role=alert]")
    assert "type a sentence" in visit.inner_text("#status")
    visit.get_by_label("Paste candidates").click()
    visit.fill("#pasted textarea", "the cat sat\na cat sat\nthe cat sat\ndogs run")
    visit.fill("#source textarea", "")
    visit.click("#run")
    visit.wait_for_function("document.querySelector('#choice')?.innerText.includes('the cat sat')")


def test_the_page_leaves_no_file_behind(visit: Any, address: str) -> None:
    import httpx

    answer = httpx.post(f"{address}gradio_api/upload", files={"files": ("x.txt", b"some text")})
    assert answer.status_code >= 400
