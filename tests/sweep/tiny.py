"""A tiny random model of any class of transformers that generates, made from the defaults of its configuration."""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any

import torch
import transformers as hf

VOCABULARY = 120
# Ids below belong to the tokenizer; images and sounds have theirs at the end of the vocabulary.
PAD, BOS, EOS, UNKNOWN = range(4)
FIRST_WORD, LAST_WORD = 4, 99

_HIDDEN, _HEADS, _KV_HEADS, _HEAD, _INNER, _LAYERS, _EXPERTS = 32, 4, 2, 8, 64, 2, 4

# By the name of a setting; the first pattern that fits counts.
_SIZES: tuple[tuple[str, Any], ...] = (
    (r"num_key_value_heads|num_kv_heads|.*num_key_value_heads|n_head_kv|multi_query_group_num", _KV_HEADS),
    (r".*_kv_heads", _KV_HEADS),
    (
        r"(num_)?(hidden_)?(encoder_|decoder_)?(n_)?layers?|n_layers?|num_.*layers|.*_num_layers|.*_layers|depth",
        _LAYERS,
    ),
    (r"num_(attention_)?heads|n_heads?|.*_heads|num_.*_heads|.*num_attention_heads|heads", _HEADS),
    (r"head_dim|.*_head_dim|head_size|d_kv|attention_head_dim|kv_channels", _HEAD),
    (
        r"hidden_size|d_model|n_embd|embed_dim|hidden_dim|.*hidden_size|.*embed_dim|.*_hidden_dim|embedding_size|dim",
        _HIDDEN,
    ),
    (
        r"output_dim|adapter_out_dim|text_hidden_size|projection_dim|projector_hidden_size|out_hidden_size|attention_hidden_size|word_embed_proj_dim",
        _HIDDEN,
    ),
    (r"moe_.*intermediate_size|shared_expert_intermediate_size|expert_ffn_hidden_size", _HIDDEN),
    (r".*intermediate_size|.*ffn_dim|ffn_hidden_size|d_ff|n_inner|.*inner_dim|mlp_dim|d_inner|.*ffn_size", _INNER),
    (r"num_experts_per_tok|moe_k|num_experts_per_token|top_k_experts|moe_topk|n_shared_experts|num_shared_experts", 2),
    (r"(num|n)_(local_|routed_|)experts|moe_num_experts", _EXPERTS),
    (r"n_group|topk_group|num_expert_groups|moe_layer_start_index", 1),
    (r"first_k_dense_replace|num_dense_layers", 1),
    (r"q_lora_rank|kv_lora_rank|.*_rank|.*lora_dim", 16),
    (r"qk_nope_head_dim|v_head_dim|qk_rope_head_dim", _HEAD),
    (r"rotary_dim", _HEAD),
    (r"vocab_size|.*_vocab_size", VOCABULARY),
    (r"image_size|img_size", 16),
    (r"(spatial_)?patch_size", 4),
    (r"max_position_embeddings|n_positions|max_.*positions|n_ctx|max_sequence_length|max_seq_len", 256),
)
_LARGEST = 150_000_000  # parameters of a tiny model
_IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
PLACE = 100  # of an image in the text
_PLACES = {"image_token_id": PLACE, "image_token_index": PLACE, "video_token_id": 101, "video_token_index": 101}
_PLACES |= {"audio_token_id": 102, "audio_token_index": 102}


def _size(name: str, value: object) -> object:
    if re.fullmatch(r".*_token_(id|index)", name) and isinstance(value, int):
        return LAST_WORD + 4 + sum(map(ord, name)) % 17  # no placeholder, and no word
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            return size
    return None


_TWO = ["sliding_attention", "full_attention"]
# What the rules above cannot know, by model type.
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2}, "ffn_config": {"ffn_hidden_size": 64}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "num_kv_shared_layers": 2,
        "intermediate_size": [64] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "layer_types": _TWO * 2,
        "head_dim": _HEAD,
        "global_head_dim": _HEAD,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
    },
    "gemma4_unified_text": {
        "num_hidden_layers": 4,
        "layer_types": _TWO * 2,
        "head_dim": _HEAD,
        "global_head_dim": _HEAD,
    },
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"], "num_hidden_layers": 2},
    "mamba2": {"num_heads": 8, "head_dim": _HEAD, "n_groups": 2, "state_size": 8, "expand": 2, "chunk_size": 8},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4, "mamba_dt_rank": 4},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_hidden_layers": 3,
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "num_mem_blocks": 1,
    },
    "zaya": {"num_experts_per_tok": 1},
    "xlm": {"n_words": VOCABULARY, "emb_dim": 32, "n_heads": 4},
    "flaubert": {"n_words": VOCABULARY, "emb_dim": 32, "n_heads": 4},
    "cohere_compass_text": {"layer_types": _TWO, "num_hidden_layers": 2},
}


_SECTIONS = [1, 1, 2]  # of the head's size, for time, height and width
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_MROPE = {"rope_parameters": {**_ROPE, "mrope_section": _SECTIONS}}
_WITH_MROPE = ("qwen2_vl_text", "qwen2_5_vl_text", "glm_ocr_text", "glm4v_text", "glm_image_text")
_WITH_MROPE += ("ernie4_5_vl_moe_text", "qwen2_5_omni_text", "qwen3_omni_moe_text", "paddleocr_vl_text")
_OF_FAMILY |= dict.fromkeys(_WITH_MROPE, _MROPE)
_OF_FAMILY |= {kind: {"head_dim": _HEAD} for kind in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral", "nemotron")}
_OF_FAMILY |= {
    "bamba": {
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8},
    "recurrent_gemma": {"num_hidden_layers": 3, "block_types": ["recurrent", "recurrent", "attention"]},
    "gemma3": {"mm_tokens_per_image": 4},
    "t5gemma2_encoder": {"mm_tokens_per_image": 4},
    "blip-2": {"image_token_index": PLACE, "num_query_tokens": 4},
    "instructblip": {"image_token_index": PLACE, "num_query_tokens": 4},
    "idefics2": {"perceiver_config": {"resampler_n_latents": 2, "resampler_depth": 1}},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local", "lsh"],
        "axial_pos_embds": False,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
        "attention_head_size": _HEAD,
    },
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "granite_speech": {"window_size": 4, "downsample_rate": 2},
}
_OF_FAMILY |= {
    key: {"decoder": {"is_decoder": True, "add_cross_attention": True}}
    for key in ("encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder")
}
_TILED = {"image_grid_pinpoints": [[16, 16]]}
# Image tokens of models that say their images in words of their own.
_CODES = {"<image>": 100} | {f"IMGIMG{letter}Z": 105 + k for k, letter in enumerate("ABCDEFGH")}
_VISUAL_TOKENS = {"<image>": 100, "<|extra_200|>": 104} | {f"<|visual token {k:06}|>": 105 + k for k in range(8)}
_OF_FAMILY |= dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), _TILED)
_OF_FAMILY |= {
    "chameleon": {"vocabulary_map": _CODES, "image_token_id": PLACE},
    "emu3": {"vocabulary_map": _VISUAL_TOKENS, "image_token_id": PLACE},
    "chameleon_vqgan": {"num_embeddings": 8, "base_channels": 32, "resolution": 16},
    "emu3_vqgan": {"codebook_size": 8, "base_channels": 32, "hidden_size": 128},
    "cohere_compass_text": {
        "layer_types": _TWO,
        "num_hidden_layers": 2,
        "rope_parameters": dict.fromkeys(_TWO, _ROPE),
    },
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2, "head_dim": _HEAD},
    **{
        key: {"downsample_channels": [16, _HIDDEN], "image_size": 64}
        for key in ("deepseek_ocr2_sam_vision_model", "unlimited_ocr_sam_vision_model")
    },
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": _HIDDEN // 4}},
    "glm5_next_text": {"qk_rope_head_dim": 0, "head_dim": 0, "num_key_value_heads": _HEADS},
    "granite4_vision": {**_TILED, "downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]]},
    "glm_image_vqmodel": {"latent_channels": _HIDDEN, "num_embeddings": 16},
    "hunyuan_vl_text": {"head_dim": _HEAD, **_MROPE},
    "inkling_vision": {"patch_size": 4, "temporal_patch_size": 1},
    "llama4_vision_model": {
        "intermediate_size": 4 * _HIDDEN,  # before every four patches become one
        "projector_input_dim": _HIDDEN,
        "projector_output_dim": _HIDDEN,
        "vision_output_dim": _HIDDEN,
    },
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 3 * _HIDDEN},
    "mllama_text_model": {"cross_attention_layers": [1]},
    "moonshine_streaming": {"num_key_value_heads": _HEADS},
    "moonshine_streaming_encoder": {"num_key_value_heads": _HEADS, "sliding_windows": [[4, 1], [4, 0]]},
    "molmo2": {"image_patch_id": PLACE},
    "molmo2_vision": {"image_size": [16, 16], "num_position_embeddings": 16},
    "step3p5": {"sliding_window": 4},
    **{key: {"image_token_id": PLACE} for key in ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7")},
    **{key: {"latent_query_num": 4} for key in ("kosmos-2", "kosmos-2.5")},
    **{key: {"out_hidden_size": 4 * _HIDDEN} for key in ("muse_glimmer", "muse_spark")},
    "muse_spark_audio": {"num_hidden_layers": 4, "hidden_sizes": [16, 16, 16, 32]},
    "muse_glimmer_vision": {"layer_types": ["window_attention", "full_attention"]},
    "nemotron": {"head_dim": _HEAD, "num_key_value_heads": _KV_HEADS},
    "qwen2_audio_encoder": {"max_source_positions": 32},
    "nemotron_h": {"n_groups": 2, "mamba_num_heads": 8, "mamba_head_dim": _HEAD, "ssm_state_size": 8},
    "glm4v_moe_text": {"rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0, "mrope_section": _SECTIONS}},
    "gemma4_unified_vision": {"mm_embed_dim": _HIDDEN, "output_proj_dims": _HIDDEN},
    "deepseek_vl_hybrid": {"high_res_vision_config": {"global_attn_indexes": [0, 1]}},
    "radio": {"video_temporal_patch_size": 2},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 103, "image_token_id": PLACE, "audio_token_id": 102},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 103, "image_token_id": PLACE, "audio_token_id": 102},
    "mimi": {"upsample_groups": _HIDDEN, "codebook_dim": 16, "vector_quantization_hidden_dimension": 16},
}


def _value(default: Any, name: str) -> Any:
    try:
        return getattr(default, name, None)
    except Exception:  # settings that differ from layer to layer have no single value
        return None


def tiny_config(config_class: Any, **given: Any) -> Any:
    """Return a configuration with small sizes; `given` holds for the outermost one, {"text_config": {...}} inside."""
    default = config_class()
    # Copied, since configurations complete the dictionaries that they are given.
    given = {**copy.deepcopy(_OF_FAMILY.get(getattr(config_class, "model_type", ""), {})), **given}
    names = [name for name in inspect.signature(config_class.__init__).parameters if name not in ("self", "kwargs")]
    settings: dict[str, Any] = {}
    for name in names:
        value = _value(default, name)
        if isinstance(value, hf.PreTrainedConfig):
            inner = given.pop(name, {})
            settings[name] = tiny_config(type(value), **inner) if isinstance(inner, dict) else inner
        elif name in ("vision_feature_layer", "vision_feature_layers") and isinstance(value, (list, tuple)):
            settings[name] = [-1, -2]
        elif name == "deepstack_visual_indexes":
            settings[name] = [0, 1]
        elif name == "rope_parameters" and isinstance(value, dict) and "mrope_section" in value:
            settings[name] = {**value, "mrope_section": _SECTIONS}
        elif name == "vision_config" and value is None and name in config_class.sub_configs:
            settings[name] = tiny_config(config_class.sub_configs[name], **given.pop(name, {}))
        elif name == "layer_types" and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            settings[name] = kinds * (1 if len(kinds) > 1 else 2)
        elif name in _IDS or name in _PLACES:
            settings[name] = (_IDS | _PLACES)[name]
        elif value is None or isinstance(value, (bool, dict, list, tuple, str)):
            continue
        elif (size := _size(name, value)) is not None:
            settings[name] = size
    if "qk_rope_head_dim" in names and "num_key_value_heads" in settings:  # latent attention has as many
        settings["num_key_value_heads"] = _HEADS
    if "layer_types" in settings and "num_hidden_layers" in names:
        settings["num_hidden_layers"] = len(settings["layer_types"])
    made = config_class(**{**settings, **given})
    if getattr(made, "is_decoder", None) is False and not made.is_encoder_decoder:
        made.is_decoder = True  # as those that continue texts are used
    return made


def tiny_model(model_class: Any, seed: int = 0) -> Any:
    """Build a model with weights so large that every layer, state and image matters for the next token."""
    config = tiny_config(model_class.config_class)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class(config).parameters())
    if size > _LARGEST:
        raise ValueError(f"{size:,} parameters: its configuration has sizes that are not known here")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config).eval()
        for module in model.modules():
            weight = getattr(module, "weight", None)
            if isinstance(module, torch.nn.Embedding):
                weight.data.normal_(0, 1)
            elif isinstance(weight, torch.nn.Parameter) and weight.dim() > 1 and type(module).__name__ != "Conv1d":
                weight.data.normal_(0, 1 / weight[0].numel() ** 0.5)
        for name, parameter in model.named_parameters():
            if not name.endswith("bias") and not bool(parameter.any()):  # a gate that begins shut
                parameter.data.normal_(0, 0.5)
    return model
