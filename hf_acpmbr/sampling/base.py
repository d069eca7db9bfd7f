"""The contract of samplers: what they are handed, what they give back; and the default, which picks one."""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray, TokenIds
from ..config import SAMPLERS, Stage, integer, nested, setting
from .truncation import Truncation

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    from ..types import GenerativeModel

logger = logging.getLogger(__name__)

BoolArray = npt.NDArray[np.bool_]
# What a GenerationConfig says about how candidates come about.
_SAMPLING = ("epsilon_cutoff", "temperature", "top_k", "top_p", "min_p", "typical_p", "eta_cutoff")
SEARCH_FIELDS = ("num_beams", "do_sample", "length_penalty", "early_stopping")


@dataclass(frozen=True, eq=False)
class Request:
    """One batch of S sources, as `model.generate` prepares it for a decoding method, not expanded.

    Args:
        model: any generative transformers model.
        input_ids: (S, P) decoder start ids of an encoder-decoder model, or left-padded prompts.
        model_kwargs: the other arguments of the model's forward: encoder outputs, masks, an empty cache.
        logits_processor: those that constrain (forced BOS, bad words, ...), without sampling warpers.
        stopping_criteria: when a sequence ends; each must look at one row at a time.
        generation_config: prepared by `generate`; read for special tokens, lengths and the kind of cache.
        keys: S byte strings that identify the sources; a source's draws depend on its key and the seed alone.
        encoder_input_ids: (S, L) ids that were given as sources, if any: an encoder's, or the prompts.
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
        """The number of forced first tokens, such as a language, which are no part of a text's log-probability."""
        # The processor forces a token only after a prompt of one token.
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

    def plus(self, other: Samples) -> Samples:
        """Return the draws of both, in order; a sequence that both have is counted as often as in both together."""
        place = {ids: k for k, ids in enumerate(self.token_ids)}
        counts, new = self.counts.copy(), [k for k, ids in enumerate(other.token_ids) if ids not in place]
        for k, ids in enumerate(other.token_ids):
            if ids in place:
                counts[place[ids]] += other.counts[k]

        def both(name: str) -> FloatArray | None:
            first, second = getattr(self, name), getattr(other, name)
            return None if first is None or second is None else np.concatenate([first, second[new]])

        return Samples(
            token_ids=(*self.token_ids, *(other.token_ids[k] for k in new)),
            counts=np.concatenate([counts, other.counts[new]]),
            logprobs=both("logprobs"),
            sampling_logprobs=both("sampling_logprobs"),
            finished=np.concatenate([self.finished, other.finished[new]]),
            model_rows=self.model_rows + other.model_rows,
        )


class Sampler(Stage, ABC):
    """Source → candidates. Subclasses are frozen dataclasses of their settings."""

    @abstractmethod
    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """Draw n samples per source of the request; same seed, same samples."""

    def sample_more(self, request: Request, ranges: Sequence[range], seed: int = 0) -> list[Samples]:
        """Draw these of each source's samples: those that `sample` would have drawn at these places."""
        raise NotImplementedError(f"sampler {self.name!r} cannot draw more samples of a source")

    def grain(self, request: Request) -> int:
        """Return the number of which every range of `sample_more` is made; 0 if it cannot draw more."""
        return 0

    @classmethod
    def from_object(cls, given: object) -> object:
        """Return the sampler that a transformers GenerationConfig asks for, as {"name": ..., settings}.

        Raises:
            ValueError: for a field that is not about how candidates come about, and would be ignored.
        """
        from transformers import GenerationConfig

        if not isinstance(given, GenerationConfig):
            return given
        fields = {key: value for key, value in given.to_diff_dict().items() if value is not None}
        if foreign := sorted(set(fields) - {*_SAMPLING, *SEARCH_FIELDS, "transformers_version"}):
            raise ValueError(
                f"{', '.join(foreign)} in a sampler's GenerationConfig would be ignored: it says how candidates come "
                f"about ({', '.join([*_SAMPLING, *SEARCH_FIELDS])}); give the rest to model.generate, or generate "
                "the candidates elsewhere and pass them to rerank()"
            )
        truncation = Truncation.from_generation_config(given)
        if (given.num_beams or 1) > 1:
            search = {key: fields[key] for key in SEARCH_FIELDS if key in fields}
            return {"name": "beam-search", **search, "truncation": truncation}
        if idle := [key for key in ("length_penalty", "early_stopping") if key in fields]:
            raise ValueError(f"{', '.join(idle)} in a sampler's GenerationConfig has no effect without num_beams > 1")
        return {"name": "auto", "truncation": truncation}


@dataclass(frozen=True)
class DrawingSampler(Sampler):
    """The settings of samplers that draw from the model."""

    truncation: Truncation = nested(Truncation.check, Truncation, help="the sampling distribution.")
    max_rows: int = setting(512, integer(1), help="at most this number of rows in one forward pass.")

    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """Draw n samples per source of the request."""
        integer(1)("the number of samples", n)
        return self.sample_more(request, [range(n)] * len(request.keys), seed)

    def grain(self, request: Request) -> int:
        return 1


@dataclass(frozen=True)
class Automatic(DrawingSampler):
    """Prefix sharing if it is exact for the request, else chunked decoding, with the same settings."""

    name: ClassVar[str] = "auto"

    def sample_more(self, request: Request, ranges: Sequence[range], seed: int = 0) -> list[Samples]:
        """Draw these of each source's samples."""
        return self._chosen(request).sample_more(request, ranges, seed)

    def grain(self, request: Request) -> int:
        return self._chosen(request).grain(request)

    def _chosen(self, request: Request) -> Sampler:
        from .probe import obstacle

        reason = obstacle(request)
        if reason is not None:
            _announce(self.max_rows, reason)
        kind: type[Any] = SAMPLERS.get("prefix-sharing" if reason is None else "chunked")
        chosen: Sampler = kind(truncation=self.truncation, max_rows=self.max_rows)
        return chosen


@functools.cache  # one line per reason, not one per batch
def _announce(max_rows: int, reason: str) -> None:
    logger.warning("sampling by plain decoding in chunks of %d rows, because of %s", max_rows, reason)
