"""Drawing and choosing on an accelerator: the results of the CPU, and how often the host waits for the device."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from hf_acpmbr import ACPMBR
from hf_acpmbr.config import SAMPLERS
from hf_acpmbr.generation.models import load_model
from hf_acpmbr.generation.prompts import Prompting
from hf_acpmbr.sampling.prefix_sharing import shared_prompt
from tests.models import tiny_model, tiny_pair
from tests.sampling.requests import SOURCES, request

from .simulated import Traffic, needs_hook, simulated_device

pytestmark = needs_hook
TEXTS = ["the cat sat on the mat", "a dog ran", "we see the sun"]
STEPS = 10
EMBEDDED = {"target": "embedded-d1", "distilled": "embedded-d2", "num_candidates": 12}
# Waits of one call besides those of the steps and of the batches of utilities: prompts, their masks, end tokens.
OWN_PER_CALL = 6


def moved(model: PreTrainedModel, device: str = "sim") -> Any:
    return copy.deepcopy(model).to(device)


def generate(kind: str, device: str, texts: list[str] = TEXTS, keywords: Any = None, **settings: Any) -> Any:
    """One call of `generate` with everything on a device."""
    model, tokenizer = tiny_pair(kind)
    model = model if device == "cpu" else moved(model, device)
    inputs = {name: tensor.to(device) for name, tensor in Prompting().encode(tokenizer, texts, model).items()}
    mbr = ACPMBR(tokenizer, **{"target": "chrf", "num_candidates": 40, "epsilon": 0.0, **settings})
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, **(keywords or {})}
    return model.generate(**inputs, custom_generate=mbr, **options)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", ["m2m100", "llama", "gemma3"])
def test_every_sampler_draws_what_it_draws_on_the_cpu(name: str, kind: str) -> None:
    sampler = SAMPLERS.build(name)
    expected = sampler.sample(request(tiny_model(kind), SOURCES, max_new_tokens=4), 30, 0)
    with simulated_device():
        drawn = sampler.sample(request(moved(tiny_model(kind), "sim:1"), SOURCES, max_new_tokens=4), 30, 0)
    for one, other in zip(drawn, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.counts.tolist() == other.counts.tolist()
        if other.logprobs is not None:
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma3"])
def test_a_prompt_that_is_held_once_gives_the_samples_of_the_cpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompt, "_JOINED_FROM", 1)
    answered: list[str] = []
    scores = shared_prompt._scores
    monkeypatch.setattr(shared_prompt, "_scores", lambda *given: answered.append("") or scores(*given))
    sampler = SAMPLERS.build("prefix-sharing")
    expected = sampler.sample(request(tiny_model(kind), SOURCES, max_new_tokens=4), 30, 0)
    assert answered
    answered.clear()
    with simulated_device():
        drawn = sampler.sample(request(moved(tiny_model(kind), "sim:1"), SOURCES, max_new_tokens=4), 30, 0)
    assert answered
    for one, other in zip(drawn, expected, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"decoder": "mbr"},
        {"decoder": "mbr", "num_references": 15, "references_sampler": {"name": "chunked"}},
        {"decoder": "mbr", "add_beam": 2},
        {**EMBEDDED},
        {**EMBEDDED, "decoder": "acpmbr", "scores_per_row": 4},
    ],
    ids=["mbr", "references apart", "with beams", "rounds", "acpmbr"],
)
@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_the_drop_in_call_returns_what_it_returns_on_the_cpu(kind: str, settings: dict[str, Any]) -> None:
    expected = generate(kind, "cpu", **settings)
    with simulated_device():
        out = generate(kind, "sim", **settings)  # utilities of no device take the accelerator
        assert out.sequences.device == torch.device("sim:0")
        sequences = out.sequences.cpu()
    assert torch.equal(sequences, expected.sequences)
    assert out.texts == expected.texts
    assert out.calls == expected.calls


def test_target_and_guide_are_on_devices_of_their_own() -> None:
    expected = generate("m2m100", "cpu", **EMBEDDED)
    with simulated_device() as traffic:
        target, guide = (
            {"name": EMBEDDED[role], "device": f"sim:{k}"} for k, role in enumerate(("target", "distilled"))
        )
        out = generate("m2m100", "sim:1", **{**EMBEDDED, "target": target, "distilled": guide})
        assert min(traffic.peak.values()) > 0
    assert out.texts == expected.texts
    assert out.calls == expected.calls


class Pieces(BaseStreamer):
    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.pieces.append(value.reshape(-1).tolist())

    def end(self) -> None:
        self.ended = True


def test_a_streamer_is_given_the_chosen_text() -> None:
    streams = [Pieces(), Pieces()]
    expected = generate("llama", "cpu", TEXTS[:1], {"streamer": streams[0]}, decoder="mbr")
    with simulated_device():
        out = generate("llama", "sim", TEXTS[:1], {"streamer": streams[1]}, decoder="mbr")
    assert out.texts == expected.texts
    assert streams[1].pieces == streams[0].pieces
    assert streams[1].ended


def test_a_corpus_is_mapped_by_a_model_on_the_device() -> None:
    model, tokenizer = tiny_pair("m2m100")

    def rows(device: str) -> list[dict[str, Any]]:
        mbr = ACPMBR(tokenizer, target="embedded-d2", num_candidates=12, epsilon=0.0)
        mapping = mbr.map_fn(moved(model, device), generate={"max_new_tokens": 6})
        return [mapping({"source": TEXTS[start : start + 2]}) for start in (0, 2)]

    expected = rows("cpu")
    with simulated_device():
        for one, other in zip(rows("sim:1"), expected, strict=True):
            assert one["prediction"] == other["prediction"]
            np.testing.assert_allclose(one["prediction_utility"], other["prediction_utility"], atol=1e-5)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_models_in_half_precision_and_utilities_of_dtype_auto(half: torch.dtype) -> None:
    with simulated_device([half]):
        loaded = load_model("embedded", dtype=str(half).removeprefix("torch."))
        assert (loaded.model.device, loaded.model.dtype) == (torch.device("sim:0"), half)
        inputs = loaded.tokenizer(["The cat sat on the mat."], return_tensors="pt").to("sim")
        mbr = ACPMBR(loaded.tokenizer, target="embedded", distilled="embedded-d1", num_candidates=16)
        assert mbr.target.dtype == ("float16" if half is torch.float16 else "float32")  # BLEURT's half is float16
        out = loaded.model.generate(
            **inputs, **loaded.generate, custom_generate=mbr, max_new_tokens=12, return_dict_in_generate=True
        )
        assert out.texts[0][0].startswith("Die Katze")
        assert mbr.target.network.classifier.weight.dtype == getattr(torch, mbr.target.dtype)


def second_call(kind: str, texts: list[str], **settings: Any) -> Traffic:
    """What a second call of ten steps costs, once everything is loaded."""
    model, tokenizer = tiny_pair(kind)
    with simulated_device() as traffic:
        model = moved(model)
        inputs = {name: tensor.to("sim") for name, tensor in Prompting().encode(tokenizer, texts, model).items()}
        mbr = ACPMBR(
            tokenizer, **{"target": "chrf", "decoder": "mbr", "num_candidates": 40, "epsilon": 0.0, **settings}
        )
        for _ in range(2):
            traffic.clear()
            model.generate(**inputs, custom_generate=mbr, min_new_tokens=STEPS, max_new_tokens=STEPS)
        return traffic


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS], ids=["one source", "several sources"])
@pytest.mark.parametrize("kind", ["m2m100", "llama", "gemma3"])
def test_the_host_waits_for_the_device_once_per_step(kind: str, texts: list[str]) -> None:
    """The numbers of docs/generation.md."""
    traffic = second_call(kind, texts)
    assert traffic.waits["hf_acpmbr"] <= STEPS + OWN_PER_CALL
    assert traffic.waits["transformers"] <= 2 * STEPS + 6
    assert traffic.waits.total() <= 40
    assert traffic.uploads["hf_acpmbr"] <= 2 * STEPS + 2


def test_a_utility_adds_one_wait_and_one_upload_per_batch() -> None:
    plain = second_call("llama", TEXTS[:1])
    scored = second_call("llama", TEXTS[:1], target={"name": "embedded-d2", "batch_tokens": 4000}, num_candidates=20)
    batches = scored.waits["hf_acpmbr"] - plain.waits["hf_acpmbr"]
    assert batches > 1
    assert scored.uploads["hf_acpmbr"] - plain.uploads["hf_acpmbr"] == batches
