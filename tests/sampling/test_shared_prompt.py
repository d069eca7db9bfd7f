"""The prompt held once: attention from two parts is that over the whole, for models of every build."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from hf_acpmbr.sampling import Truncation
from hf_acpmbr.sampling.prefix_sharing import PrefixSharing, shared_prompt
from hf_acpmbr.sampling.prefix_sharing.forward import PrefixCache
from hf_acpmbr.sampling.prefix_sharing.shared_prompt import Joined, SharedPrompt, SlidingSharedPrompt, share_prompts
from hf_acpmbr.sampling.rows import Rows
from tests.models import DECODER_ONLY, tiny_model
from tests.sampling.requests import SOURCES, request
from tests.sampling.test_prefix_sharing import same

VOCABULARY = 97
_LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_MIXED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
_MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
_MOE = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
_FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
EAGER, BOTH = ("eager",), ("sdpa", "eager")

# name: (kind of config, its settings, attention implementations, whether attention is computed from two parts)
MODELS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], bool]] = {
    "llama": ("llama", _LLAMA, BOTH, True),
    "window": ("mistral", {**_LLAMA, "sliding_window": 7}, BOTH, True),
    "some layers with a window": ("gemma3_text", {**_LLAMA, **_MIXED, "query_pre_attn_scalar": 8}, BOTH, True),
    "soft caps": ("gemma2", {**_LLAMA, **_MIXED, "query_pre_attn_scalar": 8}, EAGER, True),
    "sinks": ("gpt_oss", {**_LLAMA, **_MIXED, "num_local_experts": 4, "num_experts_per_tok": 2}, EAGER, True),
    "layers that share keys": (
        "gemma3n_text",
        {
            **_LLAMA,
            "num_hidden_layers": 4,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0] * 4,
        },
        BOTH,
        True,
    ),
    "chunks": (
        "llama4_text",
        {
            **_LLAMA,
            "num_hidden_layers": 4,
            "attention_chunk_size": 8,
            "num_local_experts": 2,
            "intermediate_size_mlp": 48,
            "num_experts_per_tok": 1,
        },
        BOTH,
        True,
    ),
    "one head of keys": ("falcon", _FALCON, BOTH, True),
    "ALiBi": ("falcon", {**_FALCON, "alibi": True, "multi_query": False}, BOTH, True),
    "ALiBi as a bias": ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}, EAGER, True),
    "learned positions": ("gpt2", _GPT, BOTH, True),
    "casts": ("gptj", {**_GPT, "rotary_dim": 4}, EAGER, True),
    "parallel": ("gpt_neox", {**_FALCON, "intermediate_size": 48}, BOTH, True),
    "latent keys": ("deepseek_v3", {**_LLAMA, **_MLA, **_MOE, "num_key_value_heads": 4}, BOTH, False),
    "three axes": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, EAGER, False),
}
CASES = [(name, attention) for name, (_, _, known, _) in MODELS.items() for attention in known]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Join however short the prompts, a few rows at a time."""
    monkeypatch.setattr(shared_prompt, "_JOINED_FROM", 0)
    monkeypatch.setattr(shared_prompt, "_BLOCK", 1000)


def model_of(name: str, attention: str) -> Any:
    kind, settings, _, _ = MODELS[name]
    special = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **{**special, **settings})
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.15)
    return model


def largest_difference(model: Any, prompt: int, sources: int = 3, steps: int = 8) -> tuple[float, float]:
    """How far logits from shared prompts are at most from those of one row per prefix, and the largest logit.

    Prompts are padded on the left; prefixes split, end, wait in a fork, until one source is left.
    """
    random = np.random.default_rng(prompt)
    ids = torch.from_numpy(random.integers(3, VOCABULARY, (sources, prompt)))
    mask = torch.ones_like(ids)
    for source in range(sources):
        mask[source, : 2 * source], ids[source, : 2 * source] = 0, 0

    def logits(past: Any, n: int | None) -> torch.Tensor:
        given = model.prepare_inputs_for_generation(
            ids,
            next_sequence_length=n,
            past_key_values=past,
            is_first_iteration=n is None,
            attention_mask=mask,
            use_cache=True,
        )
        return model(**given, return_dict=True).logits[:, -1].float()

    with torch.no_grad():
        plain, shared = (DynamicCache(config=model.config) for _ in range(2))
        for cache in (plain, shared):
            logits(cache, None)
        share_prompts(shared, model.config._attn_implementation)
        own, worst, highest = PrefixCache(shared, sources), 0.0, 0.0
        source_of = np.arange(sources)
        for step in range(steps):
            size = [sources, 7, 12, 12, 9, 20, 5, 4][step]
            parents = np.sort(random.integers(0, len(source_of), size)) if step else source_of
            if step == steps - 1:
                parents = np.flatnonzero(source_of == source_of[0])
            index = torch.from_numpy(parents)
            plain.reorder_cache(index)
            source_of = source_of[parents]
            own = own.follow(Rows(parents, index), Rows(source_of), fork=step == 4)
            ids = torch.cat([ids[index], torch.from_numpy(random.integers(3, VOCABULARY, (len(parents), 1)))], dim=1)
            mask = torch.cat([mask[index], torch.ones(len(parents), 1, dtype=torch.long)], dim=1)
            expected = logits(plain, 1)
            difference = (expected - logits(own.whole, 1)).abs().max()
            worst, highest = max(worst, float(difference)), max(highest, float(expected.abs().max()))
    return worst, highest


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("name", "attention"), CASES)
def test_logits_are_those_of_one_row_per_prefix(name: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Joined] = []
    build = Joined.built
    monkeypatch.setattr(Joined, "built", lambda joined: built.append(joined) or build(joined))
    worst, highest = largest_difference(model_of(name, attention), prompt=11)
    assert worst < 2e-5
    assert highest > 1
    assert MODELS[name][3] != bool(built), "what docs/generation.md says of this kind of model"


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("attention", BOTH)
@pytest.mark.parametrize("prompt", [7, 20, 30])
def test_padding_that_hides_all_of_a_chunk_of_the_prompt_is_not_seen(prompt: int, attention: str) -> None:
    model = model_of("chunks", attention)
    for sources in (2, 3):
        assert largest_difference(model, prompt, sources)[0] < 2e-5


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_alone_has_the_samples_it_has_beside_longer_ones(name: str) -> None:
    """Alone it has no padding, and the model is given no mask after the first pass."""
    model = model_of(name, MODELS[name][2][0])
    sampler = PrefixSharing(truncation=Truncation(epsilon=0.0, top_k=4))
    together = sampler.sample(request(model, SOURCES, max_new_tokens=4), 25)
    for source, samples in zip(SOURCES, together, strict=True):
        assert same(samples, *sampler.sample(request(model, [source], max_new_tokens=4), 25))


@pytest.mark.usefixtures("always")
def test_bfloat16_differs_from_float32_as_much_as_without_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"max_new_tokens": 4, "do_sample": False}
    exact = tiny_model("llama")
    half = copy.deepcopy(exact).to(torch.bfloat16)

    def logprobs(model: Any) -> dict[tuple[int, ...], float]:
        found = PrefixSharing(truncation=Truncation(epsilon=0.0)).sample(request(model, SOURCES, **asked), 300)
        return {(k, *ids): p for k, x in enumerate(found) for ids, p in zip(x.token_ids, x.logprobs, strict=True)}

    expected, shared = logprobs(exact), logprobs(half)
    monkeypatch.setattr(shared_prompt, "_JOINED_FROM", 10**9)
    plain = logprobs(half)
    common = expected.keys() & shared.keys() & plain.keys()
    assert len(common) > 100
    errors = [np.mean([abs(found[ids] - expected[ids]) for ids in common]) for found in (shared, plain)]
    assert 0 < errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize("kind", DECODER_ONLY)
@pytest.mark.parametrize("max_rows", [512, 20])
def test_samples_are_those_of_a_copy_per_prefix(kind: str, max_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = PrefixSharing(truncation=Truncation(epsilon=0.0), max_rows=max_rows)
    found = []
    for gate in (0, 10**9):
        monkeypatch.setattr(shared_prompt, "_JOINED_FROM", gate)
        found.append(sampler.sample(request(tiny_model(kind), SOURCES, max_new_tokens=5), 150))
    assert all(map(same, *found))


def test_the_cache_holds_a_prompt_once_however_many_prefixes_follow_it() -> None:
    model, prompt = tiny_model("llama"), 60
    held: list[int] = []

    def look(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        layers = kwargs["past_key_values"].layers
        held.append(0)
        for layer in layers:
            tensors = [
                part for value in vars(layer).values() for part in (value if isinstance(value, tuple) else [value])
            ]
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if torch.is_tensor(t)}
            held[-1] += sum(storage.nbytes() for storage in storages.values())

    asked = request(model, [[3 + k % 5 for k in range(prompt)]], max_new_tokens=4)
    with model.register_forward_pre_hook(look, with_kwargs=True):
        (samples,) = PrefixSharing(truncation=Truncation(epsilon=0.0)).sample(asked, 300)
    config = model.config
    a_token = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4
    prefixes = len({ids[:3] for ids in samples.token_ids})
    assert prefixes > 30
    assert held[-1] <= a_token * (prompt + 2 * prefixes) + 64
    assert max(held) <= 2 * a_token * prompt + a_token * 3 * prefixes


def test_of_a_window_only_the_tokens_in_it_are_kept() -> None:
    cache = DynamicCache(config=tiny_model("mistral").config)
    for number in range(2):
        cache.update(torch.randn(1, 1, 9, 8), torch.randn(1, 1, 9, 8), number)
    share_prompts(cache, "sdpa")
    (layer, _) = cache.layers
    assert isinstance(layer, SlidingSharedPrompt)
    assert {part.shape[2] for part in layer._prompt} == {2}
    assert layer._prompt[0].untyped_storage().nbytes() == 2 * 8 * 4


def layer_after(prompt: int, suffix: int, sources: list[int], heads: int = 2, **options: Any) -> SharedPrompt:
    before = DynamicLayer()
    before.update(*(torch.randn(max(sources) + 1, heads, prompt, 4) for _ in range(2)))
    layer = SharedPrompt(before, options.get("joins", True))
    layer.sources = Rows(np.array(sources))
    layer.keys, layer.values = (torch.randn(len(sources), heads, suffix, 4) for _ in range(2))
    return layer


def states(layer: SharedPrompt) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (len(layer.sources), layer.keys.shape[1], 1, 4)
    return torch.randn(shape), torch.randn(shape)


@pytest.mark.usefixtures("always")
@given(
    sources=st.lists(st.integers(0, 2), min_size=1, max_size=9).map(sorted),
    prompt=st.integers(0, 9),
    suffix=st.integers(0, 4),
    heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    queries=st.integers(1, 2),
    mask=st.sampled_from([None, "rows", "heads", "all"]),
    added=st.booleans(),
    seed=st.integers(0, 9),
)
def test_attention_is_that_over_the_concatenation(
    sources: list[int],
    prompt: int,
    suffix: int,
    heads: int,
    groups: int,
    queries: int,
    mask: str | None,
    added: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    layer = layer_after(prompt, suffix, sources, heads)
    key, value = layer.update(*states(layer))
    assert isinstance(key, Joined)
    length = prompt + suffix + 1
    assert key.shape == (len(sources), heads, length, 4)
    query = torch.randn(len(sources), heads * groups, queries, 4)
    given_mask = None
    if mask is not None:
        axes = {"rows": (True, False), "heads": (False, True), "all": (True, True)}[mask]
        shape = (len(sources) if axes[0] else 1, heads * groups if axes[1] else 1, 1, length)
        seen = torch.rand(shape) < 0.5
        seen[..., -1] = True
        given_mask = torch.randn(shape).masked_fill(~seen, torch.finfo(torch.float32).min) if added else seen
    options = {"scale": 0.3, "attn_mask": given_mask, "enable_gqa": True}
    expected = F.scaled_dot_product_attention(query, key.built(), value.built(), **options)
    found = F.scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    def repeated(part: torch.Tensor) -> torch.Tensor:
        shape = (*part.shape[:2], groups, *part.shape[2:])
        return part[:, :, None, :, :].expand(shape).reshape(shape[0], heads * groups, *shape[3:])

    for transpose in (lambda part: part.transpose(2, 3), lambda part: part.transpose(-1, -2)):
        own, whole = transpose(repeated(key)), transpose(repeated(key.built()))
        torch.testing.assert_close(query @ own, query @ whole, atol=1e-5, rtol=1e-5)
    weights = torch.rand(len(sources), heads * groups, queries, length)
    torch.testing.assert_close(
        torch.matmul(weights, repeated(value)), torch.matmul(weights, repeated(value.built())), atol=1e-5, rtol=1e-5
    )


OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x + 1,
    "slice": lambda x: x[:, :, 1:3],
    "index": lambda x: x[torch.tensor([0, 0, 2])],
    "other axes": lambda x: x.transpose(1, 2),
    "names of axes": lambda x: x.transpose(dim0=2, dim1=3),
    "all axes": lambda x: x.permute(0, 1, 3, 2),
    "property": lambda x: x.mT,
    "list": lambda x: torch.cat([x, x], dim=1),
    "einsum": lambda x: torch.einsum("uhtd,uhsd->uhts", x, x),
    "product with itself": lambda x: x.transpose(2, 3) @ x,
    "grouped": lambda x: x[:, :, None, :, :] * 2,
    "expanded": lambda x: x[:, :, None, :, :].expand(-1, -1, 3, -1, -1).sum(2),
    "reshaped": lambda x: x.reshape(-1, 4),
    "type": lambda x: x.to(torch.float64).float(),
    "written into": lambda x: torch.zeros(x.shape).copy_(x),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", OPERATIONS)
def test_any_other_operation_builds_the_concatenation(name: str) -> None:
    layer = layer_after(3, 2, [0, 0, 1])
    key, _ = layer.update(*states(layer))
    assert isinstance(key, Joined)
    found = OPERATIONS[name](key)
    assert not isinstance(found, Joined)
    torch.testing.assert_close(found, OPERATIONS[name](key.built()))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention", None])
def test_other_attention_is_given_the_concatenation(attention: str | None) -> None:
    cache = DynamicCache()
    prompt = torch.randn(2, 1, 3, 4)
    cache.update(prompt, prompt, 0)
    share_prompts(cache, attention)
    (layer,) = cache.layers
    layer.sources = Rows(np.array([0, 1, 1]))
    layer.reorder_cache(torch.tensor([0, 1, 1]))
    key, _ = layer.update(*(torch.ones(3, 1, 1, 4) for _ in range(2)))
    assert torch.equal(torch.as_tensor(key), torch.cat([prompt[[0, 1, 1]], torch.ones(3, 1, 1, 4)], dim=2))
    assert type(key) is torch.Tensor


@pytest.mark.usefixtures("always")
def test_a_compiled_model_is_given_the_concatenation(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_after(3, 2, [0, 0, 1])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    key, _ = layer.update(*states(layer))
    assert type(key) is torch.Tensor


def test_short_prompts_are_concatenated_and_long_ones_joined() -> None:
    joined = []
    for prompt, prefixes in ((20, 8), (2000, 1), (500, 8)):
        layer = layer_after(prompt, 2, [0] * prefixes)
        joined.append(isinstance(layer.update(*states(layer))[0], Joined))
    assert joined == [False, True, True]


def test_layers_of_other_kinds_stay_as_they_are() -> None:
    class Other(DynamicSlidingWindowLayer):
        pass

    cache = DynamicCache()
    cache.layers = [DynamicLayer(), Other(4), DynamicLayer()]
    cache.layers[2].update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4))
    share_prompts(cache, "sdpa")
    assert [type(layer) for layer in cache.layers] == [DynamicLayer, Other, SharedPrompt]
