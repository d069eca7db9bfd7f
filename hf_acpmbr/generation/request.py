"""From what `model.generate` hands over to what the sampler takes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..sampling import Request, source_key

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    from ..types import GenerativeModel, Tokenizer


def read_request(
    model: GenerativeModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList | None,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    inputs_tensor: torch.Tensor | None,
    model_kwargs: Mapping[str, object],
) -> Request:
    """The arguments of a custom_generate callable, without sampling warpers and with one row for each source."""
    import numpy as np
    import torch

    from ..sampling.rows import Rows, divided

    # What generate repeated each source by; a model's own num_beams counts too.
    copies = max(generation_config.num_beams or 1, generation_config.num_return_sequences or 1)
    ids, kwargs = input_ids, dict(model_kwargs)
    if copies > 1:
        with torch.no_grad():
            ids = input_ids[::copies]
            kwargs = divided(kwargs, Rows(np.arange(0, input_ids.shape[0], copies)), input_ids.shape[0])
    encoder_ids = inputs_tensor if model.config.is_encoder_decoder and _is_text(inputs_tensor) else None
    return Request(
        model=model,
        input_ids=ids,
        model_kwargs=kwargs,
        logits_processor=_without_warpers(logits_processor),
        stopping_criteria=stopping_criteria,
        generation_config=generation_config,
        keys=tuple(map(source_key, _contents(ids, encoder_ids, kwargs, model.config.is_encoder_decoder))),
        encoder_input_ids=encoder_ids,
    )


def with_stop_strings(request: Request, tokenizer: Tokenizer, strings: str | list[str] | None) -> Request:
    """The request, ended also by strings, as `generate` does it where it has a tokenizer."""
    if not strings:
        return request
    from transformers import StoppingCriteriaList, StopStringCriteria

    config = copy.deepcopy(request.generation_config)
    config.stop_strings = strings  # part of the signature
    criteria = StoppingCriteriaList([*request.stopping_criteria, StopStringCriteria(tokenizer, strings)])
    return dataclasses.replace(request, generation_config=config, stopping_criteria=criteria)


def source_texts(tokenizer: Tokenizer, request: Request, given: Sequence[str] | None, needed: bool) -> list[str | None]:
    """The text of every source for utilities that look at it: as given, or read back from the input ids."""
    size = len(request.keys)
    if given is not None:
        if isinstance(given, str) or len(given) != size:
            raise ValueError(f"sources must be a list of {size} strings, one for each row of the batch, got {given!r}")
        return list(given)
    if not needed:
        return [None] * size
    ids = request.encoder_input_ids
    if request.model.config.is_encoder_decoder and ids is None:
        raise ValueError("the utility needs the source text, and there are no input ids to read it from: pass sources=")
    return list(tokenizer.batch_decode(request.input_ids if ids is None else ids, skip_special_tokens=True))


def _is_text(tensor: torch.Tensor | None) -> bool:
    """Whether these are token ids, and not embeddings, sound, or the dummy that stands for encoder outputs."""
    return tensor is not None and tensor.dim() == 2 and not tensor.is_floating_point() and not bool((tensor < 0).any())


def _contents(
    ids: torch.Tensor, encoder_ids: torch.Tensor | None, kwargs: Mapping[str, object], encoder_decoder: bool
) -> list[list[int]]:
    """What tells the sources apart: their ids without padding; their place in the batch where there are no ids."""
    import torch

    read = encoder_ids if encoder_decoder else ids
    if read is None or not read.shape[1] or kwargs.get("inputs_embeds") is not None:
        return [[-1, position] for position in range(len(ids))]
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.shape != read.shape:
        return [row.tolist() for row in read]
    return [row[keep.bool()].tolist() for row, keep in zip(read, mask, strict=True)]


def _without_warpers(processors: LogitsProcessorList | None) -> LogitsProcessorList:
    from transformers.generation import logits_process as lp

    warpers = (
        lp.TemperatureLogitsWarper,
        lp.TopKLogitsWarper,
        lp.TopPLogitsWarper,
        lp.TopHLogitsWarper,
        lp.MinPLogitsWarper,
        lp.TypicalLogitsWarper,
        lp.EpsilonLogitsWarper,
        lp.EtaLogitsWarper,
    )
    return lp.LogitsProcessorList(item for item in processors or () if not isinstance(item, warpers))
