from __future__ import annotations

from pathlib import Path

import pytest
import sacrebleu

from hf_acpmbr.cli.demo import Demo, marked, summarise
from hf_acpmbr.cli.main import main
from hf_acpmbr.differences import pieces

from .test_models import needs_translator


@needs_translator
def test_demo_translates_a_sentence_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    assert main(["demo", "--source", "She is reading a book.", "--candidates", "32", "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    for name in ("beam search", "full MBR", "default", 'recipe "fast"'):
        assert f"\n  {name} " in printed
    for word in ("She is reading a book.", "of the cost", "wins/losses"):
        assert word in printed
    assert printed.splitlines()[-1].strip().startswith("acpmbr demo --model facebook/m2m100_418M --target bleurt-20")
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_translator
@pytest.mark.slow
def test_demo_shows_both_directions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--picture", ""]) == 0
    printed = capsys.readouterr().out
    assert printed.count("en→de") == printed.count("de→en") == 10
    assert printed.count("\n  reference ") == 20


def test_differences_are_marked_in_the_text_and_nothing_else_is_changed() -> None:
    assert marked("Wir gehen heute nach Hause.", "Wir gehen morgen nach Hause.", colour=False) == (
        "Wir gehen [heute] nach Hause."
    )
    assert marked("Das ist gut.", "Das ist gut.", colour=True) == "Das ist gut."
    assert "".join(piece.text for piece in pieces("a  b, c", "x b")) == "a  b, c"


@needs_translator
def test_the_summary_is_the_mean_of_sacrebleus_chrf_and_losses_are_counted() -> None:
    demo = Demo("embedded", "chrf", "bleu", 12, 0)
    sentences = [("It is raining.", "Es regnet."), ("Good morning.", "Guten Morgen.")]
    examples = [demo.translate(source, "de", reference) for source, reference in sentences]
    scorer = sacrebleu.metrics.CHRF()
    for k, method in enumerate(choice.method for choice in examples[0].choices):
        chosen = [example.choices[k] for example in examples]
        scores = [scorer.sentence_score(c.text, [r]).score for c, (_, r) in zip(chosen, sentences, strict=True)]
        assert [choice.chrf for choice in chosen] == pytest.approx(scores)
        line = next(line for line in summarise(examples, demo.target).splitlines() if line.startswith(f"  {method}  "))
        assert float(line.removeprefix(f"  {method}").split()[0]) == pytest.approx(sum(scores) / 2, abs=0.06)


def test_a_reference_without_a_source_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--reference", "Hallo."]) == 2
    assert "--source" in capsys.readouterr().err


def test_demo_refuses_an_unknown_language(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--source", "Hi.", "--to", "fr"])
    assert "invalid choice" in capsys.readouterr().err
