"""From what `model.generate` hands over to what the sampler takes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..sampling import Request, source_key

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    from ..types import GenerativeModel, Tokenizer


def read_request(
    model: GenerativeModel,
    tokenizer: Tokenizer,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList | None,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    inputs_tensor: torch.Tensor | None,
    stop_strings: str | list[str] | None,
    model_kwargs: Mapping[str, object],
) -> Request:
    """Read the arguments of a custom_generate callable, one row per source, without sampling warpers.

    `stop_strings` end a sequence as in a `generate` that has a tokenizer.
    """
    from transformers import StoppingCriteriaList, StopStringCriteria
    from transformers.generation import logits_process as lp

    if once := [name for name, value in model_kwargs.items() if isinstance(value, Iterator)]:
        raise ValueError(f"{', '.join(once)} can be read once, and MBR runs the model more often: give it as a tensor")
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
    if stop_strings:
        generation_config = copy.deepcopy(generation_config)
        generation_config.stop_strings = stop_strings  # part of the signature
        stopping_criteria = StoppingCriteriaList([*stopping_criteria, StopStringCriteria(tokenizer, stop_strings)])
    encoder_ids, contents = _contents(input_ids, inputs_tensor, model_kwargs, model.config.is_encoder_decoder)
    return Request(
        model=model,
        input_ids=input_ids,
        model_kwargs=model_kwargs,
        logits_processor=lp.LogitsProcessorList(x for x in logits_processor or () if not isinstance(x, warpers)),
        stopping_criteria=stopping_criteria,
        generation_config=generation_config,
        keys=tuple(map(source_key, contents)),
        encoder_input_ids=encoder_ids,
    )


def _contents(
    ids: torch.Tensor, inputs: torch.Tensor | None, kwargs: Mapping[str, object], encoder_decoder: bool
) -> tuple[torch.Tensor | None, list[list[int]]]:
    """Return (the ids that were given as sources, if any; what tells the sources apart).

    That is their ids without padding, or their place in the batch if there are no ids: `inputs` may be embeddings,
    sound, or the dummy (-100) that stands for encoder outputs.
    """
    import torch

    encoder_ids = None
    read = None if encoder_decoder else ids.cpu()
    if inputs is not None and inputs.dim() == 2 and not inputs.is_floating_point() and not bool((inputs < 0).any()):
        encoder_ids = inputs
        read = inputs.cpu()
    if read is None or not read.shape[1] or kwargs.get("inputs_embeds") is not None:
        return encoder_ids, [[-1, position] for position in range(len(ids))]
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.shape != read.shape:
        return encoder_ids, read.tolist()
    return encoder_ids, [row[keep].tolist() for row, keep in zip(read, mask.cpu().bool(), strict=True)]


def source_texts(tokenizer: Tokenizer, request: Request, given: Sequence[str] | None, needed: bool) -> list[str | None]:
    """Return the text of every source for utilities that look at it: as given, or read back from the input ids."""
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
