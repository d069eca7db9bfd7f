"""Logits processors: which look at the batch row, and which need no pass of their own over the logits."""

from __future__ import annotations

import copy
from typing import cast

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as lp

from ..candidates import IntArray
from .base import Request, rows_of


def for_source(request: Request, source: int, rows: int) -> LogitsProcessorList:
    """Bind the request's processors to a batch whose `rows` rows all belong to one source."""
    which, count = np.full(rows, source), len(request.keys)
    return LogitsProcessorList(
        _rebound(item, request, source, rows) if type(item) in _REBOUND else for_rows(copy.copy(item), which, count)
        for item in request.logits_processor
    )


def for_rows(item: lp.LogitsProcessor, sources: IntArray, count: int) -> lp.LogitsProcessor:
    """Return the processor for rows of `sources` (U,) if it holds a value per source; else itself.

    From transformers 5.23 on, the repetition penalty knows the padding of each row's prompt.
    """
    ignored = _values_per_source(item)
    if ignored is None:
        return item
    twin = copy.copy(item)
    repeated = len(ignored) // count  # generate may have repeated each source
    setattr(twin, _PER_SOURCE, rows_of(ignored, sources * repeated))
    return twin


def holds_value_per_source(item: object) -> bool:
    return _values_per_source(item) is not None


def _values_per_source(item: object) -> torch.Tensor | None:
    values = getattr(item, _PER_SOURCE) if type(item) is lp.RepetitionPenaltyLogitsProcessor else None
    return values if isinstance(values, torch.Tensor) else None


def row_keyed(processors: LogitsProcessorList) -> list[str]:
    """Name the processors whose effect on a prefix depends on its row or on what rows were seen before."""
    return [type(item).__name__ for item in processors if isinstance(item, (*_REBOUND, *_STATEFUL))]


def without_normalisation(processors: LogitsProcessorList) -> LogitsProcessorList:
    """Leave out a log-softmax at the end, for uses that depend on differences of scores alone."""
    items = list(processors)
    while items and type(items[-1]) is lp.LogitNormalization:
        items.pop()
    return LogitsProcessorList(items)


def split_bans(processors: LogitsProcessorList) -> tuple[list[int], LogitsProcessorList]:
    """Return (tokens that are banned at every step before anything else, the processors left to run).

    transformers' processors for these bans make a copy of all logits or more, where a few columns would do.
    """
    banned: set[int] = set()
    left = list(processors)
    while left and (tokens := _always_banned(left[0])) is not None:
        banned |= tokens
        left.pop(0)
    if any(_may_allow(item, banned) for item in left):
        return [], processors
    return sorted(banned), LogitsProcessorList(left)


def writes_into_scores(item: object) -> bool:
    """Whether a processor may change the tensor that it is given; transformers' own do not."""
    return type(item).__module__ != lp.__name__


def _always_banned(item: object) -> set[int] | None:
    """Return the tokens that this processor bans at every step; None if it does anything else."""
    if type(item) is lp.SuppressTokensLogitsProcessor:
        return {int(token) for token in item.suppress_tokens}
    if type(item) is lp.NoBadWordsLogitsProcessor and all(len(word) == 1 for word in item.sequence_bias):
        return {int(word[0]) for word in item.sequence_bias}
    return None


def _may_allow(item: object, banned: set[int]) -> bool:
    """Whether a processor may give a banned token a score again."""
    if type(item) is lp.ForcedBOSTokenLogitsProcessor:
        return item.bos_token_id in banned
    if type(item) is lp.ForcedEOSTokenLogitsProcessor:
        return not banned.isdisjoint(item.eos_token_id.tolist())
    return writes_into_scores(item)


def _rebound(item: object, request: Request, source: int, rows: int) -> lp.LogitsProcessor:
    """Make one of `_REBOUND` anew for rows of one source."""
    if isinstance(item, lp.PrefixConstrainedLogitsProcessor):
        allowed = item._prefix_allowed_tokens_fn
        return lp.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(source, ids), num_beams=1)
    if isinstance(item, lp.UnbatchedClassifierFreeGuidanceLogitsProcessor):
        context = item.unconditional_context
        ids, mask = (
            cast("torch.LongTensor", value[source : source + 1].expand(rows, -1))
            if isinstance(value, torch.Tensor)
            else None
            for value in (context["input_ids"], context["attention_mask"])
        )
        return lp.UnbatchedClassifierFreeGuidanceLogitsProcessor(
            item.guidance_scale, item.model, ids, mask, bool(context["use_cache"])
        )
    if request.encoder_input_ids is None:
        raise ValueError(
            "encoder_no_repeat_ngram_size and encoder_repetition_penalty need the source ids: pass input_ids"
        )
    own = cast("torch.LongTensor", request.encoder_input_ids[source : source + 1])
    if isinstance(item, lp.EncoderNoRepeatNGramLogitsProcessor):
        return lp.EncoderNoRepeatNGramLogitsProcessor(item.ngram_size, own)
    if isinstance(item, lp.EncoderRepetitionPenaltyLogitsProcessor):
        return lp.EncoderRepetitionPenaltyLogitsProcessor(1 / item.penalty, own)
    raise TypeError(f"{type(item).__name__} cannot be bound to one source")


_REBOUND = (
    lp.EncoderNoRepeatNGramLogitsProcessor,
    lp.EncoderRepetitionPenaltyLogitsProcessor,
    lp.PrefixConstrainedLogitsProcessor,
    lp.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
_STATEFUL = (lp.ClassifierFreeGuidanceLogitsProcessor, lp.SynthIDTextWatermarkLogitsProcessor)
_PER_SOURCE = "prompt_ignore_length"
