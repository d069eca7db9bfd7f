"""The beams of a (sampled) beam search as candidates."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ..checks import flag, integer, number
from ..stage import Stage, nested, setting
from ._processors import for_source
from ._transformers import Chunk, Tap, collect, run_loop
from .base import Request, Samples
from .randomness import derived_seed
from .truncation import Truncation

if TYPE_CHECKING:
    from transformers import GenerationConfig

_SAMPLING = ("epsilon_cutoff", "temperature", "top_k", "top_p", "min_p", "typical_p", "eta_cutoff")
_SEARCH = ("num_beams", "do_sample", "length_penalty", "early_stopping")


def _stopping(name: str, value: object) -> bool | str:
    if value == "never":
        return "never"
    return flag(name, value)


@dataclass(frozen=True)
class BeamSearch(Stage):
    """Takes min(n, num_beams) beams of every source, each counted once.

    Args:
        num_beams: at least 2.
        do_sample: draw the beams' next tokens instead of taking the best.
        length_penalty, early_stopping: as in `GenerationConfig`.
        truncation: the sampling distribution, with do_sample.
    """

    num_beams: int = setting(5, integer(2))
    do_sample: bool = setting(False, flag)
    length_penalty: float = setting(1.0, number())
    early_stopping: bool | str = nested(_stopping, lambda: False)
    truncation: Truncation = nested(Truncation.check, lambda: Truncation(epsilon=0.0))

    name: ClassVar[str] = "beam-search"

    @torch.no_grad()
    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """The beams of each of the S sources of the request."""
        if n < 1:
            raise ValueError(f"the number of samples must be at least 1, got {n}")
        return [collect([self._beams(request, k, n, seed)], request) for k in range(len(request.keys))]

    def _beams(self, request: Request, source: int, n: int, seed: int) -> Chunk:
        config = copy.deepcopy(request.generation_config)
        config.return_dict_in_generate, config.num_return_sequences = False, min(n, self.num_beams)
        for name in _SEARCH:
            setattr(config, name, getattr(self, name))
        processors = for_source(request, source, self.num_beams)
        if self.do_sample:
            processors.extend(self.truncation.warpers(str(request.input_ids.device)))
        taps = Tap()
        processors.append(taps)
        drawn_by = derived_seed(seed, request.keys[source], 0)
        sequences = run_loop("_beam_search", request, source, self.num_beams, config, processors, drawn_by)
        return Chunk(sequences, None, None, self.num_beams * taps.steps)


def sampler_settings(config: GenerationConfig) -> dict[str, object]:
    """The sampler that a GenerationConfig asks for, as {"name": ..., settings}; "auto" unless num_beams > 1.

    Raises:
        ValueError: for a field that is not about how candidates come about, and would be ignored.
    """
    given = {key: value for key, value in config.to_diff_dict().items() if value is not None}
    if foreign := sorted(set(given) - {*_SAMPLING, *_SEARCH, "transformers_version"}):
        raise ValueError(
            f"{', '.join(foreign)} in generation_config would be ignored: it says how candidates come about "
            f"({', '.join([*_SAMPLING, *_SEARCH])}); give the rest to model.generate, or generate the candidates "
            "elsewhere and pass them to rerank()"
        )
    truncation = Truncation.from_generation_config(config)
    if (config.num_beams or 1) > 1:
        return {"name": "beam-search", **{key: given[key] for key in _SEARCH if key in given}, "truncation": truncation}
    if idle := [key for key in ("length_penalty", "early_stopping") if key in given]:
        raise ValueError(f"{', '.join(idle)} in generation_config has no effect without num_beams > 1")
    return {"name": "auto", "truncation": truncation}
