"""Whether prefix sharing is exact for a model, found by trying: its first steps against transformers' own loop.

What a model keeps between steps besides a key/value cache (states, features of images, positions) is known to
transformers alone. So a model that does more than GenerationMixin is tried once: prefixes that fork, change places and
grow further are continued with sharing and without, and their next tokens must have the same probabilities.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StaticCache,
    StoppingCriteriaList,
)

from .base import Request
from .generation_mixin import prepares_as_all, run_loop
from .prefix_sharing.forward import SUPPORTED_LAYERS, Forward, PrefixCache
from .processors import for_rows, row_keyed
from .rows import Rows

# A model that prepares its steps as all do, is given no more than these and keeps no other cache is exact as it is.
_ARGUMENTS = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "encoder_outputs"}
_CACHES = (DynamicCache, StaticCache, EncoderDecoderCache, type(None))
# By how much two next-token distributions (total variation distance) may differ by rounding alone.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-5}
_ROUNDING_OF_HALVES = 0.05
_LEAVES = 3  # prefixes of a source that nothing continues
_STEPS = 3  # a cache is reordered, forked, and grown after that

# What a family keeps between steps that prefixes cannot share.
_STATES = {
    "blt": "a cache that grows with patches of bytes",
    "moonshine_streaming": "encoder outputs that every pass changes in place",
}

_FOUND: dict[object, str | None] = {}  # per kind of request; a process tries once


def obstacle(request: Request) -> str | None:
    """Say why prefix sharing cannot serve this request exactly; None if it can."""
    if keyed := row_keyed(request.logits_processor):
        return f"processors that depend on the batch row: {', '.join(keyed)}"
    if request.model.config.model_type in _STATES:
        return _STATES[request.model.config.model_type]
    given = {name: value for name, value in request.model_kwargs.items() if value is not None}
    if "cache_params" in given:
        return "a recurrent state instead of a key/value cache"
    cache, positions = given.get("past_key_values"), given.get("position_ids")
    own: tuple[object, ...] = (cache,)
    if isinstance(cache, EncoderDecoderCache):
        own = cache.self_attention_cache, cache.cross_attention_cache
    if any(getattr(part, "offloading", False) for part in own):
        return "an offloaded cache, whose rows cannot be forked"
    layers = {type(layer) for part in own for layer in getattr(part, "layers", ())}
    caches = {type(part) for part in (cache, *own)}
    if cache is None and given.get("use_cache", True):
        caches.add(object)  # which one the model makes for itself is not known yet
    if (
        prepares_as_all(request.model)
        and given.keys() <= _ARGUMENTS
        and caches <= set(_CACHES)
        and layers <= set(SUPPORTED_LAYERS)
        and not (isinstance(positions, torch.Tensor) and positions.dim() > 2)
    ):
        return None
    steps = min(_STEPS, int(request.generation_config.max_length or 0) - request.input_ids.shape[1] - 1)
    kind = (type(request.model), frozenset(given), frozenset(caches | layers), len(request.keys) > 1, steps)
    if kind not in _FOUND:
        _FOUND[kind] = _difference(request, steps)
    return _FOUND[kind]


@torch.no_grad()
def _difference(request: Request, steps: int) -> str | None:
    """Run the first steps both ways and say what differs; None if nothing does."""
    name = type(request.model).__name__
    try:
        shared, paths = _shared(request, steps)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model does not take: transformers' own loop may
        return f"{name}, which cannot be run on shared prefixes ({type(error).__name__}: {error})"
    allowed = _ROUNDING.get(next(iter(request.model.named_parameters()))[1].dtype, _ROUNDING_OF_HALVES)
    for number in range(_LEAVES):
        for step, own in enumerate(_unshared(request, [own_paths[number] for own_paths in paths])):
            for source, own_paths in enumerate(paths):
                seen = shared.get((source, own_paths[number][:step]))
                if seen is None:
                    continue
                distance = 0.5 * float((seen.softmax(-1) - own[source].softmax(-1)).abs().sum())
                if not distance <= allowed:
                    return f"{name}, whose next tokens differ on shared prefixes (by {distance:.2g} of the probability)"
    return None


_Path: TypeAlias = tuple[int, ...]


def _shared(request: Request, steps: int) -> tuple[dict[tuple[int, _Path], torch.Tensor], list[list[_Path]]]:
    """Return the logits after prefixes of all sources, and three continuations per source that they lie on."""
    prompts, count, forward = request.input_ids, len(request.keys), Forward(request)
    seen: dict[tuple[int, _Path], torch.Tensor] = {}

    def note(rows: list[tuple[int, _Path]], logits: torch.Tensor) -> None:
        seen.update(zip(rows, logits.cpu(), strict=True))

    def advance(cache: PrefixCache, parents: list[int], rows: list[tuple[int, _Path]], fork: bool) -> PrefixCache:
        parent_rows, sources = (
            Rows(np.array(numbers), torch.as_tensor(numbers, device=prompts.device))
            for numbers in (parents, [source for source, _ in rows])
        )
        followed = cache.follow(parent_rows, sources, fork)
        tokens = torch.tensor([path for _, path in rows], device=prompts.device)
        note(rows, forward.next(torch.cat([sources.pick(prompts), tokens], dim=1), sources, followed.whole))
        return followed

    def best(source: int, path: _Path, rank: int) -> _Path:
        """Continue a path by one of its most probable tokens."""
        logits = seen[source, path][None].to(prompts.device)
        ids = torch.cat([prompts[source : source + 1], torch.tensor([path], dtype=prompts.dtype).to(prompts)], dim=1)
        for item in request.logits_processor:
            logits = for_rows(item, Rows(np.array([source])), count)(ids, logits.clone())
        allowed = logits[0].clone()
        allowed[list(request.eos_ids)] = -torch.inf
        tokens = allowed.topk(2).indices.tolist()
        return (*path, tokens[rank if bool(allowed[tokens[rank]] > -torch.inf) else 0])

    everyone = range(count)
    logits, cache = forward.first()
    note([(source, ()) for source in everyone], logits)
    if steps >= 1:
        pairs = [(source, best(source, (), rank)) for source in everyone for rank in (0, 1)]
        cache = advance(cache, [source for source, _ in pairs], pairs, fork=False)
    if steps >= 2:
        # The second of every pair first: rows change places.
        forked = [(source, best(source, pairs[2 * source + rank][1], 0)) for source in everyone for rank in (1, 0)]
        other = advance(cache, [2 * source + rank for source in everyone for rank in (1, 0)], forked, fork=True)
        rest = [(source, best(source, pairs[2 * source][1], 1)) for source in everyone]
        advance(cache, [2 * source for source in everyone], rest, fork=False)
    if steps >= 3:
        last = [(source, best(source, forked[2 * source][1], 1)) for source in everyone]
        advance(other, [2 * source for source in everyone], last, fork=False)
    paths = []
    for source in everyone:
        own = [path for at, path in seen if at == source]
        leaves = [path for path in own if not any(path == longer[: len(path)] != longer for longer in own)]
        # All of one length, any token will do after what is compared; all sources have as many.
        leaves = [path + path[-1:] * (steps - len(path)) for path in leaves]
        paths.append([*leaves, *leaves[-1:] * (_LEAVES - len(leaves))])
    return seen, paths


def _unshared(request: Request, paths: list[_Path]) -> list[torch.Tensor]:
    """Return the (S, V) logits of each step of transformers' own loop along one path per source."""
    follow = _Follow(torch.tensor(paths, device=request.input_ids.device))
    length = request.input_ids.shape[1] + len(paths[0]) + 1
    alone = replace(request, stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(length)]))
    run_loop("_sample", alone, None, 1, request.generation_config, LogitsProcessorList([follow]), seed=0)
    return follow.logits


class _Follow(LogitsProcessor):
    """Notes the logits of each step and allows the next token of each row's path alone."""

    def __init__(self, paths: torch.Tensor) -> None:
        self.paths = paths
        self.logits: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = len(self.logits)
        self.logits.append(scores.float().cpu())
        forced = torch.full_like(scores, -torch.inf)
        token = self.paths[:, min(step, self.paths.shape[1] - 1)] if self.paths.shape[1] else scores.argmax(-1)
        return forced.scatter(1, token[:, None], 0.0)
