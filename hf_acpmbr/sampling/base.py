"""The contract of samplers: what they are handed and what they give back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray, TokenIds
from ..config import Stage, integer, nested, setting
from .truncation import Truncation

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    from ..types import GenerativeModel

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Request:
    """One batch of S sources, as `model.generate` prepares it for a decoding method, not expanded.

    Args:
        model: any generative transformers model.
        input_ids: (S, P) decoder start ids of an encoder-decoder model, or left-padded prompts.
        model_kwargs: everything else the model's forward needs: encoder outputs, masks, an empty cache.
        logits_processor: those that constrain (forced BOS, bad words, ...), without sampling warpers.
        stopping_criteria: when a sequence ends; each must look at one row at a time.
        generation_config: prepared by `generate`; read for special tokens, lengths and the kind of cache.
        keys: S byte strings that identify the sources; a source's draws depend on its key and the seed alone.
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

    @property
    def eos_ids(self) -> frozenset[int]:
        """The end-of-sequence ids; empty if there are none."""
        eos = self.generation_config.eos_token_id
        ids = eos if isinstance(eos, list | tuple) else [] if eos is None else [eos]
        return frozenset(int(token) for token in ids)

    @property
    def forced_tokens(self) -> int:
        """How many first tokens are forced, such as a language: no part of a text's probability under the model."""
        # As the processor does it: only as the first token after a single one.
        return int(self.generation_config.forced_bos_token_id is not None and self.input_ids.shape[1] == 1)


@dataclass(frozen=True, eq=False)
class Samples:
    """n i.i.d. samples of one source: its u distinct sequences in the order in which they were first drawn.

    Args:
        token_ids: u continuations, without the prompt, with the final end-of-sequence token if there is one.
        counts: (u,) how often each was drawn; sums to n.
        logprobs: (u,) under the model itself: sum of the log-softmax of its raw logits, without a forced first token;
            None if not known.
        sampling_logprobs: (u,) under the distribution it was drawn from, after processors and truncation.
        finished: (u,) True if an end-of-sequence token came, False if a length limit or other criterion cut.
        model_rows: rows of decoder input spent on this source (one row is one prefix in one forward pass).
    """

    token_ids: tuple[TokenIds, ...]
    counts: IntArray
    logprobs: FloatArray | None
    sampling_logprobs: FloatArray | None
    finished: BoolArray
    model_rows: int = 0

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
