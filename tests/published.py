"""Tiny random models with exactly the generation settings of published ones; only layers and min_length are small."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import tokenizers
import torch
import transformers as hf

_SIZE = 16
_SEQ2SEQ = {
    "d_model": _SIZE,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "scale_embedding": True,
}
_T5 = {"d_model": _SIZE, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
_DECODER = {
    "hidden_size": _SIZE,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
_BEAMS = {"max_length": 200, "early_stopping": True, "num_beams": 5}
_M2M = {"bos_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
_PEGASUS = {"bos_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}


@dataclass(frozen=True)
class Published:
    """One family: the model's class, what is in its config.json besides sizes, and its generation_config.json."""

    config: type[hf.PretrainedConfig]
    model: type[hf.PreTrainedModel]
    vocabulary: int
    sizes: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)


def _marian(pad: int, eos: int, beams: int, **more: Any) -> dict[str, Any]:
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "bos_token_id": 0, "eos_token_id": eos}
    return {
        **ids,
        "bad_words_ids": [[pad]],
        "forced_eos_token_id": eos,
        "max_length": 512,
        "num_beams": beams,
        **more,
    }


FAMILIES: dict[str, Published] = {
    "facebook/m2m100_418M": Published(
        hf.M2M100Config, hf.M2M100ForConditionalGeneration, 2000, _SEQ2SEQ, _M2M, {**_M2M, **_BEAMS}
    ),
    "facebook/mbart-large-50-many-to-many-mmt": Published(
        hf.MBartConfig,
        hf.MBartForConditionalGeneration,
        2000,
        _SEQ2SEQ,
        {**_M2M, "forced_eos_token_id": 2},
        {**_M2M, **_BEAMS, "forced_eos_token_id": 2},
    ),
    "facebook/nllb-200-distilled-600M": Published(
        hf.M2M100Config, hf.M2M100ForConditionalGeneration, 2000, _SEQ2SEQ, _M2M, {**_M2M, "max_length": 200}
    ),
    "Helsinki-NLP/opus-mt-en-de": Published(
        hf.MarianConfig,
        hf.MarianMTModel,
        58101,
        _SEQ2SEQ,
        {"pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0, "bos_token_id": 0},
        _marian(58100, 0, 4, renormalize_logits=True),
    ),
    "Helsinki-NLP/opus-mt-tc-big-zls-de": Published(
        hf.MarianConfig,
        hf.MarianMTModel,
        59519,
        _SEQ2SEQ,
        {"pad_token_id": 59518, "decoder_start_token_id": 59518, "eos_token_id": 32962, "bos_token_id": 0},
        _marian(59518, 32962, 4),
    ),
    "facebook/wmt19-de-en": Published(
        hf.FSMTConfig,
        hf.FSMTForConditionalGeneration,
        2000,
        {**_SEQ2SEQ, "langs": ["de", "en"], "src_vocab_size": 2000, "tgt_vocab_size": 2000},
        {**_M2M, "forced_eos_token_id": 2},
        {**_M2M, "forced_eos_token_id": 2, "length_penalty": 1.1, "max_length": 200, "num_beams": 5},
    ),
    "facebook/bart-large-cnn": Published(
        hf.BartConfig,
        hf.BartForConditionalGeneration,
        2000,
        _SEQ2SEQ,
        {**_M2M, "forced_eos_token_id": 2},
        {
            **_M2M,
            "early_stopping": True,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "length_penalty": 2.0,
            "max_length": 142,
            "min_length": 4,
            "no_repeat_ngram_size": 3,
            "num_beams": 4,
        },
    ),
    "google/pegasus-xsum": Published(
        hf.PegasusConfig,
        hf.PegasusForConditionalGeneration,
        2000,
        _SEQ2SEQ,
        _PEGASUS,
        {**_PEGASUS, "forced_eos_token_id": 1, "length_penalty": 0.6, "max_length": 64, "num_beams": 8},
    ),
    "facebook/blenderbot-400M-distill": Published(
        hf.BlenderbotConfig,
        hf.BlenderbotForConditionalGeneration,
        2000,
        _SEQ2SEQ,
        {**_M2M, "forced_eos_token_id": 2},
        {
            **_M2M,
            "encoder_no_repeat_ngram_size": 3,
            "forced_eos_token_id": 2,
            "length_penalty": 0.65,
            "max_length": 60,
            "min_length": 4,
            "no_repeat_ngram_size": 3,
            "num_beams": 10,
        },
    ),
    "google-t5/t5-small": Published(
        hf.T5Config,
        hf.T5ForConditionalGeneration,
        32128,
        _T5,
        {
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "task_specific_params": {
                "translation_en_to_de": {"early_stopping": True, "max_length": 300, "num_beams": 4}
            },
        },
        {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
    ),
    "google/madlad400-3b-mt": Published(
        hf.T5Config,
        hf.T5ForConditionalGeneration,
        2000,
        _T5,
        {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
        {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
    ),
    "Unbabel/TowerInstruct-7B-v0.1": Published(
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        32007,
        _DECODER,
        {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
        {"bos_token_id": 1, "eos_token_id": 32005},
    ),
    "google/gemma-2-2b-it": Published(
        hf.Gemma2Config,
        hf.Gemma2ForCausalLM,
        2000,
        {**_DECODER, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
        {"bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 107], "pad_token_id": 0},
    ),
    "google/gemma-3-4b-it": Published(  # with eyes, though only text is asked for
        hf.Gemma3Config,
        hf.Gemma3ForConditionalGeneration,
        2000,
        {
            "text_config": {**_DECODER, "vocab_size": 2000, "sliding_window": 8},
            "vision_config": {
                **dict.fromkeys(("hidden_size", "intermediate_size", "image_size"), 8),
                "patch_size": 4,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 1000,
            "boi_token_index": 1001,
            "eoi_token_index": 1002,
        },
        {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
        {
            "bos_token_id": 2,
            "cache_implementation": "hybrid",
            "do_sample": True,
            "eos_token_id": [1, 106],
            "pad_token_id": 0,
            "top_k": 64,
            "top_p": 0.95,
        },
    ),
    "Qwen/Qwen2.5-7B-Instruct": Published(
        hf.Qwen2Config,
        hf.Qwen2ForCausalLM,
        152064,
        _DECODER,
        {"bos_token_id": 151643, "eos_token_id": 151645},
        {
            "bos_token_id": 151643,
            "do_sample": True,
            "eos_token_id": [151645, 151643],
            "pad_token_id": 151643,
            "repetition_penalty": 1.05,
            "temperature": 0.7,
            "top_k": 20,
            "top_p": 0.8,
        },
    ),
    "meta-llama/Llama-3.2-3B-Instruct": Published(
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        128256,
        _DECODER,
        {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]},
        {
            "bos_token_id": 128000,
            "do_sample": True,
            "eos_token_id": [128001, 128008, 128009],
            "temperature": 0.6,
            "top_p": 0.9,
        },
    ),
    "state-spaces/mamba-130m-hf": Published(
        hf.MambaConfig,
        hf.MambaForCausalLM,
        2000,
        {"hidden_size": _SIZE, "num_hidden_layers": 1, "state_size": 4},
        dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
        dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    ),
}
WITH_BEAMS = [name for name, family in FAMILIES.items() if family.generation.get("num_beams", 1) > 1]


@functools.cache
def published_model(name: str) -> hf.PreTrainedModel:
    """A random model in eval mode with the family's published generation_config."""
    family = FAMILIES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        size = {} if "text_config" in family.sizes else {"vocab_size": family.vocabulary}
        config = family.config(**size, **family.sizes, **family.settings)
        model = family.model(config).eval()
        head = model.get_output_embeddings().weight
        with torch.no_grad():
            head.normal_(0, 0.3)
            head[200:].mul_(0.05)  # most of a large vocabulary is improbable, as in trained models
    model.generation_config = hf.GenerationConfig(**family.generation)
    return model


@functools.cache
def published_tokenizer(name: str) -> hf.PreTrainedTokenizerFast:
    """One word for each id, with the family's own special ids; no pad token where the family has none."""
    family = FAMILIES[name]
    words = {f"w{k}": k for k in range(family.vocabulary)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w3"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    eos = family.generation["eos_token_id"]
    pad = family.generation.get("pad_token_id")
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=f"w{eos[0] if isinstance(eos, list) else eos}",
        pad_token=None if pad is None else f"w{pad}",
    )
