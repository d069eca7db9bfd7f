"""Everything that is private in transformers and used here.

`_prefill`, `_update_model_kwargs_for_generation`, `_expand_inputs_for_generation`, `_sample` and `_beam_search` of
GenerationMixin; checked with transformers 5.5 to 5.23.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Cache, GenerationMixin, LogitsProcessorList

from .base import Request
from .rows import Rows, divided, without_rows

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from ..types import Outputs

_CACHES = ("past_key_values", "cache_params")  # the second is what Mamba calls its state


def prefill(request: Request, kwargs: dict[str, object]) -> Outputs:
    """Run the model on the prompts."""
    model: Any = request.model
    outputs: Outputs = model._prefill(request.input_ids, request.generation_config, kwargs)
    return outputs


def grown_by_one(request: Request, kwargs: dict[str, object]) -> dict[str, object]:
    """Return masks and positions of the sources after one more token."""
    model: Any = request.model
    grown: dict[str, object] = model._update_model_kwargs_for_generation(
        {}, dict(kwargs), is_encoder_decoder=model.config.is_encoder_decoder
    )
    return grown


def renamed_only(
    request: Request, given: Mapping[str, object], prepared: Mapping[str, object]
) -> dict[str, str] | None:
    """Return the name in `given` of everything `prepared` from it but the last token; None if more was done to it.

    Preparing takes a tenth of the time that a small model's steps need beside their forward passes. An encoder-decoder
    model that has no method of its own, no arguments that grow and no static cache is handed what was given, renamed.
    """
    method = getattr(request.model.prepare_inputs_for_generation, "__func__", None)
    past = given.get("past_key_values")
    if (
        method is not GenerationMixin.prepare_inputs_for_generation
        or not isinstance(past, Cache)
        or past.is_compileable
    ):
        return None
    names = {id(value): name for name, value in given.items()}
    others = {name: value for name, value in prepared.items() if name != "decoder_input_ids"}
    if len(others) == len(prepared) or not all(id(value) in names for value in others.values()):
        return None
    return {name: name if given.get(name) is value else names[id(value)] for name, value in others.items()}


def fresh_cache(request: Request, name: str) -> object:
    """Copy a request's empty cache: it may be sampled more than once (chunks, candidates and references)."""
    cache = request.model_kwargs.get(name)
    # The stream of an offloaded cache belongs to the device and cannot be copied.
    stream = getattr(cache, "prefetch_stream", None)
    return copy.deepcopy(cache, {id(stream): stream})


def run_loop(
    method: str,
    request: Request,
    source: int,
    rows: int,
    config: GenerationConfig,
    processors: LogitsProcessorList,
    seed: int,
) -> torch.Tensor:
    """Run `rows` rows of one source through transformers' own loop, its random numbers confined to this call."""
    model: Any = request.model
    kwargs = {name: value for name, value in request.model_kwargs.items() if name not in _CACHES}
    if len(request.keys) == 1 and without_rows(kwargs, 1):  # several images in one prompt: the model knows how
        ids, kwargs = model._expand_inputs_for_generation(
            rows, model.config.is_encoder_decoder, request.input_ids, **kwargs
        )
    else:
        which = Rows(np.full(rows, source, dtype=np.int64))
        ids, kwargs = which.pick(request.input_ids).contiguous(), divided(kwargs, which, len(request.keys))
    kwargs |= {name: fresh_cache(request, name) for name in _CACHES if request.model_kwargs.get(name) is not None}
    device = request.input_ids.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        sequences: torch.Tensor = getattr(model, method)(
            ids,
            logits_processor=processors,
            stopping_criteria=request.stopping_criteria,
            generation_config=config,
            **kwargs,
        )
    return sequences
