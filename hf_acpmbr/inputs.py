"""From what users and `model.generate` hand over to what the sampler takes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .sampling import Request, Truncation, source_key

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig

# What `generate` fills in when nobody asked for anything.
_UNSET = {"temperature": (None, 1.0), "top_k": (None, 0, 50), "top_p": (None, 1.0), "epsilon_cutoff": (None, 0.0)}


def read_request(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    inputs_tensor: torch.Tensor | None,
    model_kwargs: Mapping[str, Any],
    truncation: Truncation,
) -> Request:
    """The arguments of a custom_generate callable, without sampling warpers and with one row for each source."""
    import numpy as np
    import torch

    from .sampling.base import rows_of

    check_conflicts(generation_config, truncation)
    copies = generation_config.num_return_sequences or 1
    with torch.no_grad():
        first = np.arange(0, input_ids.shape[0], copies)  # generate repeats each source num_return_sequences times
        ids = rows_of(input_ids, first)
        cache = model_kwargs.get("past_key_values")
        kwargs = rows_of({name: value for name, value in model_kwargs.items() if name != "past_key_values"}, first)
    encoder_ids = inputs_tensor if model.config.is_encoder_decoder and _is_text(inputs_tensor) else None
    return Request(
        model=model,
        input_ids=ids,
        model_kwargs=kwargs if cache is None else {**kwargs, "past_key_values": cache},
        logits_processor=_without_warpers(logits_processor),
        stopping_criteria=stopping_criteria,
        generation_config=generation_config,
        keys=tuple(map(source_key, _contents(ids, encoder_ids, kwargs, model.config.is_encoder_decoder))),
        encoder_input_ids=encoder_ids,
    )


def check_conflicts(config: GenerationConfig, truncation: Truncation) -> None:
    """Settings of the caller that cannot hold raise; those that are overruled warn."""
    if (config.num_beams or 1) > 1:
        raise ValueError(
            f"num_beams={config.num_beams} conflicts with MBR, which draws its own candidates: leave it at 1; to "
            "choose among the beams of a beam search give ACPMBR(generation_config=GenerationConfig(num_beams=...))"
        )
    ours = {
        "temperature": truncation.temperature,
        "top_k": truncation.top_k,
        "top_p": truncation.top_p,
        "epsilon_cutoff": truncation.epsilon,
    }
    ignored = [
        f"{name}={getattr(config, name)} (here {value})"
        for name, value in ours.items()
        if getattr(config, name, None) not in (*_UNSET[name], value)
    ]
    if ignored:
        warnings.warn(
            f"sampling settings given to generate are ignored: {', '.join(ignored)}; ACPMBR samples by its own, "
            "so set them there",
            UserWarning,
            stacklevel=4,
        )


def source_texts(tokenizer: Any, request: Request, given: Sequence[str] | None, needed: bool) -> list[str | None]:
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


def encode(
    tokenizer: Any, texts: Sequence[str], model: Any, *, prompt: str = "{source}", chat: bool = False
) -> dict[str, torch.Tensor]:
    """A batch for `model`, on its device, padded on the right for an encoder and on the left for a decoder alone.

    Args:
        prompt: what the model reads, with {source} in the place of the text.
        chat: put the prompt into the tokenizer's chat template as one turn of the user.
    """
    if "{source}" not in prompt:
        raise ValueError(f"prompt must have {{source}} where the text goes, got {prompt!r}")
    filled = [prompt.replace("{source}", text) for text in texts]
    if chat:
        turns = [[{"role": "user", "content": text}] for text in filled]
        filled = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    side = "right" if model.config.is_encoder_decoder else "left"
    batch = tokenizer(filled, return_tensors="pt", padding=True, padding_side=side, add_special_tokens=not chat)
    batch.pop("token_type_ids", None)
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


def language_token(tokenizer: Any, language: str) -> int | None:
    """The token that stands for a language, to be forced as the first one; None if the tokenizer has none."""
    if hasattr(tokenizer, "get_lang_id"):
        return int(tokenizer.get_lang_id(language))
    token = tokenizer.convert_tokens_to_ids(language)
    return None if token is None or token == tokenizer.unk_token_id else int(token)


def _is_text(tensor: torch.Tensor | None) -> bool:
    """Whether these are token ids, and not embeddings, sound, or the dummy that stands for encoder outputs."""
    return tensor is not None and tensor.dim() == 2 and not tensor.is_floating_point() and not bool((tensor < 0).any())


def _contents(
    ids: torch.Tensor, encoder_ids: torch.Tensor | None, kwargs: Mapping[str, Any], encoder_decoder: bool
) -> list[list[int]]:
    """What tells the sources apart: their ids without padding; their place in the batch where there are no ids."""
    read = encoder_ids if encoder_decoder else ids
    if read is None or not read.shape[1] or kwargs.get("inputs_embeds") is not None:
        return [[-1, position] for position in range(len(ids))]
    mask = kwargs.get("attention_mask")
    if mask is None or mask.shape != read.shape:
        return [row.tolist() for row in read]
    return [row[keep.bool()].tolist() for row, keep in zip(read, mask, strict=True)]


def _without_warpers(processors: Any) -> Any:
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
