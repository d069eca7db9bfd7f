"""datasets.Dataset.map with MapFunction: same rows for any number of processes, stable fingerprint, picklable."""

from __future__ import annotations

import copy
import logging
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerFast

from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.corpus import MapFunction
from hf_acpmbr.generation.models import load_model
from hf_acpmbr.generation.prompts import Prompting
from tests.models import tiny_pair

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ["the cat sat on the mat", "a dog ran", "we see the sun", "the red dog", "a mat"]


def function(kind: str = "m2m100", **options: object) -> MapFunction:
    model, tokenizer = tiny_pair(kind)
    mbr = ACPMBR(copy.deepcopy(tokenizer), target="chrf", decoder="mbr", num_candidates=30, epsilon=0.0)
    return mbr.map_fn(copy.deepcopy(model), **{"generate": {"max_new_tokens": 6}, **options})  # type: ignore[return-value]


def test_adds_text_and_expected_utility_the_same_for_any_batch_size_and_number_of_processes() -> None:
    data = Dataset.from_dict({"source": SOURCES, "id": list(range(5))})
    one = data.map(function(), batched=True, batch_size=5)
    two = data.map(function(), batched=True, batch_size=2, num_proc=2)
    assert one.column_names == ["source", "id", "prediction", "prediction_utility"]
    assert one["prediction"] == two["prediction"]
    assert one["prediction_utility"] == pytest.approx(two["prediction_utility"])


def test_several_processes_do_not_wait_for_the_threads_of_the_one_that_forked_them() -> None:
    name = test_adds_text_and_expected_utility_the_same_for_any_batch_size_and_number_of_processes.__name__
    program = f"from tests.test_mapping import {name} as mapped_twice; mapped_twice()"
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=True, timeout=300)


def test_nbest_columns_on_request() -> None:
    out = function(nbest=3, prediction_column="german")({"source": SOURCES[:2]})
    assert [len(texts) for texts in out["german_nbest"]] == [3, 3]
    assert [texts[0] for texts in out["german_nbest"]] == out["german"]
    assert [utilities[0] for utilities in out["german_nbest_utility"]] == out["german_utility"]
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


def test_blank_sources_give_an_empty_output_without_asking_the_model() -> None:
    out = function()({"source": [SOURCES[0], "", "  \t"]})
    assert out["prediction"][1:] == ["", ""]
    assert math.isnan(out["prediction_utility"][1])
    assert out["prediction"][0] == function()({"source": SOURCES[:1]})["prediction"][0]
    assert function()({"source": ["", " "]})["prediction"] == ["", ""]
    assert function(keep_blank=True)({"source": [""]})["prediction"] != [""]


def test_a_row_without_text_and_a_call_without_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="row 1 has no text: got None"):
        function()({"source": [SOURCES[0], None]})
    with pytest.raises(ValueError, match="batched=True"):
        Dataset.from_dict({"source": SOURCES}).map(function())


def test_long_sources_are_cut_with_a_count_or_refused() -> None:
    for kind in ("m2m100", "llama"):
        model, _ = tiny_pair(kind)
        long = " ".join(["the cat sat"] * model.config.max_position_embeddings)
        with pytest.warns(UserWarning, match="2 of 3 sources are longer than the model's"):
            out = function(kind)({"source": [SOURCES[0], long, long]})
        assert out["prediction"][1] == out["prediction"][2]
        with pytest.raises(ValueError, match=r"1 of 2 sources are longer .* the first is row 1"):
            function(kind, too_long="refuse")({"source": [SOURCES[0], long]})


def test_a_second_identical_map_is_a_cache_hit_with_networks_too(tmp_path: Path) -> None:
    data = Dataset.from_dict({"source": SOURCES[:2]})
    data.to_json(tmp_path / "in.jsonl")
    stored = Dataset.from_json(str(tmp_path / "in.jsonl"), cache_dir=str(tmp_path / "cache"))
    model, tokenizer = tiny_pair("m2m100")
    mbr = ACPMBR(tokenizer, target="embedded-d2", decoder="mbr", num_candidates=4, epsilon=0.0)
    fn = mbr.map_fn(model, generate={"max_new_tokens": 4})
    first = stored.map(fn, batched=True)
    second = stored.map(fn, batched=True)
    assert first._fingerprint == second._fingerprint
    assert first.cache_files == second.cache_files


def test_no_warning_about_two_lengths_in_any_batch(caplog: pytest.LogCaptureFixture) -> None:
    model, tokenizer = tiny_pair("m2m100")
    own = copy.deepcopy(model)
    own.generation_config.max_length = 50
    mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=5, epsilon=0.0)
    same = mbr.map_fn(model, generate={"max_new_tokens": 5})({"source": SOURCES})
    with caplog.at_level(logging.WARNING):
        got = mbr.map_fn(own, generate={"max_new_tokens": 5})({"source": SOURCES})
    assert not [record for record in caplog.records if "max_length" in record.message]
    assert got == same


def test_stop_strings_work_without_a_tokenizer_in_the_call() -> None:
    model, tokenizer, language = load_model("embedded")
    mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=8)
    batch = {"source": ["This is my house."]}
    options = {"max_new_tokens": 12, **language}
    (free,) = mbr.map_fn(model, generate=options)(batch)["prediction"]
    word = free.split()[1]
    (stopped,) = mbr.map_fn(model, generate={**options, "stop_strings": [word]})(batch)["prediction"]
    assert len(stopped) < len(free)
    assert word in stopped


class Noting(PreTrainedTokenizerFast):
    """A tokenizer that notes how it decoded last, as Marian's does."""

    def _decode(self, *arguments: Any, **options: Any) -> Any:
        self._decoded = "so"
        return super()._decode(*arguments, **options)


def test_what_a_tokenizer_notes_while_it_decodes_does_not_make_another_map() -> None:
    model, plain = tiny_pair("m2m100")
    tokenizer = Noting(tokenizer_object=plain.backend_tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    function = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=4).map_fn(
        model, generate={"max_new_tokens": 4}
    )
    before = Hasher.hash(function)
    function({"source": ["the cat"]})
    assert Hasher.hash(function) == before


def test_a_cut_source_leaves_room_for_its_continuation_and_no_more() -> None:
    model, tokenizer = tiny_pair("llama")  # of 128 positions
    with pytest.warns(UserWarning, match="longer than the model's 100 tokens and are cut"):
        batch = Prompting().encode(tokenizer, ["the cat sat " * 100], model, max_new_tokens=28)
    assert batch["input_ids"].shape == (1, 100)
