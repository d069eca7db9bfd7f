"""Logits processors that look at the batch row, and not only at the prefix."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from transformers import LogitsProcessorList
from transformers.generation import logits_process as lp

from .base import Request


def for_source(request: Request, source: int, rows: int) -> LogitsProcessorList:
    """The request's processors, bound to a batch whose `rows` rows all belong to one source."""
    return LogitsProcessorList(
        _REBIND[type(item)](item, request, source, rows) if type(item) in _REBIND else copy.copy(item)
        for item in request.logits_processor
    )


def row_keyed(processors: LogitsProcessorList) -> list[str]:
    """Names of the processors whose effect on a prefix depends on its row or on what rows were seen before."""
    return [type(item).__name__ for item in processors if isinstance(item, (*_REBIND, *_STATEFUL))]


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
