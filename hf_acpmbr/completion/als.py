"""Plain ALS on the target's scores alone, as PMBR does.

"Efficient Minimum Bayes Risk Decoding using Low-Rank Matrix Completion Algorithms", https://arxiv.org/abs/2406.02832
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .agreement_als import Factorisation


@dataclass(frozen=True)
class ALS(Factorisation):
    """Minimise Σ_observed (o_ij − u_iᵀv_j)² + λ(‖U‖² + ‖V‖²): the sweeps of `AgreementALS` without a guide."""

    name: ClassVar[str] = "als"
