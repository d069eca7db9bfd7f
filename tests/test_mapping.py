"""datasets.Dataset.map with MapFunction: same rows for any number of processes, stable fingerprint, picklable."""

from __future__ import annotations

import copy
import pickle

import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher

from hf_acpmbr import ACPMBR
from hf_acpmbr.mapping import MapFunction
from tests.models import tiny_pair

SOURCES = ["the cat sat on the mat", "a dog ran", "we see the sun", "the red dog", "a mat"]


def function(kind: str = "m2m100", **options: object) -> MapFunction:
    model, tokenizer = tiny_pair(kind)
    mbr = ACPMBR(copy.deepcopy(tokenizer), target="chrf", decoder="mbr", num_candidates=30, epsilon=0.0)
    return mbr.map_fn(copy.deepcopy(model), generate={"max_new_tokens": 6}, **options)  # type: ignore[return-value]


def test_adds_text_and_expected_utility_the_same_for_any_batch_size_and_number_of_processes() -> None:
    data = Dataset.from_dict({"source": SOURCES, "id": list(range(5))})
    one = data.map(function(), batched=True, batch_size=5)
    two = data.map(function(), batched=True, batch_size=2, num_proc=2)
    assert one.column_names == ["source", "id", "prediction", "prediction_utility"]
    assert one["prediction"] == two["prediction"]
    assert one["prediction_utility"] == pytest.approx(two["prediction_utility"])


def test_nbest_columns_on_request() -> None:
    out = function(nbest=3, prediction_column="german")({"source": SOURCES[:2]})
    assert [len(texts) for texts in out["german_nbest"]] == [3, 3]
    assert [texts[0] for texts in out["german_nbest"]] == out["german"]
    assert out["german_nbest_utility"][0] == sorted(out["german_nbest_utility"][0], reverse=True)


def test_decoder_only_with_a_prompt_and_a_chat_template() -> None:
    out = function("llama", prompt="see {source}", chat=True)({"source": SOURCES[:2]})
    assert len(out["prediction"]) == 2
    with pytest.raises(ValueError, match=r"prompt must have \{source\}"):
        function("llama", prompt="see")({"source": SOURCES})


def test_fingerprint_is_stable_across_builds_and_after_use_and_changes_with_settings() -> None:
    fresh, used = function(), function()
    used({"source": SOURCES})
    assert Hasher.hash(fresh) == Hasher.hash(used)
    assert Hasher.hash(fresh) != Hasher.hash(function(nbest=2))


def test_survives_pickling() -> None:
    original = function()
    again = pickle.loads(pickle.dumps(original))
    batch = {"source": SOURCES}
    assert again(batch) == original(batch)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match="no column 'source' in the dataset: name it by source_column="):
        function()({"text": SOURCES})
