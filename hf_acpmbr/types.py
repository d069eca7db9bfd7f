"""Types of what other libraries' objects are here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

    class GenerativeModel(PreTrainedModel):
        """A model of transformers with a `generate`, encoder-decoder or decoder-only."""

        generation_config: GenerationConfig
        generate: Callable[..., Any]  # whatever its custom_generate returns
        get_output_embeddings: Callable[[], torch.nn.Module | None]
        prepare_inputs_for_generation: Callable[..., Mapping[str, object]]


# What only some have (src_lang, get_lang_id, special tokens) comes from its `__getattr__`, which has no type.
Tokenizer: TypeAlias = "PreTrainedTokenizerBase"

# What JSON can hold.
JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
