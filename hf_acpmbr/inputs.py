"""From what `model.generate` hands over to what the sampler takes."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from .protocols import Sampler
from .sampling import Request, source_key

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer

    from .foreign import GenerativeModel, Tokenizer

logger = logging.getLogger(__name__)

# The sampling fields of a GenerationConfig: what `generate` fills in when nobody asked for anything, and our name.
_SAMPLING: dict[str, tuple[tuple[float | None, ...], str | None]] = {
    "temperature": ((None, 1.0), "temperature"),
    "top_k": ((None, 0, 50), "top_k"),
    "top_p": ((None, 1.0), "top_p"),
    "min_p": ((None, 0.0), "min_p"),
    "typical_p": ((None, 1.0), "typical_p"),
    "epsilon_cutoff": ((None, 0.0), "epsilon"),
    "eta_cutoff": ((None, 0.0), "eta"),
    "top_h": ((None,), None),
}
# What MBR cannot do beside its own way of decoding, and what to do instead.
_OTHER_DECODING = ("penalty_alpha", "dola_layers", "diversity_penalty", "force_words_ids", "constraints")
_RECORDS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@dataclass(frozen=True)
class Caller:
    """What the call of `generate` was given and does not pass on to a custom_generate callable.

    Args:
        options: the keywords of the call.
        streamer, assistant_model: as given, else None.
    """

    options: Mapping[str, object] = field(default_factory=dict)
    streamer: BaseStreamer | None = None
    assistant_model: object = None

    @classmethod
    def find(cls) -> Caller:
        """Read from the frame of the running `generate`; transformers hands over neither streamer nor assistant."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            values = frame.f_locals
            if frame.f_code.co_name == "generate" and "custom_generate" in values and "streamer" in values:
                return cls(dict(values.get("kwargs") or {}), values["streamer"], values.get("assistant_model"))
            frame = frame.f_back
        return cls()


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

    from .sampling.base import rows_of

    # What generate repeated each source by; a model's own num_beams counts too.
    copies = max(generation_config.num_beams or 1, generation_config.num_return_sequences or 1)
    with torch.no_grad():
        first = np.arange(0, input_ids.shape[0], copies)
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


def check_conflicts(config: GenerationConfig, own: GenerationConfig, sampler: Sampler, caller: Caller) -> None:
    """Settings of the caller that cannot hold raise, those that are overruled warn; the model's own do neither."""

    def given(name: str) -> object:
        """What this call asks for, beyond what the model says of itself."""
        value = getattr(config, name, None)
        return value if name in caller.options or value != getattr(own, name, None) else None

    several_beams = (config.num_beams or 1) > 1
    if several_beams and given("num_beams"):
        raise ValueError(
            f"num_beams={config.num_beams} conflicts with MBR, which draws its own candidates: leave it out; to choose "
            "among the beams of a beam search give ACPMBR(generation_config=GenerationConfig(num_beams=...))"
        )
    if several_beams:
        _own_beams(config.num_beams)
    if caller.assistant_model is not None or given("prompt_lookup_num_tokens") is not None:
        raise ValueError(
            "assistant_model and prompt_lookup_num_tokens speed up single samples and have no effect on MBR's "
            "sampling, which already runs the model once per distinct prefix: leave them out"
        )
    if other := [name for name in _OTHER_DECODING if given(name)]:
        raise ValueError(f"{', '.join(other)} asks for another way of decoding than MBR: leave it out")
    if records := [name for name in _RECORDS if given(name)]:
        raise ValueError(
            f"{', '.join(records)}=True cannot be honoured: MBR scores texts, not tokens. "
            "return_dict_in_generate=True gives an MBROutput with log-probabilities, utilities and matrices"
        )
    _warn_of_sampling(config, sampler, given)


def _warn_of_sampling(config: GenerationConfig, sampler: Sampler, given: Callable[[str], object]) -> None:
    truncation = getattr(sampler, "truncation", None)
    ignored = []
    for name, (unset, ours) in _SAMPLING.items():
        value, here = given(name), getattr(truncation, ours or "", None)
        if value not in unset and value != here:
            ignored.append(f"{name}={value} (here {here})")
    if ignored:
        warnings.warn(
            f"sampling settings given to generate are ignored: {', '.join(ignored)}; ACPMBR samples by its own, "
            "so set them there",
            UserWarning,
            stacklevel=4,
        )


@functools.cache  # once per process
def _own_beams(num_beams: int) -> None:
    logger.info("the model's own num_beams=%d is left aside: MBR draws its own candidates", num_beams)


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
