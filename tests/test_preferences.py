"""Preference pairs and distillation rows: which texts are paired, what is left out, and in whose format."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from hf_acpmbr import ACPMBR, Candidates, Decision
from hf_acpmbr.generation.preferences import Preferences, Scored, distillation_rows, near_duplicates, score_text
from tests.models import tiny_pair

WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"]
EXPECTED = [0.2, 0.9, 0.4, 0.1, 0.6, 0.5]  # best to worst: bravo, echo, foxtrot, charlie, alpha, delta


def decision(expected: list[float] = EXPECTED, texts: list[str] = WORDS, higher: bool = True) -> Decision:
    pool = Candidates.from_texts(texts)
    return Decision(pool, np.array(expected), higher, "exact", "signature", {}, {})


def words(settings: Preferences, made: Decision, beam: Scored | None = None) -> list[tuple[str, str]]:
    return [(pair.chosen.text, pair.rejected.text) for pair in settings.select(made, beam)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [("bravo", "delta")]),
        ({"pairs": "best-median"}, [("bravo", "charlie")]),
        ({"pairs": "top-k", "k": 2}, [("bravo", "delta"), ("echo", "alpha")]),
        ({"pairs": "top-k", "k": 9}, [("bravo", "delta"), ("echo", "alpha"), ("foxtrot", "charlie")]),
        ({"pairs": "top-k", "k": 9, "min_margin": 0.35}, [("bravo", "delta"), ("echo", "alpha")]),
        ({"min_margin": 0.8}, []),
    ],
)
def test_which_texts_are_paired(settings: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert words(Preferences.from_dict(settings), decision()) == expected


def test_lower_is_better_turns_the_pair_and_keeps_the_margin_positive() -> None:
    (pair,) = Preferences().select(decision(higher=False))
    assert (pair.chosen.text, pair.rejected.text) == ("delta", "bravo")
    assert pair.margin == pytest.approx(0.8)


def test_candidates_without_an_estimate_are_never_paired() -> None:
    dropped = [0.2, 0.9, 0.4, float("nan"), 0.6, 0.5]
    pool = Candidates.from_texts(WORDS)
    made = Decision(pool, np.array(dropped), True, "", "", {}, {}, order=np.array([1, 4, 5, 2, 0, 3]))
    assert words(Preferences(), made) == [("bravo", "alpha")]


@pytest.mark.parametrize("blank", ["", " \n"])
def test_blank_texts_are_never_paired(blank: str) -> None:
    assert words(Preferences(), decision([0.9, 0.1], ["alpha", blank])) == []
    assert words(Preferences(), decision([0.1, 0.9], ["alpha", blank])) == []
    three = decision([0.9, 0.1, 0.5], ["alpha", blank, "bravo"])
    assert words(Preferences(), three) == [("alpha", "bravo")], "the next worst takes its place"
    settings = Preferences(pairs="best-beam", beam_column="beam")
    assert words(settings, three, Scored(blank, 0.1)) == []


def test_ties_are_left_out() -> None:
    assert words(Preferences(), decision([0.5] * 6)) == []
    assert words(Preferences(), decision([0.5], ["alpha"])) == []


def test_near_duplicates_are_left_out() -> None:
    alike = decision([0.9, 0.1], ["Das ist gut.", "das ist gut!"])
    assert words(Preferences(max_similarity=1.0), alike) == []
    close = decision([0.9, 0.1], ["Die Katze schläft auf dem Sofa", "Die Katze schlief auf dem Sofa"])
    assert words(Preferences(), close) == [(close.candidates.texts[0], close.candidates.texts[1])]
    assert words(Preferences(max_similarity=0.8), close) == []


def test_similarity_is_the_share_of_characters_in_common() -> None:
    # 3 of 4 letters in common on either side: 2·3 / (4 + 4) = 0.75
    assert near_duplicates("abcd", "abcx", 0.74)
    assert not near_duplicates("abcd", "abcx", 0.75)


def test_a_beam_text_is_scored_over_the_candidates_unless_it_is_one_of_them() -> None:
    made = decision([0.9, 0.1], ["a", "b", "b", "b"])

    def score(hypotheses: list[str], references: list[str]) -> list[float]:
        assert hypotheses == ["c", "c"]
        return [{"a": 0.2, "b": 0.6}[reference] for reference in references]

    assert score_text(made, "c", score).expected == pytest.approx(0.25 * 0.2 + 0.75 * 0.6)
    assert score_text(made, "b", lambda h, r: pytest.fail("it is known")) == Scored("b", 0.1)
    settings = Preferences(pairs="best-beam", beam_column="beam")
    assert words(settings, made, Scored("c", 0.5)) == [("a", "c")]
    assert words(settings, made, Scored("a", 0.9)) == []
    assert words(settings, made, Scored("c", 0.95)) == [], "a beam that is better is not rejected"
    assert words(settings, decision([0.9, 0.1], ["a", "b"], higher=False), Scored("c", 0.05)) == []


def test_rows_are_in_both_formats_of_trl() -> None:
    (pair,) = Preferences().select(decision())
    row = Preferences().row(pair, "say")
    assert row == {
        "prompt": "say",
        "chosen": "bravo",
        "rejected": "delta",
        "chosen_utility": 0.9,
        "rejected_utility": 0.1,
        "margin": pytest.approx(0.8),
    }
    row = Preferences(conversational=True).row(pair, "say")
    assert row["prompt"] == [{"role": "user", "content": "say"}]
    assert row["chosen"] == [{"role": "assistant", "content": "bravo"}]
    assert row["rejected"] == [{"role": "assistant", "content": "delta"}]


def test_trl_itself_takes_both_formats_for_what_they_are() -> None:
    utilities = pytest.importorskip("trl.data_utils", reason="TRL is not installed: pip install trl")
    (pair,) = Preferences().select(decision())
    assert not utilities.is_conversational(Preferences().row(pair, "say"))
    assert utilities.is_conversational(Preferences().row(pair, "say", conversational=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("best-wurst", "pairs must be one of best-worst, best-median, best-beam, top-k"),
        ("top-k", "k belongs to pairs='top-k', which needs it"),
        ({"k": 3}, "k belongs to pairs='top-k', which needs it"),
        ("best-beam", "beam_column belongs to pairs='best-beam', which needs it"),
        ({"margin": 1}, "'margin' is not a setting of Preferences: did you mean 'min_margin'"),
        (3, "preferences must be True, a name"),
    ],
)
def test_bad_settings_are_named(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preferences.of(given)


def test_distillation_rows_leave_out_blank_sources_and_blank_targets() -> None:
    made = [decision(), None, decision([0.1, 0.9], ["x", " "])]
    rows = distillation_rows(["one", "", "three"], made, best=2)
    assert rows == {"source": ["one", "one", "three"], "target": ["bravo", "echo", "x"], "utility": [0.9, 0.6, 0.1]}
    with pytest.raises(ValueError, match="1 sources for 3 decisions"):
        distillation_rows(["one"], made)


SOURCES = ["the cat sat on the mat", "a dog ran", " ", "we see the sun"]


def function(kind: str = "m2m100", **options: Any) -> Any:
    model, tokenizer = tiny_pair(kind)
    mbr = ACPMBR(copy.deepcopy(tokenizer), target="chrf", decoder="mbr", num_candidates=30, epsilon=0.0)
    return mbr.map_fn(copy.deepcopy(model), generate={"max_new_tokens": 6}, **options)


def data() -> Dataset:
    return Dataset.from_dict({"source": SOURCES, "id": list(range(len(SOURCES)))})


def test_map_gives_a_row_for_each_pair_with_all_other_columns() -> None:
    plain = data().map(function(), batched=True, batch_size=2)
    one = data().map(function(preferences=True), batched=True, batch_size=2)
    two = data().map(function(preferences={"pairs": "top-k", "k": 2}), batched=True, batch_size=3)
    assert one["id"] == [0, 1, 3], "the blank source has no pair"
    assert two["id"] == [0, 0, 1, 1, 3, 3]
    assert one["prompt"] == [SOURCES[k] for k in one["id"]]
    assert one["chosen"] == one["prediction"] == [plain["prediction"][k] for k in one["id"]]
    np.testing.assert_allclose(one["margin"], np.subtract(one["chosen_utility"], one["rejected_utility"]))
    assert min(one["margin"]) > 0
    assert [two[k] for k in (0, 2, 4)] == list(one)


def test_map_gives_an_empty_dataset_where_nothing_is_left() -> None:
    out = function(preferences={"min_margin": 1000})({"source": SOURCES[:2], "id": [0, 1]})
    assert {len(column) for column in out.values()} == {0}
    assert len(data().map(function(preferences={"min_margin": 1000}), batched=True)) == 0


def test_map_of_a_chat_model_is_conversational() -> None:
    out = function("llama", preferences=True, prompt="see {source}", chat=True)({"source": SOURCES[:1]})
    assert out["prompt"] == [[{"role": "user", "content": f"see {SOURCES[0]}"}]]
    assert out["chosen"][0][0]["content"] == out["prediction"][0]


def test_map_compares_with_the_beam_column() -> None:
    settings = Preferences(pairs="best-beam", beam_column="beam")
    mapped = function(preferences=settings)
    out = mapped({"source": SOURCES[:1], "beam": ["red dog home"]})
    (found,) = mapped.mbr.map_fn(mapped.model, generate={"max_new_tokens": 6})({"source": SOURCES[:1]})["prediction"]
    assert (out["chosen"], out["rejected"]) == ([found], ["red dog home"])
    with pytest.raises(ValueError, match="no column 'beam' in the dataset"):
        mapped({"source": SOURCES[:1]})


def test_columns_that_are_taken_are_named_and_pickling_keeps_the_settings() -> None:
    mapped = function(preferences="best-median")
    with pytest.raises(ValueError, match=r"the dataset has columns \['chosen'\] already"):
        mapped({"source": SOURCES[:1], "chosen": ["x"]})
    assert pickle.loads(pickle.dumps(mapped)).preferences == Preferences(pairs="best-median")
