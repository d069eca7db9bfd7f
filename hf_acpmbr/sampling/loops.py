"""Candidates from transformers' own decoding loops: plain sampling in chunks of rows, and beam search."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from transformers import LogitsProcessorList, PrefixConstrainedLogitsProcessor

from ..candidates import FloatArray, TokenIds
from ..config import flag, integer, nested, number, setting
from .base import SEARCH_FIELDS, DrawingSampler, Request, Sampler, Samples
from .generation_mixin import rows_together, run_loop
from .processors import for_source
from .randomness import derived_seed
from .truncation import Truncation

# Beams of a search whose model does not say how many.
_BEAMS = 5
# (k, P + T) sequences, (k, T) log-probabilities of their tokens (model, sampling) if recorded, rows of the decoder.
Chunk: TypeAlias = tuple[torch.Tensor, tuple[FloatArray, ...], int]


@dataclass(frozen=True)
class Chunked(DrawingSampler):
    """Transformers' own sampling loop, one source and `max_rows` rows at a time.

    Each chunk has its own seed, so `max_rows` changes the samples as the seed does. The seed together with a source's
    key fixes the source's samples, whatever else is in the batch; only sources whose images cannot be told apart run
    together and share their random numbers.
    """

    max_rows: int = setting(128, integer(1), help="at most this number of rows in one forward pass.")

    name: ClassVar[str] = "chunked"

    def grain(self, request: Request) -> int:
        return self._size(request)[0]

    def _size(self, request: Request) -> tuple[int, bool]:
        """Return how many rows of a source run at a time, and whether all sources run together."""
        most = rows_together(request)
        return (self.max_rows, False) if most is None else (max(1, min(most, self.max_rows // len(request.keys))), True)

    @torch.no_grad()
    def sample_more(self, request: Request, ranges: Sequence[range], seed: int = 0) -> list[Samples]:
        """Draw these of each source's samples; a range begins where a chunk does."""
        config = copy.deepcopy(request.generation_config)
        config.do_sample, config.return_dict_in_generate = True, False
        warpers = self.truncation.warpers(str(request.input_ids.device))
        size, together = self._size(request)
        chunks: list[list[Chunk]] = [[] for _ in ranges]
        for members in [range(len(ranges))] if together else [range(k, k + 1) for k in range(len(ranges))]:
            source = None if together else members[0]
            key = b"".join(request.keys[k] for k in members)
            for start in sorted({start for k in members for start in ranges[k][::size]}):
                rows = min(size, max(ranges[k].stop for k in members) - start)
                raw, warped = _Tap(), _Tap()
                processors = LogitsProcessorList([raw, *for_source(request, source, rows), *warpers, warped])
                sequences = run_loop(
                    "_sample", request, source, rows, config, processors, derived_seed(seed, key, start)
                )
                own, drawn = raw.chosen(sequences), warped.chosen(sequences)
                own[:, : request.forced_tokens] = 0.0
                for place, k in enumerate(members):
                    here = slice(place * rows, (place + 1) * rows)
                    if start in ranges[k]:
                        chunks[k].append((sequences[here], (own[here], drawn[here]), rows * raw.steps))
        return [_collect(request, own) for own in chunks]


def _stopping(name: str, value: object) -> bool | str:
    if value == "never":
        return "never"
    return flag(name, value)


@dataclass(frozen=True)
class BeamSearch(Sampler):
    """The min(n, num_beams) best beams of each source, each counted once."""

    num_beams: int = setting(5, integer(2), help="number of beams, at least 2.")
    do_sample: bool = setting(False, flag, help="draw the beams' next tokens instead of taking the best.")
    length_penalty: float = setting(1.0, number(), help="as in GenerationConfig.")
    early_stopping: bool | str = nested(_stopping, lambda: False, help="as in GenerationConfig.")
    truncation: Truncation = nested(
        Truncation.check, lambda: Truncation(epsilon=0.0), help="the sampling distribution, with do_sample."
    )

    name: ClassVar[str] = "beam-search"

    @torch.no_grad()
    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """Search n beams, at most `num_beams`, per source of the request."""
        integer(1)("the number of samples", n)
        config = copy.deepcopy(request.generation_config)
        config.return_dict_in_generate, config.num_return_sequences = False, min(n, self.num_beams)
        for name in SEARCH_FIELDS:
            setattr(config, name, getattr(self, name))
        warpers = self.truncation.warpers(str(request.input_ids.device)) if self.do_sample else ()
        drawn = []
        for source, key in enumerate(request.keys):
            tap = _Tap()
            processors = LogitsProcessorList([*for_source(request, source, self.num_beams), *warpers, tap])
            seeded = derived_seed(seed, key)
            sequences = run_loop("_beam_search", request, source, self.num_beams, config, processors, seeded)
            drawn.append(_collect(request, [(sequences, (), self.num_beams * tap.steps)]))
        return drawn


@torch.no_grad()
def own_outputs(request: Request, beams: int) -> list[Samples]:
    """Return the model's own output per source, found by its beam search and counted once.

    It was not drawn, so under the sampling distribution its log-probability is −inf.

    Args:
        beams: how many; True takes as many as the model's generation config says, else 5; 1 is greedy.
    """
    config = copy.deepcopy(request.generation_config)
    if beams is True:
        own = request.model.generation_config.num_beams or 1
        beams = own if own > 1 else _BEAMS
    config.return_dict_in_generate, config.do_sample = False, False
    config.num_return_sequences = 1
    method = "_sample" if beams == 1 else "_beam_search"
    outputs = []
    for source, key in enumerate(request.keys):
        seed = derived_seed(0, key)
        config.num_beams = beams
        search = LogitsProcessorList([tap := _Tap(), *for_source(request, source, beams)])
        (found,) = run_loop(method, request, source, beams, config, search, seed).tolist()
        model_rows = beams * tap.steps
        # Walk through it once more: a search does not keep what the model says of each token.
        config.num_beams = 1
        follow = PrefixConstrainedLogitsProcessor(partial(_next_of, found), num_beams=1)
        replay = LogitsProcessorList([tap := _Tap(), follow])
        walked = run_loop("_sample", request, source, 1, config, replay, seed)
        logprobs = tap.chosen(walked)
        logprobs[:, : request.forced_tokens] = 0.0
        chunk = walked, (logprobs, np.full_like(logprobs, -np.inf)), model_rows + tap.steps
        outputs.append(_collect(request, [chunk]))
    return outputs


def _next_of(sequence: list[int], _: int, ids: torch.Tensor) -> list[int]:
    return [sequence[len(ids)]]


class _Tap:
    """A logits processor that changes nothing and notes the log-probability of each token that was taken next."""

    def __init__(self) -> None:
        self._pending: torch.Tensor | None = None
        self._taken: list[torch.Tensor] = []
        self.steps = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._take(input_ids[:, -1])
        self._pending = scores.float().log_softmax(dim=-1)
        self.steps += 1
        return scores

    def chosen(self, sequences: torch.Tensor) -> FloatArray:
        """Return (k, T) log-probabilities of the finished sequences."""
        self._take(sequences[:, -1])
        return torch.stack(self._taken, dim=1).double().cpu().numpy()

    def _take(self, tokens: torch.Tensor) -> None:
        if self._pending is not None:
            self._taken.append(self._pending.gather(1, tokens[:, None]).squeeze(1))
            self._pending = None


def _collect(request: Request, chunks: list[Chunk]) -> Samples:
    """Count the distinct sequences of one source's chunks."""
    counts: dict[TokenIds, int] = {}
    totals: list[list[float]] = []
    prompt, eos = request.input_ids.shape[1], request.eos_ids
    for sequences, logprobs, _ in chunks:
        # New tokens up to the first at which a stopping criterion holds; what follows is padding.
        lengths = torch.full((len(sequences),), sequences.shape[1] - prompt, device=sequences.device)
        for new in range(sequences.shape[1] - prompt, 0, -1):
            lengths[request.stopping_criteria(sequences[:, : prompt + new], None)] = new
        new_tokens = sequences[:, prompt:].tolist()
        for row, (tokens, length) in enumerate(zip(new_tokens, lengths.tolist(), strict=True)):
            ids = tuple(tokens[:length])
            if ids not in counts:
                totals.append([float(values[row, :length].sum()) for values in logprobs])
            counts[ids] = counts.get(ids, 0) + 1
    recorded = not chunks or chunks[0][1]
    own, sampling = np.array(totals).reshape(-1, 2).T if recorded else (None, None)
    return Samples(
        token_ids=tuple(counts),
        counts=np.fromiter(counts.values(), dtype=np.int64),
        logprobs=own,
        sampling_logprobs=sampling,
        finished=np.array([ids[-1] in eos for ids in counts], dtype=np.bool_),
        model_rows=sum(rows for _, _, rows in chunks),
    )
