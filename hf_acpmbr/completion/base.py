"""The contract of completers: what they take and what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray
from ..config import Stage
from ..matrix import ObservedScores

Floats: TypeAlias = npt.NDArray[np.floating]


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
        correction: what single entries have beyond the factors.
        guide_factors: (U′, V′) of every guide, if they are of the same form.
    """

    row_factors: Floats
    column_factors: Floats
    offset: float = 0.0
    sweeps: int = 0
    converged: bool = True
    objective: tuple[float, ...] = ()
    correction: ObservedScores | None = field(default=None, repr=False)
    guide_factors: tuple[tuple[Floats, Floats], ...] = field(default=(), repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row_factors), len(self.column_factors)

    @cached_property
    def matrix(self) -> Floats:
        """(N, M), built at the first use."""
        matrix = np.asarray(self.row_factors @ self.column_factors.T + self.offset)
        if self.correction is not None:
            matrix[self.correction.rows, self.correction.columns] += self.correction.values
        return matrix

    def expected(self, weights: npt.ArrayLike | None = None) -> Floats:
        """Return the (N,) weighted means of the rows, without the matrix. Default: all columns weigh the same."""
        m = len(self.column_factors)
        share = np.full(m, 1.0 / m) if weights is None else np.asarray(weights, dtype=np.float64)
        if share.shape != (m,):
            raise ValueError(f"weights has shape {share.shape}, expected ({m},): one for each pseudo-reference")
        means = np.asarray(self.row_factors @ (share / share.sum() @ self.column_factors) + self.offset)
        if self.correction is None:
            return means
        extra = self.correction.values * share[self.correction.columns] / share.sum()
        return np.asarray(means + np.bincount(self.correction.rows, weights=extra, minlength=len(means)))


class Completer(Stage, ABC):
    """Some scores → all of them. Subclasses are frozen dataclasses of their settings."""

    takes_guides: ClassVar[bool] = False  # whether the scores of guides help it

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
    ) -> Completion:
        """Complete the target's (N, M) matrix.

        Args:
            target: its observed entries; in a decoder, gains.
            guides: the same of every guide.
            features: (N, F) finite numbers known of every candidate, such as its log-probability or its
                length; a completer may leave them aside.
            seed: of what is drawn at random.
        """
