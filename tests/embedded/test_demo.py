from __future__ import annotations

import pytest
import sacrebleu

from hf_acpmbr.cli.demo import SENTENCES, Demo, Sentence, Translated, describe_costs, marked, summarise
from hf_acpmbr.cli.main import main
from hf_acpmbr.differences import pieces
from hf_acpmbr.scoring import load_utility

from .test_models import needs_translator


@needs_translator
def test_the_demo_shows_cost_and_worth_of_a_sentence_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--source", "She is reading a book.", "--reference", "Sie liest ein Buch."]
    assert main(["demo", *own, "--candidates", "32"]) == 0
    printed = capsys.readouterr().out
    for name in ("full MBR", "default", 'recipe "fast"', "the paper's PMBR, High", "the paper's AC-PMBR, High"):
        assert f"\n  {name} " in printed
    for words in (
        "chrF + 1.5 × log-probability",
        "Measured, 300 sentences",
        "She is reading a book.",
        "Of 1 sentences",
    ):
        assert words in printed
    assert printed.splitlines()[-1].strip().startswith("acpmbr demo --model facebook/m2m100_418M --target bleurt-20")


@needs_translator
@pytest.mark.slow
def test_the_demo_translates_its_sentences_in_both_directions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "Of 40 sentences" in printed
    assert printed.count("en→de  ") > 3 < printed.count("de→en  ")


def test_the_demo_has_as_many_sentences_in_each_direction_with_references() -> None:
    rows = [line.split("\t") for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    assert [to for to, _, _ in rows] == ["de"] * 20 + ["en"] * 20
    assert [(source, reference) for to, source, reference in rows if to == "de"] == [
        (reference, source) for to, source, reference in rows if to == "en"
    ]


@needs_translator
def test_the_costs_are_the_calls_of_real_decisions_and_losses_are_against_full_mbr() -> None:
    demo = Demo("embedded", "chrf", "bleu", 12, 0)
    compared = [demo.compare(Sentence("de", source)) for source in ("It is raining.", "Good morning.")]
    for each in compared:
        full, lost = each["full MBR"]
        assert full.exact
        assert lost == 0.0
        for decision, loss in each.values():
            assert decision.candidates.texts == full.candidates.texts
            assert loss == pytest.approx(full.expected.max() - full.expected[decision.index])
    calls = sum(each["the paper's AC-PMBR, High"][0].calls[demo.target.name] for each in compared)
    line = next(x for x in describe_costs(demo, compared).splitlines() if x.startswith("  the paper's AC-PMBR"))
    assert line.split()[4] == f"{calls:,}"


@needs_translator
def test_gains_are_of_a_metric_that_did_not_choose() -> None:
    demo = Demo("embedded", "embedded", "embedded-d1", 12, 0)
    (found,) = demo.translate([Sentence("de", "It is raining.", "Es regnet.")])
    assert demo.rule.recipe.target.name == "chrf"
    assert demo.rule.recipe.decoder.logprob_weight == 1.5
    chosen, beam = load_utility("embedded").score([found.chosen, found.beam], ["Es regnet."] * 2)
    assert found.gain == pytest.approx(100 * (chosen - beam), abs=1e-4)
    assert demo.translate([Sentence("de", "It is raining.")])[0].gain is None


def test_the_summary_counts_differences_and_has_sacrebleus_scores() -> None:
    rows = [("ein Hund", "eine Katze", -3.0), ("ein Haus", "ein Haus", 0.0), ("ein Ball", "der Ball", 2.0)]
    found = [Translated(Sentence("de", "x", beam), beam, chosen, gain) for beam, chosen, gain in rows]
    said = summarise(found, "judge")
    assert "Of 3 sentences 1 are the same; by judge against the reference, MBR is better in 1 and worse in 1." in said
    score = sacrebleu.corpus_chrf([row[1] for row in rows], [[row[0] for row in rows]]).score
    assert f"chrF  beam search 100.0, MBR {score:.1f}" in said


def test_differences_are_marked_in_the_text_and_nothing_else_is_changed() -> None:
    assert marked("Wir gehen heute nach Hause.", "Wir gehen morgen nach Hause.", colour=False) == (
        "Wir gehen [heute] nach Hause."
    )
    assert marked("Das ist gut.", "Das ist gut.", colour=True) == "Das ist gut."
    assert "".join(piece.text for piece in pieces("a  b, c", "x b")) == "a  b, c"


def test_a_reference_without_a_source_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--reference", "Hallo."]) == 2
    assert "--source" in capsys.readouterr().err


def test_demo_refuses_an_unknown_language(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--source", "Hi.", "--to", "fr"])
    assert "invalid choice" in capsys.readouterr().err
