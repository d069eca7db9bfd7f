"""All calls of private methods of transformers' GenerationMixin, checked with transformers 5.5 to 5.23.

They are `_prefill`, `_update_model_kwargs_for_generation`, `_expand_inputs_for_generation`, `_sample`, `_beam_search`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import GenerationMixin, LogitsProcessorList

from .base import Request
from .rows import Rows, arguments_of, without_rows

if TYPE_CHECKING:
    from transformers import GenerationConfig

# What a model does otherwise than the others in preparing its steps.
_PREPARING = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prefill")
_CACHES = ("past_key_values", "cache_params")  # the second is what Mamba calls its state


def prepares_as_all(model: object) -> bool:
    """Return whether a model overrides nothing of the preparation of a step."""
    return all(getattr(type(model), name, None) is getattr(GenerationMixin, name) for name in _PREPARING)


def samples_as_all(model: object) -> bool:
    """Return whether a model draws by transformers' own loop, as models of text do."""
    return getattr(type(model), "_sample", None) is GenerationMixin._sample


def prefill(request: Request, kwargs: dict[str, object]) -> Any:
    """Run the model on the prompts."""
    model: Any = request.model
    return model._prefill(request.input_ids, request.generation_config, kwargs)


def grown_by_one(request: Request, kwargs: dict[str, object]) -> dict[str, object]:
    """Return masks and positions of the sources after one more token."""
    model: Any = request.model
    grown: dict[str, object] = model._update_model_kwargs_for_generation(
        {}, dict(kwargs), is_encoder_decoder=model.config.is_encoder_decoder
    )
    return grown


def fresh_cache(request: Request, name: str) -> object:
    """Copy a request's empty cache: chunks, or candidates and references, sample the request more than once."""
    cache = request.model_kwargs.get(name)
    # The stream of an offloaded cache belongs to the device and cannot be copied.
    stream = getattr(cache, "prefetch_stream", None)
    return copy.deepcopy(cache, {id(stream): stream})


def rows_together(request: Request) -> int | None:
    """Return how many rows per source can run together; None if any number can, and sources apart.

    Images of several prompts are one argument that only the model can divide and repeat, as transformers does with
    their encodings. Where it would repeat the images themselves, it would repeat each of one prompt in turn.
    """
    kwargs = {name: value for name, value in request.model_kwargs.items() if name not in _CACHES}
    shared = without_rows(kwargs, len(request.keys))
    if not shared:
        return None
    expands = type(request.model)._expand_inputs_for_generation  # type: ignore[attr-defined]
    encoded = shared == ["mm_encoder_outputs"] or expands is not GenerationMixin._expand_inputs_for_generation
    return sys.maxsize if encoded else 1


def _repeat_images(request: Request, kwargs: Mapping[str, object], rows: int) -> None:
    """Repeat the features of one source's images, in place, where transformers did not.

    It repeats `pooler_output` alone, and takes one of (tokens, width) for one image per token.
    """
    given: Any = request.model_kwargs.get("mm_encoder_outputs") or {}
    repeated: Any = kwargs.get("mm_encoder_outputs") or {}
    for kind, output in repeated.items():
        name = "last_hidden_state" if output.get("pooler_output") is None else "pooler_output"
        features = output[name]
        if isinstance(features, torch.Tensor) and features.shape == given[kind][name].shape:
            output[name] = torch.cat([features] * rows)


def run_loop(
    method: str,
    request: Request,
    source: int | None,
    rows: int,
    config: GenerationConfig,
    processors: LogitsProcessorList,
    seed: int,
) -> torch.Tensor:
    """Run `rows` rows of one source, or of each if `source` is None, through transformers' own loop.

    Its random numbers are confined to this call.
    """
    model: Any = request.model
    ids, count = request.input_ids, len(request.keys)
    kwargs = {name: value for name, value in request.model_kwargs.items() if name not in _CACHES}
    which = Rows(np.arange(count) if source is None else np.array([source]))
    which.one = None  # copies instead of views: transformers and some models write into encodings
    if source is not None and count > 1:
        if shared := without_rows(kwargs, count):
            raise ValueError(
                f"{', '.join(shared)} cannot be divided among {count} rows: call generate for one source at a time, "
                "with num_beams=1 and num_return_sequences=1"
            )
        ids, kwargs = which.pick(ids), arguments_of(kwargs, which, count)
    elif "encoder_outputs" in kwargs:
        kwargs["encoder_outputs"] = which.of(kwargs["encoder_outputs"])
    if "mm_encoder_outputs" in kwargs:
        kwargs["mm_encoder_outputs"] = copy.deepcopy(kwargs["mm_encoder_outputs"])
    ids, kwargs = model._expand_inputs_for_generation(rows, model.config.is_encoder_decoder, ids, **kwargs)
    if count == 1 < rows:
        _repeat_images(request, kwargs, rows)
    kwargs |= {name: fresh_cache(request, name) for name in _CACHES if request.model_kwargs.get(name) is not None}
    device = request.input_ids.device
    # mps has one generator, whose state torch takes without a device.
    own = device.type not in ("cpu", "mps") and hasattr(getattr(torch, device.type, None), "get_rng_state")
    with torch.random.fork_rng(devices=[device] if own else [], device_type=device.type if own else "cuda"):
        torch.manual_seed(seed)
        sequences: torch.Tensor = getattr(model, method)(
            ids.contiguous(),
            logits_processor=processors,
            stopping_criteria=request.stopping_criteria,
            generation_config=config,
            **kwargs,
        )
    return sequences
