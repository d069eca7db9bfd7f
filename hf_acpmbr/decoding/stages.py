"""What a decoder is handed: the completer, the observation and the budgets, by what it needs of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from ..candidates import FloatArray
from ..matrix import ObservedScores, Pairs


class CompletionLike(Protocol):
    sweeps: int
    converged: bool

    @property
    def matrix(self) -> FloatArray: ...

    def expected(self, weights: npt.ArrayLike | None = None) -> FloatArray: ...


class CompleterLike(Protocol):
    def complete(self, scores: Any, mask: Any = None, guide_scores: Any = None, /) -> CompletionLike: ...


class LearntLike(Protocol):
    def expected(self, weights: npt.ArrayLike, size: int) -> FloatArray: ...

    def complete(self, target: ObservedScores, *, row_features: npt.ArrayLike | None = None) -> Any: ...


@runtime_checkable
class LearningCompleter(Protocol):
    """Fits the guides once, takes what is known of the candidates, and knows how sure it is."""

    def learn(self, guides: Sequence[ObservedScores]) -> LearntLike: ...


class ObservationLike(Protocol):
    def __call__(self, shape: tuple[int, int], budget: int, seed: int, /) -> Pairs: ...


class BudgetLike(Protocol):
    def pairs(self, unique: tuple[int, int], drawn: tuple[int, int] | None = None) -> int: ...

    def rate(self, columns: int) -> float: ...
