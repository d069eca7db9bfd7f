"""What one step draws from: logits after processors and truncation, without the passes that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from ..candidates import IntArray
from ._processors import for_rows, holds_value_per_source, split_bans, without_normalisation, writes_into_scores
from .truncation import Truncation


@dataclass(frozen=True, eq=False)
class Step:
    """One row for each of U prefixes, over a vocabulary of V.

    Args:
        logits: (U, V) of the model, except that the constant bans stand in them as -inf.
        scores: (U, V) to draw from; the very same tensor where nothing changed the logits.
        removed: (U,) logsumexp of the logits that the bans replaced; None without bans.
        epsilon: tokens below this probability are still to be cut; None where nothing is.
        cuts: whether most tokens are likely to be cut, by ε or in the scores.
    """

    logits: torch.Tensor
    scores: torch.Tensor
    removed: torch.Tensor | None = None
    epsilon: float | None = None
    cuts: bool = True

    @property
    def unchanged(self) -> bool:
        """Whether one normalisation serves the model's log-probabilities and the sampling distribution."""
        return self.scores is self.logits

    def with_removed(self, normaliser: torch.Tensor) -> torch.Tensor:
        """(U,) logsumexp of the model's own logits, from that of `logits`."""
        return normaliser if self.removed is None else torch.logaddexp(normaliser, self.removed.to(normaliser.dtype))

    def rows(self, start: int, end: int) -> Step:
        """A part of the rows."""
        if start == 0 and end >= len(self.scores):
            return self
        return self._each(lambda tensor: tensor[start:end])

    def to(self, device: str) -> Step:
        """The same on another device."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Step:
        logits = change(self.logits)
        scores = logits if self.unchanged else change(self.scores)
        removed = None if self.removed is None else change(self.removed)
        return Step(logits, scores, removed, self.epsilon, self.cuts)


class Scoring:
    """From the logits of prefixes to the Step that is drawn from: a request's processors, then the truncation.

    `count` is the number of sources that the processors were made for.
    """

    def __init__(
        self, processors: LogitsProcessorList, truncation: Truncation, device: torch.device, count: int = 1
    ) -> None:
        self._count = count
        warpers, self._epsilon = truncation.up_to_epsilon(str(device))
        if self._epsilon and not warpers:
            processors = without_normalisation(processors)
        banned, constraints = split_bans(processors)
        self._copy = any(map(writes_into_scores, constraints))
        self._cuts = bool(self._epsilon) or bool(warpers)
        # One by one: a LogitsProcessorList looks up each signature at every call, which a small model notices.
        self._all: list[LogitsProcessor] = [*constraints, *warpers]
        self._keyed = any(map(holds_value_per_source, self._all))
        self._banned = torch.tensor(banned, device=device) if banned else None

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor, sources: IntArray) -> Step:
        """`ids`: (U, P + t); `logits`: (U, V), float32, which this may write into; `sources`: (U,)."""
        removed = None
        if self._banned is not None:
            removed = logits[:, self._banned].logsumexp(dim=-1)
            logits[:, self._banned] = -torch.inf
        scores = logits.clone() if self._copy else logits
        for process in [for_rows(item, sources, self._count) for item in self._all] if self._keyed else self._all:
            scores = process(ids, scores)
        return Step(logits, scores, removed, self._epsilon, self._cuts)
