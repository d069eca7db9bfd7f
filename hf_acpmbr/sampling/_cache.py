"""Key/value caches whose rows follow the prefixes: forked where prefixes split, shared where sources are."""

from __future__ import annotations

import copy
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

from ..candidates import IntArray
from .base import row_picker

# These replace their tensors when they grow, so a shallow copy is independent; static ones write in place.
_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer)
SUPPORTED_LAYERS = (*_REPLACING, StaticLayer, StaticSlidingWindowLayer)


def unsupported_layer(cache: object) -> str | None:
    """Name of the first kind of layer whose rows we cannot fork exactly; None if all can."""
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
        """Row k becomes a copy of row parents[k], in place; there may be more or fewer parents than rows."""
        if self._own is not None and not np.array_equal(parents, np.arange(self._rows)):
            self._own.reorder_cache(cast("torch.LongTensor", torch.as_tensor(parents, device=self._device)))
        self._rows = len(parents)
        return self

    def fork(self, parents: IntArray) -> PrefixCache:
        """As `select`, leaving this cache as it is."""
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
        """The cache to hand to the model for rows that belong to `sources` (U,), until the next call."""
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
