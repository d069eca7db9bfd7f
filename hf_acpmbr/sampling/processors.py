"""Logits processors: which depend on the batch row, and which need no pass of their own over the logits."""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as lp

from .base import Request
from .rows import Rows

_REBOUND = (
    lp.EncoderNoRepeatNGramLogitsProcessor,
    lp.EncoderRepetitionPenaltyLogitsProcessor,
    lp.PrefixConstrainedLogitsProcessor,
    lp.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
_STATEFUL = (lp.ClassifierFreeGuidanceLogitsProcessor, lp.SynthIDTextWatermarkLogitsProcessor)
_PER_SOURCE = "prompt_ignore_length"


def for_source(request: Request, source: int | None, rows: int) -> LogitsProcessorList:
    """Bind the request's processors to a batch of `rows` rows of one source, or of each if `source` is None."""
    count = len(request.keys)
    which = Rows(np.repeat(np.arange(count), rows) if source is None else np.full(rows, source))
    if source is None and count > 1 and (keyed := row_keyed(request.logits_processor)):
        raise ValueError(
            f"{', '.join(keyed)} depend on the batch row, and the images of several prompts cannot be told apart: call "
            "generate for one source at a time"
        )
    source = source or 0  # what depends on the row is of one source
    return LogitsProcessorList(
        _rebound(item, request, source, rows) if type(item) in _REBOUND else for_rows(copy.copy(item), which, count)
        for item in request.logits_processor
    )


def for_rows(item: lp.LogitsProcessor, sources: Rows, count: int) -> lp.LogitsProcessor:
    """Return the processor for rows of `sources`: a copy if it holds a value per source, else itself.

    From transformers 5.23 on, a repetition penalty knows the padding of each of the `count` prompts.
    """
    values = getattr(item, _PER_SOURCE) if type(item) is lp.RepetitionPenaltyLogitsProcessor else None
    if not isinstance(values, torch.Tensor):
        return item
    twin = copy.copy(item)
    # generate may have repeated each source
    setattr(twin, _PER_SOURCE, sources.pick(values[:: len(values) // count]))
    return twin


def row_keyed(processors: LogitsProcessorList) -> list[str]:
    """Name the processors whose effect on a prefix depends on its row or on rows seen before."""
    return [type(item).__name__ for item in processors if isinstance(item, (*_REBOUND, *_STATEFUL))]


def split_bans(processors: LogitsProcessorList) -> tuple[list[int], LogitsProcessorList]:
    """Return (tokens that leading processors ban at every step, the processors left to run).

    transformers' processors for these bans copy all logits where a few columns would do.
    """
    banned: set[int] = set()
    left = list(processors)
    while left:
        item = left[0]
        if type(item) is lp.SuppressTokensLogitsProcessor:
            banned.update(map(int, item.suppress_tokens))
        elif type(item) is lp.NoBadWordsLogitsProcessor and all(len(w) == 1 for w in item.sequence_bias):
            banned.update(int(word[0]) for word in item.sequence_bias)
        else:
            break
        left.pop(0)
    for item in left:  # could it give a banned token a score again?
        forced: set[int] = set()
        if type(item) is lp.ForcedBOSTokenLogitsProcessor:
            forced = {item.bos_token_id}
        elif type(item) is lp.ForcedEOSTokenLogitsProcessor:
            forced = set(item.eos_token_id.tolist())
        if writes_into_scores(item) or forced & banned:
            return [], processors
    return sorted(banned), LogitsProcessorList(left)


def writes_into_scores(item: object) -> bool:
    """Return whether a processor may change the tensor that it is given; transformers' own do not."""
    return type(item).__module__ != lp.__name__


def _rebound(item: Any, request: Request, source: int, rows: int) -> lp.LogitsProcessor:
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
            "encoder_no_repeat_ngram_size and encoder_repetition_penalty need the source's ids: pass input_ids"
        )
    own = cast("torch.LongTensor", request.encoder_input_ids[source : source + 1])
    if isinstance(item, lp.EncoderNoRepeatNGramLogitsProcessor):
        return lp.EncoderNoRepeatNGramLogitsProcessor(item.ngram_size, own)
    return lp.EncoderRepetitionPenaltyLogitsProcessor(1 / item.penalty, own)
