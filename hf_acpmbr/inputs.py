"""From what users and `model.generate` hand over to what the sampler takes."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, cast

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


@dataclass(frozen=True)
class Prompting:
    """How a source text becomes what the model reads.

    Args:
        prompt: with {source} in the place of the text.
        chat: put the prompt into the tokenizer's chat template as one turn of the user.
        too_long: what happens to sources beyond the model's limit: "cut" them, with a warning, or "refuse" them.
    """

    prompt: str = "{source}"
    chat: bool = False
    too_long: str = "cut"

    def __post_init__(self) -> None:
        if "{source}" not in self.prompt:
            raise ValueError(f"prompt must have {{source}} where the text goes, got {self.prompt!r}")
        if self.too_long not in ("cut", "refuse"):
            raise ValueError(f"too_long must be 'cut' or 'refuse', got {self.too_long!r}")

    def fill(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
        """The texts as the model reads them."""
        filled = [self.prompt.replace("{source}", text) for text in texts]
        if self.chat:
            turns = [[{"role": "user", "content": text}] for text in filled]
            filled = cast("list[str]", tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
        return filled


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    model: GenerativeModel,
    *,
    prompt: str = "{source}",
    chat: bool = False,
    too_long: str = "cut",
    max_new_tokens: int = 0,
) -> dict[str, torch.Tensor]:
    """A batch for `model`, on its device, padded on the right for an encoder and on the left for a decoder alone.

    Sources beyond the model's limit are cut, with a warning that counts them, or refused.

    Args:
        prompt, chat, too_long: see `Prompting`.
        max_new_tokens: room to leave for the continuation of a decoder-only model.
    """
    how = Prompting(prompt, chat, too_long)
    fitting = _fitted(tokenizer, texts, model, how, max_new_tokens)
    side = "right" if model.config.is_encoder_decoder else "left"
    batch = tokenizer(
        how.fill(tokenizer, fitting), return_tensors="pt", padding=True, padding_side=side, add_special_tokens=not chat
    )
    batch.pop("token_type_ids", None)
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


def length_limit(tokenizer: Tokenizer, model: GenerativeModel, max_new_tokens: int = 0) -> int | None:
    """How many tokens the model can read, by its own account and its tokenizer's; None where neither says."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    known = [int(limit) for limit in limits if limit]
    if model.config.is_encoder_decoder:
        known = known[:1] if getattr(config, "relative_attention_num_buckets", None) is None else []
    else:
        known = [limit - max_new_tokens for limit in known]
    if (tokens := getattr(tokenizer, "model_max_length", None)) and tokens < 10**6:
        known.append(int(tokens))
    return min(known) if known else None


def _fitted(
    tokenizer: Tokenizer, texts: Sequence[str], model: GenerativeModel, how: Prompting, max_new_tokens: int
) -> list[str]:
    """The texts, those that are too long cut at a token so that the filled prompt fits."""
    limit = length_limit(tokenizer, model, max_new_tokens)
    if limit is None:
        return list(texts)
    lengths = [
        len(ids)
        for ids in tokenizer(how.fill(tokenizer, texts), add_special_tokens=not how.chat, verbose=False)["input_ids"]
    ]
    long = [row for row, length in enumerate(lengths) if length > limit]
    if not long:
        return list(texts)
    if how.too_long == "refuse":
        row = long[0]
        raise ValueError(
            f"{len(long)} of {len(texts)} sources are longer than the model's {limit} tokens, the first is row {row} "
            f"with {lengths[row]}: shorten it, or cut sources with too_long='cut'"
        )
    warnings.warn(
        f"{len(long)} of {len(texts)} sources are longer than the model's {limit} tokens and are cut (row {long[0]} "
        f"had {lengths[long[0]]}): split them into sentences, or refuse them with too_long='refuse'",
        UserWarning,
        stacklevel=3,
    )
    fitting = list(texts)
    for row in long:
        ids = tokenizer(texts[row], add_special_tokens=False, verbose=False)["input_ids"]
        keep = len(ids) - (lengths[row] - limit)
        if keep < 1:
            raise ValueError(f"the prompt alone has more than the model's {limit} tokens: shorten the prompt")
        fitting[row] = tokenizer.batch_decode([ids[:keep]], skip_special_tokens=True)[0]
    return fitting


def language_token(tokenizer: Tokenizer, language: str) -> int | None:
    """The token that stands for a language, to be forced as the first one; None if the tokenizer has none."""
    if hasattr(tokenizer, "get_lang_id"):
        return int(tokenizer.get_lang_id(language))
    token = tokenizer.convert_tokens_to_ids(language)
    return token if isinstance(token, int) and token != tokenizer.unk_token_id else None


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
