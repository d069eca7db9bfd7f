"""The contract of samplers: what they are handed, what they give back, and rows of sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray, TokenIds
from ..config import Stage, integer, nested, setting
from .truncation import Truncation

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    from ..types import GenerativeModel

T = TypeVar("T")
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Request:
    """One batch of sources, as `model.generate` prepares it for a decoding method. S sources, not expanded.

    Args:
        model: any generative transformers model.
        input_ids: (S, P) decoder start ids of an encoder-decoder model, or left-padded prompts of a decoder-only one.
        model_kwargs: everything else the model's forward needs: encoder outputs, masks, an empty cache.
        logits_processor: those that constrain (forced BOS, bad words, ...), without sampling warpers.
        stopping_criteria: when a sequence ends; each must look at one row at a time.
        generation_config: prepared by `generate`; read for special tokens, lengths and the kind of cache.
        keys: S byte strings that identify the sources; the draws of a source depend on its key and the seed alone.
        encoder_input_ids: (S, L) source ids of an encoder-decoder model, if known.
    """

    model: GenerativeModel
    input_ids: torch.Tensor
    model_kwargs: Mapping[str, object]
    logits_processor: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    generation_config: GenerationConfig
    keys: tuple[bytes, ...]
    encoder_input_ids: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.keys) != self.input_ids.shape[0]:
            raise ValueError(f"keys has {len(self.keys)} entries for {self.input_ids.shape[0]} sources: give one each")


@dataclass(frozen=True, eq=False)
class Samples:
    """n i.i.d. samples of one source: its u distinct sequences in the order in which they were first drawn.

    Args:
        token_ids: u continuations, without the prompt, with the final end-of-sequence token if there is one.
        counts: (u,) how often each was drawn; sums to n.
        logprobs: (u,) under the model itself: sum of the log-softmax of its raw logits; None if not known.
        sampling_logprobs: (u,) under the distribution it was drawn from, after processors and truncation.
        finished: (u,) True if an end-of-sequence token came, False if a length limit or other criterion cut.
        model_rows: rows of decoder input spent on this source (one row is one prefix in one forward pass).
    """

    token_ids: tuple[TokenIds, ...]
    counts: IntArray
    logprobs: FloatArray | None
    sampling_logprobs: FloatArray | None
    finished: BoolArray
    model_rows: int = field(default=0)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def total(self) -> int:
        return int(self.counts.sum())


class Sampler(Stage, ABC):
    """Source → candidates. Subclasses are frozen dataclasses of their settings."""

    @abstractmethod
    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """Draw n samples for each of the S sources of the request; same seed, same samples."""

    @classmethod
    def from_object(cls, given: object) -> object:
        """Return the settings of the sampler that a transformers GenerationConfig asks for."""
        from transformers import GenerationConfig

        if not isinstance(given, GenerationConfig):
            return given
        from .loops import sampler_settings

        return sampler_settings(given)


@dataclass(frozen=True)
class DrawingSampler(Sampler):
    """The settings of samplers that draw from the model."""

    truncation: Truncation = nested(Truncation.check, Truncation, help="the sampling distribution.")
    max_rows: int = setting(512, integer(1), help="at most this number of rows in one forward pass.")


def eos_ids(generation_config: GenerationConfig) -> frozenset[int]:
    """Return the end-of-sequence ids of a prepared config; empty if it has none."""
    eos = generation_config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset(int(token) for token in (eos if isinstance(eos, list | tuple) else [eos]))


def arguments_of(kwargs: Mapping[str, object], sources: IntArray, count: int) -> dict[str, object]:
    """Return arguments of the model made for `count` sources with rows picked by `sources` (U,).

    An argument that does not have one row per source stays as it is.
    """
    turned = _turned(kwargs)
    shared = without_rows(kwargs, count)
    own = {name: value for name, value in turned.items() if name not in shared} if shared else turned
    return _turned({**turned, **rows_of(own, sources)})


def divided(kwargs: Mapping[str, object], sources: IntArray, count: int) -> dict[str, object]:
    """Do as `arguments_of`, where all arguments must have one row per source.

    Raises:
        ValueError: for a tensor that does not, such as the images of prompts that have none or several.
    """
    if shared := without_rows(kwargs, count):
        raise ValueError(
            f"{', '.join(shared)} cannot be divided among {count} rows: call generate for one source at a time, with "
            "num_beams=1 and num_return_sequences=1"
        )
    return arguments_of(kwargs, sources, count)


def without_rows(kwargs: Mapping[str, object], count: int) -> list[str]:
    """List the arguments without one row per source: images and what encoders made of them."""
    import torch

    def has_none(name: str, value: object) -> bool:
        if isinstance(value, torch.Tensor):
            return bool(value.dim()) and value.shape[0] != count
        return name == "mm_encoder_outputs" and bool(value)

    return [name for name, value in _turned(kwargs).items() if has_none(name, value)]


def _turned(kwargs: Mapping[str, object]) -> dict[str, object]:
    """Exchange rows and axes of positions, if a model counts along several: (axes, S, L) to (S, axes, L)."""
    import torch

    positions = kwargs.get("position_ids")
    if not isinstance(positions, torch.Tensor) or positions.dim() < 3:
        return dict(kwargs)
    return {**kwargs, "position_ids": positions.transpose(0, 1)}


def rows_of(value: T, sources: IntArray) -> T:
    """Pick the rows `sources` (U,) of every tensor inside `value`, each with one row per source."""
    import torch

    rows = row_picker(sources)

    def pick(item: object) -> object:
        if isinstance(item, torch.Tensor):
            return rows(item) if item.dim() else item
        if isinstance(item, dict):
            # A ModelOutput's __init__ takes longer than all the rest; what it checks was checked for `item`.
            mapped = {} if type(item) is dict else type(item).__new__(type(item))
            for name, part in item.items():
                mapped[name] = pick(part)
            return mapped
        if isinstance(item, tuple | list):
            return type(item)(pick(part) for part in item)
        return item

    return cast("T", pick(value))


def row_picker(sources: IntArray) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that picks the rows `sources` (U,): a view if they are all one row, else a gather."""
    import torch

    first, count = int(sources[0]), len(sources)
    if (sources == first).all():

        def expanded(tensor: torch.Tensor) -> torch.Tensor:
            own = tensor if tensor.shape[0] == 1 else tensor[first : first + 1]
            return own.expand(count, *tensor.shape[1:])

        return expanded
    index: dict[torch.device, torch.Tensor] = {}  # one upload per device

    def gathered(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device not in index:
            index[tensor.device] = torch.as_tensor(sources, device=tensor.device)
        return tensor.index_select(0, index[tensor.device])

    return gathered
