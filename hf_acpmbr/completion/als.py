"""Plain ALS on the target's scores alone, as PMBR does.

"Efficient Minimum Bayes Risk Decoding using Low-Rank Matrix Completion Algorithms", https://arxiv.org/abs/2406.02832
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from .agreement_als import AgreementALS
from .base import Completion, Factors, GuideMasks, GuideScores, Scores, check_settings


@dataclass(frozen=True)
class ALS:
    """Minimise Σ_observed (o_ij − u_iᵀv_j)² + λ(‖U‖² + ‖V‖²): the sweeps of `AgreementALS` without a guide.

    Args: see `AgreementALS`.
    """

    rank: int = 8
    regularization: float = 0.1
    max_sweeps: int = 30
    tolerance: float = 1e-4
    center: bool = True
    seed: int = 0
    absolute_tolerance: bool = False

    def __post_init__(self) -> None:
        check_settings(self.rank, self.regularization, self.max_sweeps, self.tolerance)

    def complete(
        self,
        scores: Scores,
        mask: npt.ArrayLike | None = None,
        guide_scores: GuideScores = None,
        guide_mask: GuideMasks = None,
        init: Factors | None = None,
    ) -> Completion:
        """Complete (N, M) scores from the observed entries; guides are ignored.

        Args:
            scores: (N, M) with `mask`, or ObservedScores.
            init: factors (U, V) to start from, (N, d) and (M, d).
        """
        solver = AgreementALS(
            self.rank,
            self.regularization,
            (),
            self.max_sweeps,
            self.tolerance,
            self.center,
            self.seed,
            self.absolute_tolerance,
        )
        return solver.complete(scores, mask, init=init)
