"""Forward passes of `generate` with one row per prefix, and key/value caches whose rows follow the prefixes."""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import torch
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer

from ..base import Request
from ..generation_mixin import fresh_cache, grown_by_one, prefill, prepares_as_all
from ..rows import Rows, arguments_of
from .shared_prompt import SharedPrompt, SlidingSharedPrompt, share_prompts

# These replace their tensors when they grow, so a shallow copy is independent; static ones write in place.
_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer, SharedPrompt, SlidingSharedPrompt)
SUPPORTED_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
# The second is the decoder's beside the encoder's.
_MASKS = ("attention_mask", "decoder_attention_mask")


class PrefixCache:
    """The self-attention cache of U prefixes."""

    def __init__(self, cache: Cache | None, rows: int) -> None:
        """`cache` holds one row per source, after the first forward pass; None for models that keep none."""
        self.whole = cache  # what the model is handed
        self._own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        self._rows = rows

    def follow(self, parents: Rows, sources: Rows, fork: bool = False) -> PrefixCache:
        """Make row k a copy of row parents[k], in place or in a fork; parents may be more or fewer than rows.

        `sources` are those of the new rows.
        """
        twin = copy.copy(self) if fork else self
        if self._own is None:
            return twin
        if fork:
            twin.whole = twin._own = copy.copy(self._own)
            twin._own.layers = [
                copy.copy(layer) if type(layer) in _REPLACING else copy.deepcopy(layer) for layer in self._own.layers
            ]
            if isinstance(self.whole, EncoderDecoderCache):
                twin.whole = EncoderDecoderCache(twin._own, self.whole.cross_attention_cache)
        own = cast("Cache", twin._own)
        if not np.array_equal(parents.numbers, np.arange(self._rows)):
            own.reorder_cache(cast("torch.LongTensor", parents.index))
        for layer in own.layers:
            if isinstance(layer, SharedPrompt):
                layer.sources = sources
        twin._rows = len(parents)
        return twin


class Forward:
    """Runs the model of a request on prefixes, through transformers' own preparation of the inputs.

    Masks, positions and encoder outputs of a prefix depend on its source and its length alone, so they are kept once
    per source, grown by one token as in `generate`, and handed out by row. So are the cross-attention keys and values:
    a pass over prefixes of one source sees them through an expanded view, which costs no memory; only a pass over
    several sources gathers them.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._start = {name: value for name, value in request.model_kwargs.items() if name != "past_key_values"}
        self._grown: tuple[int, dict[str, object]] = (0, self._start)
        self._grows = True
        self._rows = Rows(np.arange(0, 1))
        self._arguments: dict[str, object] | None = None  # of these rows
        # Keys and values of the sources; if there are any, rows of one source are cheaper than rows of several.
        self.cross: list[tuple[Any, torch.Tensor, torch.Tensor]] = []

    def first(self) -> tuple[torch.Tensor, PrefixCache]:
        """Return the (S, V) logits after the prompts, and the cache that holds one row per source."""
        request = self._request
        # A request may be sampled twice (candidates, then references), so its own cache stays as it was given.
        outputs = prefill(request, {**self._start, "past_key_values": fresh_cache(request, "past_key_values")})
        cache = outputs.get("past_key_values") if request.model_kwargs.get("use_cache", True) else None
        given = request.model_kwargs.get("past_key_values")
        if given is not None and outputs.get("past_key_values") is None and prepares_as_all(request.model):
            raise ValueError(
                f"{type(request.model).__name__} keeps nothing in the cache that generate gives it, and generate would "
                "continue from the last token alone: set is_decoder=True in its (decoder's) configuration if it was "
                "trained to continue texts, or pass use_cache=False"
            )
        if given is not None and cache is not None and type(cache) is not type(given):
            raise ValueError(
                f"the model replaced its {type(given).__name__} by a {type(cache).__name__}, which prefixes cannot "
                "share: draw with sampler='chunked'"
            )
        if isinstance(cache, EncoderDecoderCache):
            layers: list[Any] = cache.cross_attention_cache.layers
            self.cross = [(layer, layer.keys, layer.values) for layer in layers]
        elif isinstance(cache, Cache):
            config: Any = request.model.config.get_text_config(decoder=True)
            share_prompts(cache, config._attn_implementation)
        self._start = _without_full_masks(self._start)
        self._grown = (0, self._start)
        kept = PrefixCache(cache if isinstance(cache, Cache) else None, len(request.keys))
        return outputs.logits[:, -1].to(torch.float32, copy=True), kept

    def next(self, ids: torch.Tensor, sources: Rows, past: Cache | None) -> torch.Tensor:
        """Return the (U, V) logits after the prefixes `ids` (U, P + t) of `sources`."""
        model, count = self._request.model, len(self._request.keys)
        if self._arguments is None or not np.array_equal(self._rows.numbers, sources.numbers):
            self._rows, self._arguments = sources, None
            for layer, keys, values in self.cross:
                layer.keys, layer.values = sources.pick(keys), sources.pick(values)
        if self._arguments is None or self._grows:
            whole = self._at(ids.shape[1] - self._request.input_ids.shape[1])
            self._arguments = arguments_of(whole, sources, count)
        inputs = model.prepare_inputs_for_generation(
            ids,
            next_sequence_length=None if past is None else 1,
            past_key_values=past,
            is_first_iteration=False,
            **self._arguments,
        )
        logits: torch.Tensor = model(**inputs, return_dict=True).logits
        return logits.select(1, -1).float()

    def _at(self, tokens: int) -> dict[str, object]:
        """Return the model arguments of the S sources after `tokens` new tokens."""
        if not self._grows:
            return self._start
        length, kwargs = self._grown if self._grown[0] <= tokens else (0, self._start)
        for _ in range(tokens - length):
            kwargs = grown_by_one(self._request, kwargs)
        self._grown = (tokens, kwargs)
        # Most encoder-decoder models have nothing that grows.
        same = kwargs.keys() == self._start.keys()
        self._grows = not same or any(kwargs[name] is not value for name, value in self._start.items())
        return kwargs


def _without_full_masks(kwargs: dict[str, object]) -> dict[str, object]:
    """Leave out masks that hide nothing, with one read: transformers would read each of them at every step."""
    masks = {name: mask for name in _MASKS if isinstance(mask := kwargs.get(name), torch.Tensor) and mask.dim() == 2}
    if not masks:
        return kwargs
    full = torch.stack([mask.bool().all() for mask in masks.values()]).tolist()
    left_out = {name for name, hides_nothing in zip(masks, full, strict=True) if hides_nothing}
    return {name: value for name, value in kwargs.items() if name not in left_out}
