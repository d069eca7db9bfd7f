"""Tiny random models with real architectures, and tokenizers trained on a few lines. No downloads."""

from __future__ import annotations

import functools
from typing import Any

import tokenizers
import torch
import transformers as hf

PAD, BOS, EOS = 0, 1, 2
SIZE = 16

_DECODER = {
    "hidden_size": SIZE,
    "intermediate_size": 2 * SIZE,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
_SEQ2SEQ = {
    "d_model": SIZE,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 2 * SIZE,
    "decoder_ffn_dim": 2 * SIZE,
    "max_position_embeddings": 128,
    "decoder_start_token_id": EOS,
    "forced_eos_token_id": None,
    "scale_embedding": False,
}

_KINDS: dict[str, tuple[type[hf.PretrainedConfig], type[hf.PreTrainedModel], dict[str, Any]]] = {
    "m2m100": (hf.M2M100Config, hf.M2M100ForConditionalGeneration, _SEQ2SEQ),
    "marian": (hf.MarianConfig, hf.MarianMTModel, {**_SEQ2SEQ, "decoder_start_token_id": PAD}),
    "t5": (
        hf.T5Config,
        hf.T5ForConditionalGeneration,
        {"d_model": SIZE, "d_kv": 8, "d_ff": 2 * SIZE, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": PAD},
    ),
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, _DECODER),
    "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, _DECODER),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, _DECODER),
    "mistral": (hf.MistralConfig, hf.MistralForCausalLM, {**_DECODER, "sliding_window": 3}),
    "gemma3": (
        hf.Gemma3TextConfig,
        hf.Gemma3ForCausalLM,
        {**_DECODER, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
    ),
}
ENCODER_DECODER = ("m2m100", "marian", "t5")
DECODER_ONLY = ("llama", "qwen2", "qwen3", "mistral", "gemma3")


@functools.cache
def tiny_model(kind: str, vocabulary: int = 8, sharpness: float = 6.0, seed: int = 0) -> hf.PreTrainedModel:
    """A random model in eval mode, float32. `sharpness` scales its logits: more makes it more certain."""
    config_class, model_class, fields = _KINDS[kind]
    fields = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "tie_word_embeddings": False, **fields}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config_class(vocab_size=vocabulary, **fields)).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:  # T5 does not scale its attention scores, hence the smaller weights
                parameter.data.normal_(0, 0.15 if kind == "t5" else 0.3)
        model.get_output_embeddings().weight.data.normal_(0, sharpness / SIZE)
    model.generation_config.suppress_tokens = [PAD]  # M2M100 positions skip <pad>, so it must not be generated
    model.generation_config.max_length = None
    return model


_LINES = ["the cat sat on the mat", "a dog ran home", "we all see the red sun", "die katze sass hier", "ein hund lief"]
CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


@functools.cache
def tiny_tokenizer(padding_side: str = "right") -> hf.PreTrainedTokenizerFast:
    """A word-level tokenizer trained on five lines; adds </s> as seq2seq tokenizers do when it pads right."""
    words = sorted({word for line in _LINES for word in line.split()} | {"user", "assistant"})
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary = {token: number for number, token in enumerate(special + words)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(special)
    if padding_side == "right":
        core.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", EOS)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side=padding_side,
        chat_template=CHAT,
    )


def tiny_pair(kind: str, sharpness: float = 6.0) -> tuple[hf.PreTrainedModel, hf.PreTrainedTokenizerFast]:
    """A tiny model and a tokenizer that fit each other."""
    tokenizer = tiny_tokenizer("right" if kind in ENCODER_DECODER else "left")
    return tiny_model(kind, vocabulary=len(tokenizer), sharpness=sharpness), tokenizer
