"""The LLM as the judge: what it is asked, what its answers are worth, and the example."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_acpmbr import as_utility
from tests.models import tiny_pair

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "llm_judge.py")
# The tiny causal model is not trained to answer.
pytestmark = pytest.mark.filterwarnings("ignore:the judge .* mostly says something else:UserWarning")
PROMPT = "{source} see {first} on {second}"
ANSWERS = {"cat": 1.0, "dog": 0.0, "red": 0.25}
PAIRS = [("the cat", "a dog ran home"), ("sun", "the red mat"), ("die katze sass hier", "sun")]
FIRST, SECOND, SOURCES = [a for a, _ in PAIRS], [b for _, b in PAIRS], ["we"] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("judge")
    model, tokenizer = tiny_pair("llama")
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    (made / "chat_template.jinja").unlink(missing_ok=True)
    return str(made)


def by_hand(prompt: str) -> float:
    """The mean value of the answers after a prompt, one prompt at a time and without padding."""
    model, tokenizer = tiny_pair("llama")
    ids = tokenizer(f"{prompt}\nAnswer:", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        p = model(ids).logits[0, -1].double().softmax(-1)[tokenizer.convert_tokens_to_ids(list(ANSWERS))]
    return float(p @ torch.tensor(list(ANSWERS.values()), dtype=torch.float64) / p.sum())


def judge(folder: str, **options: Any) -> Any:
    made = runpy.run_path(EXAMPLE)["Judge"](folder, **{"prompt": PROMPT, "answers": ANSWERS, **options})
    made.tokenizer.chat_template = None
    return made


def test_the_score_is_the_mean_of_the_answers_values_over_both_orders(folder: str) -> None:
    utility = as_utility(judge(folder))
    got = utility.score(FIRST, SECOND, SOURCES)
    expected = [
        (by_hand(f"we see {a} on {b}") + by_hand(f"we see {b} on {a}")) / 2  # either text first
        for a, b in PAIRS
    ]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert utility.symmetric
    assert np.ptp(expected) > 1e-3, "the model must tell the pairs apart, or the test shows nothing"


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_judge_that_mostly_says_something_else_is_warned_of_once(folder: str) -> None:
    model, tokenizer = tiny_pair("llama")
    ids = tokenizer("we see the cat on a dog\nAnswer:", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        p = model(ids).logits[0, -1].double().softmax(-1)
    share = float(p[tokenizer.convert_tokens_to_ids(list(ANSWERS))].sum())
    asked = judge(folder, both_orders=False)
    with pytest.warns(UserWarning, match=rf"gives its answers \(cat, dog, red\) only {share:.1%} of the probability"):
        asked.score(["the cat"], ["a dog"], ["we"])
    asked.score(["sun"], ["a dog"], ["we"])
    words = {word: float(k) for k, word in enumerate(tokenizer.get_vocab()) if not word.startswith("<")}
    judge(folder, answers=words).score(["the cat"], ["a dog"], ["we"])  # nothing is left to say


def test_one_order_asks_with_the_hypothesis_first_and_is_not_symmetric(folder: str) -> None:
    utility = as_utility(judge(folder, both_orders=False))
    (got,) = utility.score(["the cat"], ["a dog"], ["we"])
    assert got == pytest.approx(by_hand("we see the cat on a dog"), abs=1e-5)
    assert not utility.symmetric


def test_a_preference_is_turned_round_with_the_order(folder: str) -> None:
    utility = as_utility(judge(folder, question="preference", answers={"cat": 1.0, "dog": 0.0}))
    forth, back = utility.score(FIRST, SECOND, SOURCES), utility.score(SECOND, FIRST, SOURCES)
    np.testing.assert_allclose(forth + back, 1.0, atol=1e-6)
    np.testing.assert_allclose(utility.score(["the cat"], ["the cat"], ["we"]), 0.5, atol=1e-6)


def test_both_orders_cost_twice_the_passes_of_one(folder: str) -> None:
    both, once = as_utility(judge(folder)), as_utility(judge(folder, both_orders=False))
    assert both.price_per_pair == 2 * once.price_per_pair == 2 * tiny_pair("llama")[0].num_parameters()


def test_texts_with_braces_are_asked_as_they_are(folder: str) -> None:
    asked = judge(folder)
    assert asked.ask("s", "{second}", "cat") == asked.tokenizer("s see {second} on cat\nAnswer:")["input_ids"]


def test_the_chat_template_is_used_where_there_is_one(folder: str) -> None:
    asked = judge(folder)
    asked.tokenizer.chat_template = tiny_pair("llama")[1].chat_template
    text = asked.tokenizer.decode(asked.ask("we", "cat", "dog"))
    assert text.startswith("<s>")
    assert "user we see cat on dog" in text


def test_answers_that_the_vocabulary_cannot_tell_apart_are_named(folder: str) -> None:
    with pytest.raises(ValueError, match=r"answers \['xyz'\] have no first token of their own"):
        judge(folder, answers={"cat": 1.0, "xyz": 0.0})


def test_the_signature_tells_judges_apart(folder: str) -> None:
    signatures = {
        as_utility(judge(folder, **options)).signature
        for options in ({}, {"both_orders": False}, {"answers": {"cat": 1.0, "dog": 0.0}})
    }
    assert len(signatures) == 3


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_pair("llama")[0].save_pretrained(tmp_path)
    save_tokenizer_with_digits(tmp_path)
    monkeypatch.setattr(sys, "argv", ["llm_judge.py", "--judge", str(tmp_path)])
    runpy.run_path(EXAMPLE, run_name="__main__")
    out = capsys.readouterr().out
    assert "Monday." in out
    once, both = (json.loads(line.split(": ")[1]) for line in out.splitlines()[-2:])
    assert both[0] == both[1]
    assert both[0] == pytest.approx(np.mean(once), abs=2e-3)


def save_tokenizer_with_digits(folder: Path) -> None:
    """The tiny tokenizer with the answers 1 to 5 in the place of five words."""
    _, tokenizer = tiny_pair("llama")
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    core = json.loads(path.read_text(encoding="utf-8"))
    words = core["model"]["vocab"]
    for digit, word in enumerate(["hund", "lief", "ein", "hier", "katze"], 1):
        words[str(digit)] = words.pop(word)
    path.write_text(json.dumps(core), encoding="utf-8")
