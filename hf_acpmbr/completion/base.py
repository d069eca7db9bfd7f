"""The contract of completers: what they take, what they return, and when their sweeps may stop."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray
from ..config import Stage
from ..matrix import ObservedScores

# An (N, M) numpy array, torch tensor or nested list, or the sparse form that the stages exchange.
Scores: TypeAlias = "ObservedScores | npt.ArrayLike"
GuideScores: TypeAlias = "Scores | Sequence[Scores] | None"
GuideMasks: TypeAlias = "npt.ArrayLike | Sequence[npt.ArrayLike | None] | None"
Floats: TypeAlias = npt.NDArray[np.floating]
Factors: TypeAlias = "tuple[npt.ArrayLike, ...]"

# A last sweep that lowered the objective by more than this share was cut off in real progress; smaller
# last steps are not worth a line per source.
_WORTH_A_WARNING = 0.02


class ConvergenceWarning(UserWarning):
    """A solver stopped at its limit of sweeps before the objective had settled."""


class PaperWarning(UserWarning):
    """A setting of the paper says next to nothing for these scores, or for this number of samples."""


@dataclass(frozen=True, eq=False)
class Completion:
    """A completed score matrix O ≈ U Vᵀ + offset, kept as factors.

    Args:
        row_factors: U, (N, d).
        column_factors: V, (M, d).
        offset: what was removed from the scores before factorising (0 without centring).
        sweeps: how many sweeps were made.
        converged: whether the objective settled before the limit of sweeps.
        objective: the value of the objective after every sweep.
        guide_factors: (U′, V′) of every guide.
    """

    row_factors: Floats
    column_factors: Floats
    offset: float = 0.0
    sweeps: int = 0
    converged: bool = True
    objective: tuple[float, ...] = ()
    guide_factors: tuple[tuple[Floats, Floats], ...] = field(default=(), repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row_factors), len(self.column_factors)

    @cached_property
    def matrix(self) -> Floats:
        """(N, M), built at the first use."""
        return np.asarray(self.row_factors @ self.column_factors.T + self.offset)

    def expected(self, weights: npt.ArrayLike | None = None) -> Floats:
        """Return the (N,) weighted means of the rows, without the matrix. Default: all columns weigh the same."""
        m = len(self.column_factors)
        share = np.full(m, 1.0 / m) if weights is None else np.asarray(weights, dtype=np.float64)
        if share.shape != (m,):
            raise ValueError(f"weights has shape {share.shape}, expected ({m},): one for each pseudo-reference")
        share = share / share.sum()
        return np.asarray(self.row_factors @ (share @ self.column_factors) + self.offset)


class Completer(Stage, ABC):
    """Some scores → all of them. Subclasses are frozen dataclasses of their settings."""

    takes_guides: ClassVar[bool] = False  # whether the scores of guides help it
    takes_features: ClassVar[bool] = False  # whether numbers known of every candidate do

    def check_guides(self, count: int) -> None:
        """Refuse a number of guides that the settings do not fit."""
        if count and not self.takes_guides:
            raise ValueError(f"{self.name} uses no guide: choose agreement-als or transfer, or leave the guides out")

    @abstractmethod
    def solve(
        self,
        target: ObservedScores,
        guides: Sequence[ObservedScores],
        features: FloatArray | None = None,
        seed: int = 0,
        init: Factors | None = None,
    ) -> Completion:
        """Complete the target's matrix.

        Args:
            target: its observed entries; in a decoder, gains.
            guides: the same of every guide.
            features: (N, F) numbers known of every candidate, such as its log-probability or its
                length; a completer may leave them aside.
            seed: of what is drawn at random.
            init: factors to start from; only `complete` gives them.
        """

    def complete(
        self,
        target_scores: Scores,
        target_mask: npt.ArrayLike | None = None,
        guide_scores: GuideScores = None,
        guide_mask: GuideMasks = None,
        init: Factors | None = None,
        *,
        row_features: npt.ArrayLike | None = None,
    ) -> Completion:
        """Complete the target's (N, M) scores from its own and the guides' observed entries.

        Args:
            target_scores: (N, M) with `target_mask`, or ObservedScores.
            guide_scores: the same for a guide, or a list of guides; None uses the target alone.
            init: factors to start from, (U, V), each (n, d), for all matrices; agreement-als also
                takes (U, V, U′, V′, …).
            row_features: (N,) or (N, F) numbers known of every candidate, for `transfer`.
        """
        if row_features is not None and not self.takes_features:
            raise ValueError(f"{self.name} uses no row_features: choose transfer, or leave them out")
        target = as_observed(target_scores, target_mask, "target_scores")
        guides = as_guides(guide_scores, guide_mask, target.shape)
        features = None if row_features is None else np.asarray(row_features, dtype=np.float64)
        return self.solve(target, guides, features, init=init)


def as_observed(scores: Scores, mask: npt.ArrayLike | None, name: str) -> ObservedScores:
    """Return the sparse form of either kind of input, refused if nothing was observed."""
    if isinstance(scores, ObservedScores):
        if mask is not None:
            raise ValueError(f"{name} is ObservedScores, which knows its pairs: leave its mask out")
        observed = scores
    else:
        observed = ObservedScores.from_dense(scores, mask)
    if not len(observed):
        raise ValueError(f"{name} holds no observed score: score at least one pair")
    return observed


def as_guides(scores: GuideScores, mask: GuideMasks, shape: tuple[int, int]) -> list[ObservedScores]:
    """Return the guides as a list; one matrix is a list of one, a list or tuple of matrices is several."""
    if scores is None or (isinstance(scores, (list, tuple)) and not scores):
        return []
    several = isinstance(scores, (list, tuple)) and (isinstance(scores[0], ObservedScores) or np.ndim(scores[0]) == 2)
    matrices = cast("Sequence[Scores]", scores) if several else [cast("Scores", scores)]
    masks = [cast("npt.ArrayLike | None", mask)] * len(matrices)
    if several and mask is not None:
        masks = list(cast("Sequence[npt.ArrayLike | None]", mask))
    if len(masks) != len(matrices):
        raise ValueError(f"guide_mask has {len(masks)} masks for {len(matrices)} guides: give one for each")
    guides = [
        as_observed(matrix, flags, f"guide_scores[{k}]")
        for k, (matrix, flags) in enumerate(zip(matrices, masks, strict=True))
    ]
    for k, guide in enumerate(guides):
        if guide.shape != shape:
            raise ValueError(f"guide_scores[{k}] has shape {guide.shape}, the target {shape}: they must agree")
    return guides


@dataclass
class Settling:
    """When the objective has settled: its last change is below `tolerance`, relative to its value or absolute.

    An absolute tolerance depends on the metric's range: 1e-4 never stops on 0–100 scores and stops too early on tiny
    ones. Relative to the objective it means the same for all.
    """

    tolerance: float
    absolute: bool
    max_sweeps: int
    history: list[float] = field(default_factory=list)

    def settled(self, objective: float) -> bool:
        """Record the objective after a sweep; True when it no longer changes, at the earliest after the second."""
        self.history.append(objective)
        if len(self.history) < 2:
            return False
        change = abs(self.history[-2] - self.history[-1])
        return change <= self.tolerance * (1.0 if self.absolute else max(self.history[-2], np.finfo(float).tiny))

    def warn_unless(self, converged: bool) -> None:
        """Warn if the limit of sweeps cut off real progress."""
        if converged or len(self.history) < 2:
            return
        change = 1.0 - self.history[-1] / self.history[-2] if self.history[-2] > 0 else 0.0
        if change > _WORTH_A_WARNING:
            warnings.warn(
                f"the completion stopped after {self.max_sweeps} sweeps with the objective still falling by "
                f"{change:.1%} per sweep: raise max_sweeps",
                ConvergenceWarning,
                stacklevel=4,
            )
