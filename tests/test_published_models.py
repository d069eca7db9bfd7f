"""The drop-in call on models with the configuration files of published ones: nothing of theirs may matter or break."""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    TextIteratorStreamer,
    TextStreamer,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from transformers.generation import GenerationMode

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
    length = 1 if published_model(name).config.is_encoder_decoder else 5
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


def cache_is_sound(model: Any) -> bool:
    """Whether transformers' own greedy search sees the same logits with and without its cache."""
    greedy = {"max_new_tokens": 4, "num_beams": 1, "do_sample": False, "output_logits": True}
    outputs = [
        model.generate(SOURCES[0][None], **greedy, use_cache=use, return_dict_in_generate=True) for use in (True, False)
    ]
    return torch.allclose(*(output.logits[1] for output in outputs), atol=1e-4)


@every_family
def test_log_probabilities_are_those_of_one_pass_over_each_sequence(name: str) -> None:
    """Whatever caches, states, masks and positions a family keeps, no source and no sample sees those of another."""
    model, out = published_model(name), generate(name, chrf(name), return_dict_in_generate=True)
    start = model.generation_config.decoder_start_token_id
    if name.startswith("facebook/wmt19") and not cache_is_sound(model):
        pytest.skip("this release of transformers (5.5 does) generates with its cache from wrong positions of FSMT")
    for source, candidates in zip(SOURCES, out.candidates, strict=True):
        for ids, logprob in list(zip(candidates.token_ids, candidates.logprobs, strict=True))[:4]:
            if model.generation_config.pad_token_id in ids[:-1]:
                continue  # some models mask what looks like padding when they see all at once
            new = torch.tensor([ids])
            with torch.no_grad():
                if model.config.is_encoder_decoder:
                    shifted = torch.cat([torch.tensor([[start]]), new[:, :-1]], dim=1)
                    logits = model(input_ids=source[None], decoder_input_ids=shifted, use_cache=False).logits[0]
                else:
                    whole = torch.cat([source[None], new], dim=1)[:, :-1]
                    logits = model(input_ids=whole, use_cache=False).logits[0, len(source) - 1 :]
            own = logits.log_softmax(-1)[range(len(ids)), list(ids)]
            forced = model.config.is_encoder_decoder and model.generation_config.forced_bos_token_id is not None
            assert float(own[int(forced) :].sum()) == pytest.approx(logprob, abs=1e-4)


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
    mbr = ACPMBR(published_tokenizer(name), target="chrf", decoder="mbr", sampler=search)
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
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens, .* speed up single samples"),
        ({"assistant_early_exit": 1}, "assistant_early_exit, .* speed up single samples"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha asks for another way of decoding"),
        ({"synced_gpus": True}, "synced_gpus=True cannot be honoured"),
        ({"generation_config": GenerationConfig(stop_strings=["w5"])}, r"stopping_criteria=.*StopStringCriteria\("),
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


def test_stop_strings_of_a_model_s_own_settings_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "facebook/m2m100_418M"
    monkeypatch.setattr(published_model(name).generation_config, "stop_strings", ["w5"])
    monkeypatch.setattr(published_model(name).get_encoder(), "forward", None)
    with pytest.raises(ValueError, match="stop_strings in the model's generation_config cannot be honoured"):
        generate(name, chrf(name), rows=1)


def test_sampling_settings_of_the_call_warn_and_those_of_the_model_do_not() -> None:
    name = "Qwen/Qwen2.5-7B-Instruct"
    with pytest.warns(UserWarning, match=r"ignored: min_p=0.2 \(here 0.0\)"):
        generate(name, chrf(name), min_p=0.2)
    with pytest.warns(UserWarning, match=r"ignored: length_penalty=2.0 \(not used here\)"):
        generate(WITH_BEAMS[0], chrf(WITH_BEAMS[0]), length_penalty=2.0)


@pytest.mark.parametrize("name", ["Unbabel/TowerInstruct-7B-v0.1", WITH_BEAMS[0]])
def test_a_streamer_gets_the_chosen_text_and_its_end(name: str, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("name", "rows", "settings", "message"),
    [
        (WITH_BEAMS[0], 1, {"num_return_sequences": 2}, "this call has num_return_sequences=2"),
        (WITH_BEAMS[0], 2, {}, "this call has 2 sources"),
        ("Unbabel/TowerInstruct-7B-v0.1", 1, {"output_logits": True}, "output_logits=True cannot be honoured"),
    ],
)
def test_a_reader_of_a_streamer_does_not_wait_for_a_call_that_is_refused(
    name: str, rows: int, settings: dict[str, Any], message: str
) -> None:
    streamer = TextIteratorStreamer(published_tokenizer(name), skip_prompt=True, timeout=60)
    with pytest.raises(ValueError, match=message):
        generate(name, chrf(name), rows, streamer=streamer, return_dict_in_generate=True, **settings)
    assert "".join(streamer) == ""


def test_several_images_of_one_prompt_are_seen_by_every_sample() -> None:
    name = "google/gemma-3-4b-it"
    model = published_model(name)
    picture = [1001, 1000, 1000, 1000, 1000, 1002]
    ids = torch.tensor([[5, *picture, *picture, 8]])
    images = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": images}
    inputs["token_type_ids"] = (ids == 1000).long()
    for sampler in ("prefix-sharing", "chunked"):
        mbr = chrf(name, sampler=sampler)
        out = model.generate(**inputs, custom_generate=mbr, max_new_tokens=3, return_dict_in_generate=True)
        for new, logprob in zip(out.candidates[0].token_ids, out.candidates[0].logprobs, strict=True):
            whole = torch.cat([ids, torch.tensor([new])], dim=1)[:, :-1]
            with torch.no_grad():
                seen = {"token_type_ids": (whole == 1000).long(), "pixel_values": images}
                logits = model(input_ids=whole, use_cache=False, **seen).logits[0, ids.shape[1] - 1 :]
            assert float(logits.log_softmax(-1)[range(len(new)), list(new)].sum()) == pytest.approx(logprob, abs=1e-4)
        two = model.generate(**inputs, custom_generate=mbr, max_new_tokens=3, num_return_sequences=2)
        assert two[0].tolist() == out.sequences[0].tolist() != two[1].tolist()


def test_whisper_transcribes_and_refuses_what_its_generate_would_take_apart() -> None:
    sides = {
        f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")
    }
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 3}
    limits = {"num_mel_bins": 8, "max_source_positions": 30, "max_target_positions": 30, "vocab_size": 2000}
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(d_model=16, **sides, **ids, **limits)).eval()
    audio = {"input_features": torch.randn(2, 8, 60)}
    tokens = model.generate(**audio, custom_generate=chrf("facebook/m2m100_418M"), max_new_tokens=4)
    assert tokens.shape[0] == 2
    for asked in ({"return_dict_in_generate": True}, {"logprob_threshold": -1.0}):
        with pytest.raises(ValueError, match=r"return_dict_in_generate=True.* on Whisper.*logprob_threshold"):
            model.generate(**audio, custom_generate=chrf("facebook/m2m100_418M"), max_new_tokens=4, **asked)


class Speaks(LlamaForCausalLM):
    """Draws sounds by a loop of its own."""

    def _sample(self, *arguments: Any, **given: Any) -> Any:
        raise AssertionError("it is refused before any work")


class Greedy(LlamaForCausalLM):
    """Can be decoded greedily only."""

    _supported_generation_modes = (GenerationMode.GREEDY_SEARCH,)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Speaks, "Speaks draws by a loop of its own, for sound or its codes"),
        (Greedy, "Greedy can only be decoded greedily"),
    ],
)
def test_models_that_are_not_sampled_as_text_is_are_refused_by_name(kind: type, message: str) -> None:
    name = "Unbabel/TowerInstruct-7B-v0.1"
    model = copy.deepcopy(published_model(name))
    model.__class__ = kind
    with pytest.raises(ValueError, match=message):
        model.generate(SOURCES, custom_generate=chrf(name), max_new_tokens=4)
