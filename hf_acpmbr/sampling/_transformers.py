"""Everything that is private in transformers and used here, and what was recorded while its loops ran.

`_prefill`, `_update_model_kwargs_for_generation`, `_expand_inputs_for_generation`, `_sample` and `_beam_search` of
GenerationMixin; checked with transformers 5.5 to 5.23.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from transformers import Cache, GenerationMixin, LogitsProcessorList

from ..candidates import FloatArray, TokenIds
from .base import Request, Samples, divided, eos_ids, rows_of, without_rows

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from ..foreign import Outputs


_CACHES = ("past_key_values", "cache_params")  # the second is what Mamba calls its state


@dataclass(frozen=True, eq=False)
class Chunk:
    """(k, P + T) sequences, (k, T) log-probabilities of their tokens where recorded, and the model rows spent."""

    sequences: torch.Tensor
    logprobs: FloatArray | None
    sampling_logprobs: FloatArray | None
    model_rows: int


class Tap:
    """A logits processor that changes nothing and notes the log-probability of each token that was taken next."""

    def __init__(self) -> None:
        self._pending: torch.Tensor | None = None
        self._taken: list[torch.Tensor] = []
        self.steps = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._take(input_ids[:, -1])
        self._pending = scores.float().log_softmax(dim=-1)
        self.steps += 1
        return scores

    def chosen(self, sequences: torch.Tensor) -> FloatArray:
        """(k, T) for the finished sequences."""
        self._take(sequences[:, -1])
        return torch.stack(self._taken, dim=1).double().cpu().numpy()

    def _take(self, tokens: torch.Tensor) -> None:
        if self._pending is not None:
            self._taken.append(self._pending.gather(1, tokens[:, None]).squeeze(1))
            self._pending = None


def prefill(request: Request, kwargs: dict[str, object]) -> Outputs:
    """The model's outputs after the prompts."""
    return _mixin(request)._prefill(request.input_ids, request.generation_config, kwargs)


def grown_by_one(request: Request, kwargs: dict[str, object]) -> dict[str, object]:
    """Masks and positions of the sources after one more token."""
    return _mixin(request)._update_model_kwargs_for_generation(
        {}, dict(kwargs), is_encoder_decoder=request.model.config.is_encoder_decoder
    )


def renamed_only(
    request: Request, given: Mapping[str, object], prepared: Mapping[str, object]
) -> dict[str, str] | None:
    """The name in `given` of everything `prepared` from it but the last token; None if that is not all there is to it.

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
    """A copy of a request's empty cache: it may be sampled more than once (chunks, candidates and references)."""
    cache = request.model_kwargs.get(name)
    # The stream of an offloaded cache belongs to the device and cannot be copied.
    stream = getattr(cache, "prefetch_stream", None)
    return copy.deepcopy(cache, {id(stream): stream})


def _repeated(request: Request, source: int, rows: int) -> tuple[torch.Tensor, dict[str, object]]:
    """Prompt and arguments of one source in `rows` rows, without caches."""
    kwargs = {name: value for name, value in request.model_kwargs.items() if name not in _CACHES}
    if len(request.keys) == 1 and without_rows(kwargs, 1):  # several images in one prompt: the model knows how
        return _mixin(request)._expand_inputs_for_generation(
            rows, request.model.config.is_encoder_decoder, request.input_ids, **kwargs
        )
    which = np.full(rows, source, dtype=np.int64)
    return rows_of(request.input_ids, which).contiguous(), divided(kwargs, which, len(request.keys))


def run_loop(
    method: str,
    request: Request,
    source: int,
    rows: int,
    config: GenerationConfig,
    processors: LogitsProcessorList,
    seed: int,
) -> torch.Tensor:
    """`rows` rows of one source through transformers' own loop, with its random numbers confined to this call."""
    ids, kwargs = _repeated(request, source, rows)
    kwargs |= {name: fresh_cache(request, name) for name in _CACHES if request.model_kwargs.get(name) is not None}
    device = request.input_ids.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        sequences: torch.Tensor = getattr(request.model, method)(
            ids,
            logits_processor=processors,
            stopping_criteria=request.stopping_criteria,
            generation_config=config,
            **kwargs,
        )
    return sequences


class _Mixin(Protocol):
    def _prefill(
        self, input_ids: torch.Tensor, generation_config: GenerationConfig, model_kwargs: dict[str, object]
    ) -> Outputs: ...

    def _update_model_kwargs_for_generation(
        self, outputs: Mapping[str, object], model_kwargs: dict[str, object], is_encoder_decoder: bool
    ) -> dict[str, object]: ...

    def _expand_inputs_for_generation(
        self, expand_size: int, is_encoder_decoder: bool, input_ids: torch.Tensor, **model_kwargs: object
    ) -> tuple[torch.Tensor, dict[str, object]]: ...


def _mixin(request: Request) -> _Mixin:
    return cast("_Mixin", request.model)


def collect(chunks: list[Chunk], request: Request) -> Samples:
    counts: dict[TokenIds, int] = {}
    totals: list[tuple[float, float]] = []
    eos, prompt = eos_ids(request.generation_config), request.input_ids.shape[1]
    recorded = chunks[0].logprobs is not None
    for chunk in chunks:
        lengths = _lengths(chunk.sequences, prompt, request)
        for row, tokens in enumerate(chunk.sequences[:, prompt:].tolist()):
            ids = tuple(tokens[: lengths[row]])
            if ids not in counts and chunk.logprobs is not None and chunk.sampling_logprobs is not None:
                both = chunk.logprobs[row], chunk.sampling_logprobs[row]
                totals.append((float(both[0][: len(ids)].sum()), float(both[1][: len(ids)].sum())))
            counts[ids] = counts.get(ids, 0) + 1
    return Samples(
        token_ids=tuple(counts),
        counts=np.fromiter(counts.values(), dtype=np.int64),
        logprobs=np.array([total[0] for total in totals]) if recorded else None,
        sampling_logprobs=np.array([total[1] for total in totals]) if recorded else None,
        finished=np.array([ids[-1] in eos for ids in counts], dtype=np.bool_),
        model_rows=sum(chunk.model_rows for chunk in chunks),
    )


def _lengths(sequences: torch.Tensor, prompt: int, request: Request) -> list[int]:
    """New tokens of each row, up to the first at which a stopping criterion holds; what follows is padding."""
    lengths = torch.full((len(sequences),), sequences.shape[1] - prompt, device=sequences.device)
    for new in range(sequences.shape[1] - prompt, 0, -1):
        lengths[request.stopping_criteria(sequences[:, : prompt + new], None)] = new
    return [int(length) for length in lengths]
