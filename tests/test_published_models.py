"""The drop-in call on models with the configuration files of published ones: nothing of theirs may matter or break."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, TextIteratorStreamer, TextStreamer

from hf_acpmbr import ACPMBR

from .published import FAMILIES, WITH_BEAMS, published_model, published_tokenizer

SOURCES = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
every_family = pytest.mark.parametrize("name", FAMILIES)


def chrf(name: str, **settings: Any) -> ACPMBR:
    options = {"decoder": "mbr", "num_candidates": 12, "epsilon": 0.0, **settings}
    return ACPMBR(published_tokenizer(name), target="chrf", **options)


def generate(name: str, mbr: ACPMBR, rows: int = 2, **settings: Any) -> Any:
    ids = SOURCES[:rows]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    length = 5 if FAMILIES[name].model.__name__.endswith("CausalLM") else 1
    limits = {"max_length": length + 4}
    return published_model(name).generate(**inputs, custom_generate=mbr, **{**limits, **settings})


@every_family
def test_the_models_own_settings_do_not_matter(name: str) -> None:
    """The same as with one beam in the call, at the same cost, and without a warning (all are errors here)."""
    own = generate(name, chrf(name), return_dict_in_generate=True)
    plain = {"num_beams": 1} if name in WITH_BEAMS else {}
    with_one_beam = generate(name, chrf(name), return_dict_in_generate=True, **plain)
    assert torch.equal(own.sequences, with_one_beam.sequences)
    assert own.model_rows == with_one_beam.model_rows
    assert own.sequences.shape[0] == 2
    assert all(candidates.total == 12 for candidates in own.candidates)
    assert len(own.candidates[0]) > 1


@pytest.mark.parametrize("name", WITH_BEAMS)
def test_beams_asked_for_in_the_call_are_a_conflict(name: str) -> None:
    with pytest.raises(ValueError, match="num_beams=3 conflicts with MBR"):
        generate(name, chrf(name), num_beams=3)
    with pytest.raises(ValueError, match="conflicts with MBR"):
        generate(name, chrf(name), num_beams=FAMILIES[name].generation["num_beams"])


def test_the_models_own_beams_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    name = WITH_BEAMS[0]
    with caplog.at_level(logging.INFO, logger="hf_acpmbr"):
        generate(name, chrf(name))
        generate(name, chrf(name))
    assert len([record for record in caplog.records if "num_beams" in record.message]) <= 1


@every_family
def test_several_sequences_are_returned_for_each_source(name: str) -> None:
    out = generate(name, chrf(name), num_return_sequences=2, do_sample=True, return_dict_in_generate=True)
    assert out.sequences.shape[0] == 4
    one = generate(name, chrf(name), return_dict_in_generate=True)
    assert [texts[0] for texts in out.texts] == [texts[0] for texts in one.texts]


@every_family
def test_the_beams_of_a_beam_search_can_be_chosen_from(name: str) -> None:
    search = GenerationConfig(num_beams=3)
    mbr = ACPMBR(published_tokenizer(name), target="chrf", decoder="mbr", generation_config=search)
    out = generate(name, mbr, return_dict_in_generate=True)
    assert all(1 <= candidates.total <= 3 for candidates in out.candidates)


@every_family
def test_constraints_of_the_model_hold(name: str) -> None:
    family = FAMILIES[name]
    banned = {f"w{ids[0]}" for ids in family.generation.get("bad_words_ids", [])}
    out = generate(name, chrf(name), return_dict_in_generate=True)
    for candidates in out.candidates:
        assert not any(set(text.split()) & banned for text in candidates.texts)
    if family.generation.get("forced_eos_token_id") is not None:
        eos = family.generation["forced_eos_token_id"]
        assert all(ids[-1] == eos for candidates in out.candidates for ids in candidates.token_ids)
    if family.generation.get("repetition_penalty") is not None:
        free = generate(name, chrf(name), return_dict_in_generate=True, repetition_penalty=1.0)
        assert free.candidates[0].sampling_logprobs[0] != out.candidates[0].sampling_logprobs[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True cannot be honoured"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens speed up single samples"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha asks for another way of decoding"),
    ],
)
def test_what_cannot_be_honoured_is_refused(settings: dict[str, Any], message: str) -> None:
    name = "Unbabel/TowerInstruct-7B-v0.1"
    with pytest.raises(ValueError, match=message):
        generate(name, chrf(name), rows=1, **settings)


def test_an_assistant_is_refused() -> None:
    name = "Unbabel/TowerInstruct-7B-v0.1"
    with pytest.raises(ValueError, match="assistant_model and prompt_lookup_num_tokens"):
        generate(name, chrf(name), rows=1, assistant_model=published_model(name))


def test_sampling_settings_of_the_call_warn_and_those_of_the_model_do_not() -> None:
    name = "Qwen/Qwen2.5-7B-Instruct"
    with pytest.warns(UserWarning, match=r"ignored: min_p=0.2 \(here 0.0\)"):
        generate(name, chrf(name), min_p=0.2)


def test_a_streamer_gets_the_chosen_text_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    name = "Unbabel/TowerInstruct-7B-v0.1"
    tokenizer = published_tokenizer(name)
    out = generate(name, chrf(name), rows=1, return_dict_in_generate=True)
    generate(name, chrf(name), rows=1, streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True))
    assert capsys.readouterr().out.strip() == out.texts[0][0]
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=60)
    worker = threading.Thread(target=generate, args=(name, chrf(name), 1), kwargs={"streamer": streamer})
    worker.start()
    assert "".join(streamer).strip() == out.texts[0][0]
    worker.join()


def test_a_reader_of_a_streamer_does_not_wait_for_a_run_that_fails() -> None:
    name = "Unbabel/TowerInstruct-7B-v0.1"

    def broken(hypotheses: list[str], references: list[str]) -> list[float]:
        raise RuntimeError("no scores today")

    mbr = ACPMBR(published_tokenizer(name), target=broken, decoder="mbr", num_candidates=4, epsilon=0.0)
    streamer = TextIteratorStreamer(published_tokenizer(name), skip_prompt=True, timeout=60)
    with pytest.raises(RuntimeError, match="no scores today"):
        generate(name, mbr, rows=1, streamer=streamer)
    assert "".join(streamer) == ""
