"""Forward passes of `generate` with one row per prefix, and key/value caches whose rows follow the prefixes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from ...candidates import IntArray
from ..base import Request, arguments_of, row_picker
from ..generation_mixin import fresh_cache, grown_by_one, prefill, renamed_only

# These replace their tensors when they grow, so a shallow copy is independent; static ones write in place.
_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer)
SUPPORTED_LAYERS = (*_REPLACING, StaticLayer, StaticSlidingWindowLayer)


def unsupported_layer(cache: object) -> str | None:
    """Name the first kind of layer whose rows cannot be forked exactly; None if all can."""
    parts = (
        [cache.self_attention_cache, cache.cross_attention_cache] if isinstance(cache, EncoderDecoderCache) else [cache]
    )
    for part in parts:
        if part is None:
            continue
        if not isinstance(part, Cache):
            return type(part).__name__
        if getattr(part, "offloading", False):
            return "an offloaded cache"
        for layer in part.layers:
            if type(layer) not in SUPPORTED_LAYERS:
                return type(layer).__name__
    return None


class PrefixCache:
    """Self-attention cache of U prefixes and, for encoder-decoder models, the cross-attention cache of S sources.

    The cross-attention keys and values exist once for each source. A pass over prefixes of one source sees them through
    an expanded view, which costs no memory; only a pass over several sources gathers them.
    """

    def __init__(self, cache: Cache | None, rows: int, device: torch.device) -> None:
        """`cache` holds one row for each source, after the first forward pass; None for models that keep none."""
        self._own, self._cross = cache, None
        self._shown = cache
        if isinstance(cache, EncoderDecoderCache):
            self._own, self._cross = cache.self_attention_cache, _CrossRows(cache.cross_attention_cache)
            self._shown = EncoderDecoderCache(self._own, self._cross.view)
        self._rows, self._device = rows, device

    def select(self, parents: IntArray) -> PrefixCache:
        """Make row k a copy of row parents[k], in place; there may be more or fewer parents than rows."""
        if self._own is not None and not np.array_equal(parents, np.arange(self._rows)):
            self._own.reorder_cache(cast("torch.LongTensor", torch.as_tensor(parents, device=self._device)))
        self._rows = len(parents)
        return self

    def fork(self, parents: IntArray) -> PrefixCache:
        """Do as `select` on a copy."""
        twin = copy.copy(self)
        if self._own is not None:
            twin._own = copy.copy(self._own)
            twin._own.layers = [
                copy.copy(layer) if type(layer) in _REPLACING else copy.deepcopy(layer) for layer in self._own.layers
            ]
            twin._shown = twin._own if self._cross is None else EncoderDecoderCache(twin._own, self._cross.view)
        return twin.select(parents)

    @property
    def shares_sources(self) -> bool:
        """Whether rows of one source are cheaper than rows of several."""
        return self._cross is not None

    def for_rows(self, sources: IntArray) -> Cache | None:
        """Return the cache for the model to use for rows that belong to `sources` (U,), until the next call."""
        if self._cross is not None:
            self._cross.show(sources)
        return self._shown


class _CrossRows:
    """The cross-attention cache of S sources as rows see it: one cache for all passes, since they run one by one."""

    def __init__(self, cross: Cache) -> None:
        layers = cast("list[DynamicLayer | StaticLayer]", cross.layers)
        self._states = [cast("tuple[torch.Tensor, torch.Tensor]", (layer.keys, layer.values)) for layer in layers]
        self._twins = [copy.copy(layer) for layer in layers]
        self.view = DynamicCache()
        self.view.layers.extend(self._twins)
        self._shown: IntArray | None = None

    def show(self, sources: IntArray) -> None:
        """Let `view` have the rows that belong to `sources` (U,)."""
        if self._shown is None or not np.array_equal(self._shown, sources):
            pick = row_picker(sources)
            for twin, (keys, values) in zip(self._twins, self._states, strict=True):
                twin.keys, twin.values = pick(keys), pick(values)
            self._shown = sources


class Forward:
    """Runs the model of a request on prefixes, through transformers' own preparation of the inputs.

    Masks, positions and encoder outputs of a prefix depend on its source and its length alone, so they are kept once
    for each source, grown by one token as in `generate`, and handed out by row.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._start = {name: value for name, value in request.model_kwargs.items() if name != "past_key_values"}
        self._grown: tuple[int, dict[str, object]] = (0, self._start)
        self._grows = True
        self._names: dict[str, str] | None = None  # of what `forward` takes in what it is prepared from
        self._made: tuple[IntArray, dict[str, object]] | None = None

    def first(self) -> tuple[torch.Tensor, PrefixCache]:
        """Return the (S, V) logits after the prompts, and the cache that holds one row per source."""
        request = self._request
        # A request may be sampled twice (candidates, then references), so its own cache stays as it was given.
        outputs = prefill(request, {**self._start, "past_key_values": fresh_cache(request, "past_key_values")})
        cache = outputs.get("past_key_values") if request.model_kwargs.get("use_cache", True) else None
        kept = cache if isinstance(cache, Cache) else None
        return outputs.logits[:, -1].to(torch.float32, copy=True), PrefixCache(
            kept, len(request.keys), request.input_ids.device
        )

    def next(self, ids: torch.Tensor, sources: IntArray, cache: PrefixCache) -> torch.Tensor:
        """Return the (U, V) logits after the prefixes `ids` (U, P + t) of `sources` (U,)."""
        model = self._request.model
        past = cache.for_rows(sources)
        kwargs = self._arguments(ids.shape[1] - self._request.input_ids.shape[1], sources)
        inputs = self._inputs(ids, past, kwargs)
        return model(**inputs, return_dict=True).logits.select(1, -1).float()

    def _inputs(self, ids: torch.Tensor, past: Cache | None, kwargs: dict[str, object]) -> Mapping[str, object]:
        """Prepare what the model's forward takes, by its own method."""
        if self._names is not None:
            given = {**kwargs, "past_key_values": past}
            last = ids[:, -1:].clone(memory_format=torch.contiguous_format)
            return {"decoder_input_ids": last} | {name: given[own] for name, own in self._names.items()}
        inputs = self._request.model.prepare_inputs_for_generation(
            ids,
            next_sequence_length=None if past is None else 1,
            past_key_values=past,
            is_first_iteration=False,
            **kwargs,
        )
        if past is not None and not self._grows:
            self._names = renamed_only(self._request, {**kwargs, "past_key_values": past}, inputs)
        return inputs

    def _arguments(self, tokens: int, sources: IntArray) -> dict[str, object]:
        """Return the model arguments of the rows that belong to `sources` (U,) after `tokens` new tokens."""
        if not self._grows and self._made is not None and np.array_equal(self._made[0], sources):
            return self._made[1]
        self._made = sources, arguments_of(self._at(tokens), sources, len(self._request.keys))
        return self._made[1]

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
