"""Whether prefix sharing is exact is found by trying it, once, where a model does more than transformers' base."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, DynamicCache, LlamaForCausalLM

from hf_acpmbr.sampling import probe
from hf_acpmbr.sampling.base import Automatic
from hf_acpmbr.sampling.prefix_sharing import PrefixSharing
from hf_acpmbr.sampling.probe import obstacle
from tests.models import tiny_model
from tests.sampling.requests import SOURCES, request


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_FOUND", {})


class Forgetful(LlamaForCausalLM):
    """Keeps the last token of every row beside its cache, where no reordering reaches it."""

    _last: torch.Tensor | None = None

    @functools.wraps(LlamaForCausalLM.forward)
    def forward(self, input_ids: Any = None, **given: Any) -> Any:
        out = super().forward(input_ids, **given)
        if input_ids.shape[1] == 1 and self._last is not None:
            kept = self._last.repeat(-(-len(input_ids) // len(self._last)))[: len(input_ids)]
            out.logits = out.logits + torch.nn.functional.one_hot(kept, out.logits.shape[-1])[:, None] * 3.0
        self._last = input_ids[:, -1]
        return out

    @functools.wraps(LlamaForCausalLM.prepare_inputs_for_generation)
    def prepare_inputs_for_generation(self, *arguments: Any, **given: Any) -> Any:
        return super().prepare_inputs_for_generation(*arguments, **given)


class Renamed(LlamaForCausalLM):
    """Prepares its inputs by a method of its own, and as everyone does."""

    @functools.wraps(LlamaForCausalLM.prepare_inputs_for_generation)
    def prepare_inputs_for_generation(self, *arguments: Any, **given: Any) -> Any:
        return super().prepare_inputs_for_generation(*arguments, **given)


def of_class(kind: type[LlamaForCausalLM]) -> Any:
    model = copy.deepcopy(tiny_model("llama"))
    model.__class__ = kind
    return model


def test_a_state_that_does_not_follow_its_prefix_is_found() -> None:
    reason = obstacle(request(of_class(Forgetful), SOURCES, max_new_tokens=6))
    assert reason is not None
    assert "Forgetful, whose next tokens differ on shared prefixes" in reason


def test_prefix_sharing_that_would_be_wrong_is_refused_when_asked_for_by_name() -> None:
    with pytest.raises(ValueError, match="sampler='prefix-sharing' would be wrong here, because of Forgetful"):
        PrefixSharing().sample(request(of_class(Forgetful), SOURCES, max_new_tokens=6), 4)


def test_a_method_of_its_own_that_changes_nothing_is_no_obstacle() -> None:
    assert obstacle(request(of_class(Renamed), SOURCES, max_new_tokens=6)) is None
    assert obstacle(request(of_class(Renamed), SOURCES[:1], max_new_tokens=1)) is None


def test_what_cannot_run_on_prefixes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise KeyError("image_hidden_states")

    model = of_class(Renamed)
    monkeypatch.setattr(model, "_update_model_kwargs_for_generation", refuse)
    reason = obstacle(request(model, SOURCES, max_new_tokens=6))
    assert reason is not None
    assert "Renamed, which cannot be run on shared prefixes (KeyError" in reason


def test_a_model_is_tried_once_and_a_plain_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(probe, "_difference", lambda asked, steps: tried.append(asked.model) or None)
    for _ in range(3):
        obstacle(request(tiny_model("llama"), SOURCES, max_new_tokens=6))
        obstacle(request(tiny_model("m2m100"), SOURCES, max_new_tokens=6))
    assert not tried
    for _ in range(3):
        obstacle(request(of_class(Renamed), SOURCES, max_new_tokens=6))
    assert len(tried) == 1


def test_an_offloaded_cache_is_not_forked() -> None:
    asked = request(tiny_model("llama"), SOURCES, max_new_tokens=6)
    offloaded = DynamicCache()
    offloaded.offloading = True  # made with it, a cache wants a GPU
    asked = type(asked)(**{**vars(asked), "model_kwargs": {**asked.model_kwargs, "past_key_values": offloaded}})
    assert obstacle(asked) == "an offloaded cache, whose rows cannot be forked"


def test_an_encoder_that_was_never_a_decoder_is_refused() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertLMHeadModel(BertConfig(vocab_size=8, **sizes)).eval()
    asked = request(model, SOURCES, max_new_tokens=3, pad_token_id=0)
    with pytest.raises(ValueError, match=r"BertLMHeadModel keeps nothing in the cache .* set is_decoder=True"):
        Automatic().sample(asked, 4)
    assert Automatic().sample(request(model, SOURCES, max_new_tokens=3, pad_token_id=0, use_cache=False), 4)
