"""Plain decoding by transformers in chunks of rows, for settings that prefix sharing cannot do exactly."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers import LogitsProcessorList

from ..checks import integer
from ..stage import setting
from ._processors import for_source
from ._transformers import Chunk, Tap, collect, run_loop
from .base import DrawingSampler, Request, Samples
from .randomness import derived_seed


@dataclass(frozen=True)
class Chunked(DrawingSampler):
    """Draws n samples per source, one source and `max_rows` rows at a time, with transformers' own decoding loop.

    Each chunk has its own seed, so `max_rows` changes which samples come, as the seed does. The seed together with a
    source's key fixes the source's samples, whatever else is in the batch.
    """

    max_rows: int = setting(128, integer(1))

    name: ClassVar[str] = "chunked"

    @torch.no_grad()
    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """n samples for each of the S sources of the request."""
        if n < 1:
            raise ValueError(f"the number of samples must be at least 1, got {n}")
        return [collect(list(self._chunks(request, k, n, seed)), request) for k in range(len(request.keys))]

    def _chunks(self, request: Request, source: int, n: int, seed: int) -> Iterator[Chunk]:
        config = copy.deepcopy(request.generation_config)
        config.do_sample, config.return_dict_in_generate = True, False
        warpers = self.truncation.warpers(str(request.input_ids.device))
        for start in range(0, n, self.max_rows):
            rows = min(self.max_rows, n - start)
            raw, drawn = Tap(), Tap()
            processors = LogitsProcessorList([raw, *for_source(request, source, rows), *warpers, drawn])
            drawn_by = derived_seed(seed, request.keys[source], start)
            sequences = run_loop("_sample", request, source, rows, config, processors, drawn_by)
            yield Chunk(sequences, raw.chosen(sequences), drawn.chosen(sequences), rows * raw.steps)
