"""What the stages offer one another. Optional abilities are declared here, typed, and never guessed from attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from .candidates import FloatArray
from .matrix import ObservedScores, Pairs

if TYPE_CHECKING:
    from .sampling.base import Request, Samples


class Observation(Protocol):
    """Which pairs are scored."""

    name: ClassVar[str]

    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """`budget` of the N·M pairs, all if there are no more."""
        ...


class Completed(Protocol):
    """A completed matrix."""

    @property
    def sweeps(self) -> int: ...

    @property
    def converged(self) -> bool: ...

    @property
    def matrix(self) -> npt.NDArray[np.floating]: ...

    def expected(self, weights: FloatArray) -> npt.NDArray[np.floating]:
        """(N,) weighted mean of every row."""
        ...


class Completer(Protocol):
    """From some scores to all of them. `takes_guides`: guides help it."""

    name: ClassVar[str]
    takes_guides: ClassVar[bool]

    def check_guides(self, count: int) -> None:
        """Refuse a number of guides that the settings do not fit."""
        ...

    def solve(
        self, target: ObservedScores, guides: Sequence[ObservedScores], features: FloatArray | None, seed: int
    ) -> Completed:
        """The target's completed matrix, from its gains, the guides' and (N, F) numbers known of every candidate."""
        ...


class Sampler(Protocol):
    """Draws candidates for every source of a request."""

    name: ClassVar[str]

    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """n samples for each of the sources; same seed, same samples."""
        ...
