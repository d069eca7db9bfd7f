"""Plain decoding by transformers in chunks of rows, for settings that prefix sharing cannot do exactly."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation.utils import GENERATION_MODES_MAPPING

from ..candidates import FloatArray, TokenIds
from ._processors import for_source
from .base import Request, Samples, eos_ids, rows_of
from .randomness import derived_seed
from .truncation import EPSILON_SAMPLING, Truncation

if TYPE_CHECKING:
    from transformers import GenerationConfig


@dataclass(frozen=True)
class Chunked:
    """Draws n samples a source, one source and `max_rows` rows at a time, with transformers' own decoding loop.

    Args:
        truncation: the sampling distribution. Not used by beam search.
        max_rows: rows in one chunk. Each chunk has its own seed, so it changes which samples come, as `seed` does.
        seed: together with a source's key it fixes the source's samples, whatever else is in the batch.
        search: None draws samples; a GenerationConfig with num_beams > 1 takes the beams of (sampled) beam search
            instead, min(n, num_beams) of them, each counted once.
    """

    truncation: Truncation = EPSILON_SAMPLING
    max_rows: int = 128
    seed: int = 0
    search: GenerationConfig | None = None

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {self.max_rows}")

    @torch.no_grad()
    def sample(self, request: Request, n: int) -> list[Samples]:
        """n samples for each of the S sources of the request."""
        if n < 1:
            raise ValueError(f"the number of samples must be at least 1, got {n}")
        run = self._beams if self.search is not None else self._chunks
        return [_collect(list(run(request, source, n)), request) for source in range(len(request.keys))]

    def _chunks(self, request: Request, source: int, n: int) -> Iterator[_Chunk]:
        config = copy.deepcopy(request.generation_config)
        config.do_sample, config.return_dict_in_generate = True, False
        warpers = self.truncation.warpers(str(request.input_ids.device))
        for start in range(0, n, self.max_rows):
            rows = min(self.max_rows, n - start)
            raw, drawn = _Tap(), _Tap()
            processors = LogitsProcessorList([raw, *for_source(request, source, rows), *warpers, drawn])
            sequences = _decode(
                "_sample", request, source, rows, config, processors, self._seed(request, source, start)
            )
            yield _Chunk(sequences, raw.chosen(sequences), drawn.chosen(sequences), rows * raw.steps)

    def _beams(self, request: Request, source: int, n: int) -> Iterator[_Chunk]:
        search = self.search
        assert search is not None
        method = GENERATION_MODES_MAPPING[search.get_generation_mode()]
        if method != "_beam_search":
            raise ValueError(
                f"candidates by {search.get_generation_mode().value} are not supported: draw samples, use "
                "num_beams > 1, or generate them elsewhere and pass them to rerank()"
            )
        config = copy.deepcopy(request.generation_config)
        config.return_dict_in_generate, config.num_return_sequences = False, min(n, search.num_beams)
        for name in ("num_beams", "do_sample", "length_penalty", "early_stopping"):
            if getattr(search, name) is not None:
                setattr(config, name, getattr(search, name))
        processors = for_source(request, source, search.num_beams)
        if search.do_sample:
            processors.extend(self.truncation.warpers(str(request.input_ids.device)))
        taps = _Tap()
        processors.append(taps)
        seed = self._seed(request, source, 0)
        sequences = _decode(method, request, source, search.num_beams, config, processors, seed)
        yield _Chunk(sequences, None, None, search.num_beams * taps.steps)

    def _seed(self, request: Request, source: int, start: int) -> int:
        return derived_seed(self.seed, request.keys[source], start)


@dataclass(frozen=True, eq=False)
class _Chunk:
    """(k, P + T) sequences, (k, T) log-probabilities of their tokens where recorded, and the model rows spent."""

    sequences: torch.Tensor
    logprobs: FloatArray | None
    sampling_logprobs: FloatArray | None
    model_rows: int


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
        """(k, T) for the finished sequences."""
        self._take(sequences[:, -1])
        return torch.stack(self._taken, dim=1).double().cpu().numpy()

    def _take(self, tokens: torch.Tensor) -> None:
        if self._pending is not None:
            self._taken.append(self._pending.gather(1, tokens[:, None]).squeeze(1))
            self._pending = None


def _decode(
    method: str,
    request: Request,
    source: int,
    rows: int,
    config: GenerationConfig,
    processors: LogitsProcessorList,
    seed: int,
) -> torch.Tensor:
    """`rows` rows of one source through transformers' own loop, with its random numbers confined to this call."""
    which = np.full(rows, source, dtype=np.int64)
    kwargs: dict[str, Any] = rows_of({k: v for k, v in request.model_kwargs.items() if k != "past_key_values"}, which)
    if (cache := request.model_kwargs.get("past_key_values")) is not None:
        kwargs["past_key_values"] = copy.deepcopy(cache)
    device = request.input_ids.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        decode = getattr(request.model, method)
        sequences: torch.Tensor = decode(
            rows_of(request.input_ids, which).contiguous(),
            logits_processor=processors,
            stopping_criteria=request.stopping_criteria,
            generation_config=config,
            **kwargs,
        )
    return sequences


def _collect(chunks: list[_Chunk], request: Request) -> Samples:
    counts: dict[TokenIds, int] = {}
    totals: list[tuple[float, float]] = []
    eos, prompt = eos_ids(request.generation_config), request.input_ids.shape[1]
    recorded = chunks[0].logprobs is not None
    for chunk in chunks:
        lengths = _lengths(chunk.sequences, prompt, request)
        for row, tokens in enumerate(chunk.sequences[:, prompt:].tolist()):
            ids = tuple(tokens[: lengths[row]])
            if ids not in counts and chunk.logprobs is not None and chunk.sampling_logprobs is not None:
                both = chunk.logprobs[row], chunk.sampling_logprobs[row]
                totals.append((float(both[0][: len(ids)].sum()), float(both[1][: len(ids)].sum())))
            counts[ids] = counts.get(ids, 0) + 1
    return Samples(
        token_ids=tuple(counts),
        counts=np.fromiter(counts.values(), dtype=np.int64),
        logprobs=np.array([total[0] for total in totals]) if recorded else None,
        sampling_logprobs=np.array([total[1] for total in totals]) if recorded else None,
        finished=np.array([ids[-1] in eos for ids in counts], dtype=np.bool_),
        model_rows=sum(chunk.model_rows for chunk in chunks),
    )


def _lengths(sequences: torch.Tensor, prompt: int, request: Request) -> list[int]:
    """New tokens of each row, up to the first at which a stopping criterion holds; what follows is padding."""
    lengths = torch.full((len(sequences),), sequences.shape[1] - prompt, device=sequences.device)
    for new in range(sequences.shape[1] - prompt, 0, -1):
        lengths[request.stopping_criteria(sequences[:, : prompt + new], None)] = new
    return [int(length) for length in lengths]
