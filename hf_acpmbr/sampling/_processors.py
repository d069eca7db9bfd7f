"""Logits processors: which look at the batch row, and which need no pass of their own over the logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as lp

from ..candidates import IntArray
from .base import Request, rows_of


def for_source(request: Request, source: int, rows: int) -> LogitsProcessorList:
    """The request's processors, bound to a batch whose `rows` rows all belong to one source."""
    return LogitsProcessorList(
        _REBIND[type(item)](item, request, source, rows)
        if type(item) in _REBIND
        else for_rows(copy.copy(item), np.full(rows, source), len(request.keys))
        for item in request.logits_processor
    )


def for_rows(item: Any, sources: IntArray, count: int) -> Any:
    """The processor for rows of `sources` (U,), where it holds one value for each of `count` sources; else itself.

    From transformers 5.23 on, the repetition penalty knows the padding of each row's prompt.
    """
    if not holds_value_per_source(item):
        return item
    twin = copy.copy(item)
    repeated = len(item.prompt_ignore_length) // count  # generate may have repeated each source
    twin.prompt_ignore_length = rows_of(item.prompt_ignore_length, sources * repeated)
    return twin


def holds_value_per_source(item: Any) -> bool:
    return type(item) is lp.RepetitionPenaltyLogitsProcessor and isinstance(item.prompt_ignore_length, torch.Tensor)


def row_keyed(processors: LogitsProcessorList) -> list[str]:
    """Names of the processors whose effect on a prefix depends on its row or on what rows were seen before."""
    return [type(item).__name__ for item in processors if isinstance(item, (*_REBIND, *_STATEFUL))]


def without_normalisation(processors: LogitsProcessorList) -> LogitsProcessorList:
    """Without a log-softmax at the end, for what follows and depends on differences of scores alone."""
    items = list(processors)
    while items and type(items[-1]) is lp.LogitNormalization:
        items.pop()
    return LogitsProcessorList(items)


def split_bans(processors: LogitsProcessorList) -> tuple[list[int], LogitsProcessorList]:
    """(tokens that are banned at every step before anything else, the processors that are left to run).

    transformers' processors for these bans make a copy of all logits or more, where some columns would do.
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
    """Tokens that this processor bans at every step, if it does nothing else."""
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


def _encoder_ids(request: Request, source: int) -> Any:
    if request.encoder_input_ids is None:
        raise ValueError(
            "encoder_no_repeat_ngram_size and encoder_repetition_penalty need the source ids: pass input_ids"
        )
    return request.encoder_input_ids[source : source + 1]


def _encoder_ngrams(item: Any, request: Request, source: int, rows: int) -> Any:
    return lp.EncoderNoRepeatNGramLogitsProcessor(item.ngram_size, _encoder_ids(request, source))


def _encoder_repetition(item: Any, request: Request, source: int, rows: int) -> Any:
    return lp.EncoderRepetitionPenaltyLogitsProcessor(1 / item.penalty, _encoder_ids(request, source))


def _prefix_constrained(item: Any, request: Request, source: int, rows: int) -> Any:
    allowed = item._prefix_allowed_tokens_fn
    return lp.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(source, ids), num_beams=1)


def _guidance(item: Any, request: Request, source: int, rows: int) -> Any:
    context = item.unconditional_context
    ids, mask = (
        None if value is None else value[source : source + 1].expand(rows, -1)
        for value in (context["input_ids"], context["attention_mask"])
    )
    return lp.UnbatchedClassifierFreeGuidanceLogitsProcessor(
        item.guidance_scale, item.model, ids, mask, context["use_cache"]
    )


_REBIND: dict[type, Callable[[Any, Request, int, int], Any]] = {
    lp.EncoderNoRepeatNGramLogitsProcessor: _encoder_ngrams,
    lp.EncoderRepetitionPenaltyLogitsProcessor: _encoder_repetition,
    lp.PrefixConstrainedLogitsProcessor: _prefix_constrained,
    lp.UnbatchedClassifierFreeGuidanceLogitsProcessor: _guidance,
}
_STATEFUL = (lp.ClassifierFreeGuidanceLogitsProcessor, lp.SynthIDTextWatermarkLogitsProcessor)
