"""Forward passes of `generate`, one row for each prefix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from transformers import Cache

from ..candidates import IntArray
from ._cache import PrefixCache
from ._transformers import fresh_cache, grown_by_one, prefill, renamed_only
from .base import Request, arguments_of


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
        """(S, V) logits after the prompts, and the cache that holds one row for each source."""
        request = self._request
        # A request may be sampled twice (candidates, then references), so its own cache stays as it was given.
        outputs = prefill(request, {**self._start, "past_key_values": fresh_cache(request, "past_key_values")})
        cache = outputs.get("past_key_values") if request.model_kwargs.get("use_cache", True) else None
        kept = cache if isinstance(cache, Cache) else None
        return outputs.logits[:, -1].to(torch.float32, copy=True), PrefixCache(
            kept, len(request.keys), request.input_ids.device
        )

    def next(self, ids: torch.Tensor, sources: IntArray, cache: PrefixCache) -> torch.Tensor:
        """(U, V) logits after the prefixes `ids` (U, P + t) of `sources` (U,)."""
        model = self._request.model
        past = cache.for_rows(sources)
        kwargs = self._arguments(ids.shape[1] - self._request.input_ids.shape[1], sources)
        inputs = self._inputs(ids, past, kwargs)
        return model(**inputs, return_dict=True).logits.select(1, -1).float()

    def _inputs(self, ids: torch.Tensor, past: Cache | None, kwargs: dict[str, object]) -> Mapping[str, object]:
        """What the model's forward takes, as its own method prepares it."""
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
        """Model arguments of the rows that belong to `sources` (U,), after so many new tokens."""
        if not self._grows and self._made is not None and np.array_equal(self._made[0], sources):
            return self._made[1]
        self._made = sources, arguments_of(self._at(tokens), sources, len(self._request.keys))
        return self._made[1]

    def _at(self, tokens: int) -> dict[str, object]:
        """Model arguments of the S sources after so many new tokens."""
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
