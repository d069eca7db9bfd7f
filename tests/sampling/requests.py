"""How the tests get a Request: from `generate` itself, through the custom_generate hook."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from hf_acpmbr.sampling import Request, source_key

SOURCES = [[3, 4, 5, 6, 7], [4, 3, 7], [5, 5, 6, 3]]


def batch(model: PreTrainedModel, sources: list[list[int]]) -> dict[str, torch.Tensor]:
    """Padded inputs and mask: right for an encoder, left for a decoder-only model."""
    width = max(map(len, sources))
    right = model.config.is_encoder_decoder
    ids = [row + [0] * (width - len(row)) if right else [0] * (width - len(row)) + row for row in sources]
    pad = [width - len(row) for row in sources]
    mask = [[1] * (width - p) + [0] * p if right else [0] * p + [1] * (width - p) for p in pad]
    return {
        "input_ids": torch.tensor(ids, device=model.device),
        "attention_mask": torch.tensor(mask, device=model.device),
    }


def request(model: PreTrainedModel, sources: list[list[int]], **settings: Any) -> Request:
    """What `generate` prepares for these sources; settings are generate's own."""
    caught: list[Request] = []

    def catch(model, input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor, **kwargs):  # type: ignore[no-untyped-def]
        keys = tuple(source_key(source) for source in sources)
        encoder_ids = inputs_tensor if model.config.is_encoder_decoder else None
        caught.append(
            Request(model, input_ids, kwargs, logits_processor, stopping_criteria, generation_config, keys, encoder_ids)
        )
        return input_ids

    model.generate(**batch(model, sources), custom_generate=catch, **settings)
    return caught[0]
