"""The model's own output, found by its beam search, as one more candidate beside the samples."""

from __future__ import annotations

import copy

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from .base import Request, Samples
from .generation_mixin import run_loop
from .loops import Tap, collect
from .processors import for_source
from .randomness import derived_seed

# Beams of a search whose model does not say how many.
_BEAMS = 5


@torch.no_grad()
def beam_outputs(request: Request, beams: int) -> list[Samples]:
    """Return one sequence per source, counted once, with its log-probability under the model.

    It was not drawn, so under the sampling distribution its log-probability is −inf.

    Args:
        beams: how many; True takes as many as the model's generation config says, else 5; 1 is greedy.
    """
    config = copy.deepcopy(request.generation_config)
    if beams is True:
        own = request.model.generation_config.num_beams or 1
        beams = own if own > 1 else _BEAMS
    config.return_dict_in_generate, config.do_sample = False, False
    config.num_return_sequences, config.num_beams = 1, beams
    found = []
    for source, key in enumerate(request.keys):
        seed = derived_seed(0, key)
        search = LogitsProcessorList([tap := Tap(), *for_source(request, source, beams)])
        method = "_sample" if beams == 1 else "_beam_search"
        sequences = run_loop(method, request, source, beams, config, search, seed)
        steps = beams * tap.steps
        # Walked through once more by itself: a search does not keep what the model says of each token.
        config.num_beams = 1
        replay = LogitsProcessorList([tap := Tap(), *for_source(request, source, 1), _Follow(sequences)])
        walked = run_loop("_sample", request, source, 1, config, replay, seed)
        config.num_beams = beams
        logprobs = tap.chosen(walked)
        logprobs[:, : request.forced_tokens] = 0.0
        found.append(collect(request, [(walked, (logprobs, np.full_like(logprobs, -np.inf)))], steps + tap.steps))
    return found


def joined(drawn: Samples, other: Samples) -> Samples:
    """Return the draws of both; a sequence that both have is counted as often as in both together."""
    place = {ids: k for k, ids in enumerate(drawn.token_ids)}
    counts, new = drawn.counts.copy(), []
    for k, ids in enumerate(other.token_ids):
        if ids in place:
            counts[place[ids]] += other.counts[k]
        else:
            new.append(k)

    def both(name: str) -> np.ndarray | None:
        first, second = getattr(drawn, name), getattr(other, name)
        return None if first is None or second is None else np.concatenate([first, second[new]])

    return Samples(
        token_ids=(*drawn.token_ids, *(other.token_ids[k] for k in new)),
        counts=np.concatenate([counts, other.counts[new]]),
        logprobs=both("logprobs"),
        sampling_logprobs=both("sampling_logprobs"),
        finished=np.concatenate([drawn.finished, other.finished[new]]),
        model_rows=drawn.model_rows + other.model_rows,
    )


class _Follow(LogitsProcessor):
    """Allows the next token of a sequence and nothing else."""

    def __init__(self, sequence: torch.Tensor) -> None:
        self.sequence = sequence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.sequence[0, input_ids.shape[1]]] = 0.0
        return forced
