"""What the stages offer one another. Optional abilities are declared here, typed, and never guessed from attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from .candidates import FloatArray, IntArray
from .matrix import ObservedScores, Pairs

if TYPE_CHECKING:
    from .sampling.base import Request, Samples


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is expected of every candidate so far, as gains (more is better).

    Args:
        mean: (N,).
        deviation: (N,) standard deviations, leaving out what moves all candidates alike; None where nobody knows.
    """

    mean: FloatArray
    deviation: FloatArray | None = None

    @classmethod
    def flat(cls, size: int) -> Posterior:
        """Nothing is known."""
        return cls(np.zeros(size), np.zeros(size))


@dataclass(frozen=True, eq=False)
class View:
    """What a plan may know of the matrix before any score.

    Args:
        shape: (N, M) unique candidates and pseudo-references.
        weights: (M,) how much every pseudo-reference counts.
        prominence: (N,) how often every candidate was drawn.
    """

    shape: tuple[int, int]
    weights: FloatArray
    prominence: npt.NDArray[np.floating | np.integer]

    @classmethod
    def plain(cls, shape: tuple[int, int]) -> View:
        """Every pseudo-reference counts the same and every candidate was drawn once."""
        return cls(shape, np.full(shape[1], 1.0 / shape[1]), np.ones(shape[0]))


class Plan(Protocol):
    """Asks for the target's pairs, round by round."""

    @property
    def status(self) -> str | None:
        """How it went, for people; None where there is nothing to tell."""
        ...

    @property
    def rounds(self) -> tuple[int, ...]:
        """How many candidates took part in each round; empty for a mask."""
        ...

    def next(self, posterior: Posterior) -> Pairs:
        """The pairs of the next round; none when it is done."""
        ...

    def ranking(self, posterior: Posterior) -> IntArray:
        """(N,) candidates from best to worst."""
        ...


class Observation(Protocol):
    """Which pairs are scored. `in_rounds`: the plan needs the guides' scores and a posterior with deviations."""

    name: ClassVar[str]
    in_rounds: ClassVar[bool]

    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """Pairs chosen before anything is known, as for the guides."""
        ...

    def plan(self, view: View, budget: int, seed: int) -> Plan:
        """A plan for the target's scores of one source, at most `budget` in all."""
        ...


class Completed(Protocol):
    """A completed matrix."""

    @property
    def sweeps(self) -> int: ...

    @property
    def converged(self) -> bool: ...

    @property
    def matrix(self) -> npt.NDArray[np.floating]: ...

    def posterior(self, weights: FloatArray) -> Posterior:
        """Means of the rows, each column weighted, and their deviations where the method knows them."""
        ...


class Fitted(Protocol):
    """A completer that has seen the guides."""

    def prior(self, weights: FloatArray, size: int) -> Posterior:
        """What the guides alone say of every row; flat without guides or where the method cannot tell."""
        ...

    def complete(self, target: ObservedScores, features: FloatArray | None = None) -> Completed:
        """The target's completed matrix, with what is known of every candidate besides."""
        ...


class Completer(Protocol):
    """From some scores to all of them.

    `takes_guides`: guides help it; `knows_deviations`: its posteriors say how sure they are, as plans in rounds need.
    """

    name: ClassVar[str]
    takes_guides: ClassVar[bool]
    knows_deviations: ClassVar[bool]

    def check_guides(self, count: int) -> None:
        """Refuse a number of guides that the settings do not fit."""
        ...

    def fit(self, guides: Sequence[ObservedScores], seed: int = 0) -> Fitted:
        """Take in the guides' gains, once for all rounds."""
        ...


class Sampler(Protocol):
    """Draws candidates for every source of a request."""

    name: ClassVar[str]

    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """n samples for each of the sources; same seed, same samples."""
        ...
