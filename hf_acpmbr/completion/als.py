"""Alternating least squares: on the target's scores alone, and together with the matrices of guides.

"Efficient Minimum Bayes Risk Decoding using Low-Rank Matrix Completion Algorithms", https://arxiv.org/abs/2406.02832
"Agreement-Constrained Probabilistic Minimum Bayes Risk Decoding", https://arxiv.org/abs/2512.01316

Deviations from the second paper's Algorithm 1:

1. Scores are standardised first, and the tolerance is relative to the objective; `center=False` and
   `absolute_tolerance=True` are the paper's.
2. Factors are initialised once, before the sweeps; the algorithm prints it inside the loop.
3. The random start is non-negative, shared by all matrices, and 0 for rows and columns without any score.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray
from ..config import flag, integer, nested, number, optional, setting, several
from ..matrix import ObservedScores
from .base import Completer, Completion, ConvergenceWarning, Floats, PaperWarning
from .normal_equations import DenseSums, Observations, SparseSums, mean_and_spread, solve_rows

# A last sweep that lowered the objective by more than this share was cut off in real progress; smaller
# last steps are not worth a line per source.
_WORTH_A_WARNING = 0.02


def _gamma(name: str, value: object) -> float | tuple[float, ...]:
    each = number(0)
    if isinstance(value, (list, tuple, np.ndarray)):
        return several(each, least=0)(f"{name} (γ)", list(value))
    return each(f"{name} (γ)", value)


@dataclass(frozen=True)
class Factorisation(Completer):
    """The settings that all ALS variants share, and their sweeps."""

    rank: int = setting(8, integer(1), help="d, the number of factors.")
    regularization: float = setting(
        0.1,
        number(0),
        help="λ, the weight of the factors' squared norms, for scores with a standard deviation of 0.1, to which "
        "they are brought first unless `center` is False.",
    )
    max_sweeps: int = setting(30, integer(1), help="stop after this number of sweeps at the latest.")
    tolerance: float = setting(
        1e-4, number(0), help="stop when a sweep changes the objective by less than this share of its value."
    )
    center: bool = setting(
        True,
        flag,
        help="bring the observed scores of each matrix to mean 0 and a standard deviation of 0.1 first and the result "
        "back, so that a row without scores is average instead of zero, and λ means the same for every metric. False "
        "is the paper to the letter.",
    )
    absolute_tolerance: bool = setting(
        False,
        flag,
        help="take `tolerance` as an absolute change of the objective, as the paper does for scores in [0, 1].",
    )
    seed: int | None = setting(
        None,
        optional(integer(0)),
        help="seed of the random starting factors, which all matrices share; None takes that of the run.",
    )

    def gammas(self, guides: int) -> list[float]:
        """Return γ of every guide."""
        self.check_guides(guides)
        return []

    def solve(
        self,
        target: ObservedScores,
        guides: Sequence[ObservedScores],
        features: FloatArray | None = None,
        seed: int = 0,
        init: Sequence[npt.ArrayLike] | None = None,
    ) -> Completion:
        """Sweep over all matrices until the objective has settled; a factorisation leaves features aside.

        `init` are factors to start from: (U, V), each (n, d), for all matrices, or (U, V, U′, V′, …).
        """
        gammas = self.gammas(len(guides))
        prepared = [Observations.prepare(scores, self.center) for scores in (target, *guides)]
        if not self.center:
            self._warn_if_erased(target)
        rows, columns = starting_factors(prepared, self.rank, seed if self.seed is None else self.seed, init)
        history: list[float] = []
        converged = False
        while not converged and len(history) < self.max_sweeps:
            half_sweep([p.rows for p in prepared], columns, rows, self.regularization, gammas)
            fits = half_sweep([p.columns for p in prepared], rows, columns, self.regularization, gammas)
            history.append(self._objective(prepared, fits, rows, columns, gammas))
            if len(history) > 1:
                # Relative to its value, as an absolute change depends on the metric's range.
                unit = 1.0 if self.absolute_tolerance else max(history[-2], np.finfo(float).tiny)
                converged = abs(history[-2] - history[-1]) <= self.tolerance * unit
        fall = 1.0 - history[-1] / history[-2] if len(history) > 1 and history[-2] > 0 else 0.0
        if not converged and fall > _WORTH_A_WARNING:
            warnings.warn(
                f"the completion stopped after {self.max_sweeps} sweeps with the objective still falling by "
                f"{fall:.1%} per sweep: raise max_sweeps",
                ConvergenceWarning,
                stacklevel=3,
            )
        factors = [(u.T * u.dtype.type(p.scale), v.T) for u, v, p in zip(rows, columns, prepared, strict=True)]
        return Completion(
            *factors[0],
            offset=prepared[0].offset,
            sweeps=len(history),
            converged=converged,
            objective=tuple(history),
            guide_factors=tuple(factors[1:]),
        )

    def _warn_if_erased(self, target: ObservedScores) -> None:
        """Warn if λ is too large for what tells the candidates apart.

        λ(‖U‖² + ‖V‖²) takes λ off every singular value of UᵀV, and none of the deviations from the mean is above
        their root sum of squares.
        """
        spread = mean_and_spread(target.values)[1]
        if 0 < spread * len(target) ** 0.5 <= self.regularization:
            warnings.warn(
                f"regularization={self.regularization:g} erases what tells the candidates apart: {len(target)} scores "
                f"have a standard deviation of {spread:.1g} on the utility's scale. Say its scale, or take center=True",
                PaperWarning,
                stacklevel=3,
            )

    def _objective(
        self,
        prepared: list[Observations],
        fits: list[float],
        rows: list[Floats],
        columns: list[Floats],
        gammas: list[float],
    ) -> float:
        total = 0.0
        for observations, fit, u, v in zip(prepared, fits, rows, columns, strict=True):
            total += max(observations.square_sum + fit, 0.0) + self.regularization * (_dot(u, u) + _dot(v, v))
        for gamma, u, v in zip(gammas, rows[1:], columns[1:], strict=True):
            du, dv = rows[0] - u, columns[0] - v
            total += gamma * (_dot(du, du) + _dot(dv, dv))
        return total


@dataclass(frozen=True)
class ALS(Factorisation):
    """Minimise Σ_observed (o_ij − u_iᵀv_j)² + λ(‖U‖² + ‖V‖²), as PMBR does: `AgreementALS` without a guide."""

    name: ClassVar[str] = "als"


@dataclass(frozen=True)
class AgreementALS(Factorisation):
    """Minimise L_MF(U, V; Õ) + Σ_k [L_MF(U′_k, V′_k; Õ′_k) + γ_k (‖U − U′_k‖² + ‖V − V′_k‖²)] by closed-form sweeps.

    L_MF(U, V; O) = Σ_observed (o_ij − u_iᵀv_j)² + λ(‖U‖² + ‖V‖²). One guide is the paper's method. Within a sweep the
    guides' rows move first (towards the old u), then the target's (towards the new u′), then the columns likewise.
    """

    agreement: float | tuple[float, ...] = nested(
        _gamma,
        lambda: 0.1,
        help="γ, the weight of the agreement, or one γ per guide. The paper: 0.1 at r=32, 1.0 at r=1024.",
    )

    name: ClassVar[str] = "agreement-als"
    takes_guides: ClassVar[bool] = True

    def check_guides(self, count: int) -> None:
        self.gammas(count)

    def gammas(self, guides: int) -> list[float]:
        if not isinstance(self.agreement, tuple):
            return [float(self.agreement)] * guides
        if len(self.agreement) != guides:
            raise ValueError(f"agreement has {len(self.agreement)} values for {guides} guides: give one for each")
        return list(self.agreement)


def half_sweep(
    sides: Sequence[SparseSums | DenseSums],
    fixed: list[Floats],
    moving: list[Floats],
    ridge: float,
    gammas: list[float],
) -> list[float]:
    """Update the `moving` factors in place, guides (1, 2, …) first, the target (0) last.

    Returns what each solution v adds to Σo² to make its squared error, Σ_j (v_jᵀ G_j v_j − 2 v_jᵀ b_j). As v solves
    (G_j + ρI) v_j = b_j + p_j, that is Σ_j v_jᵀ(p_j − b_j) − ρ‖v‖², without another product with G.
    """
    fits = [0.0] * len(moving)
    pull = np.zeros_like(moving[0])
    for k in (*range(1, len(moving)), 0):
        first, second = np.triu_indices(len(fixed[k]))
        gram, moment = sides[k].sums(fixed[k][first] * fixed[k][second], fixed[k])
        towards = (gammas[k - 1] * moving[0]).astype(moving[k].dtype, copy=False) if k else pull
        total = ridge + (gammas[k - 1] if k else sum(gammas))
        moving[k] = solve_rows(gram, moment + towards, total)
        fits[k] = _dot(moving[k], towards - moment) - total * _dot(moving[k], moving[k])
        if k:
            pull += gammas[k - 1] * moving[k]
    return fits


def starting_factors(
    prepared: list[Observations], rank: int, seed: int, init: Sequence[npt.ArrayLike] | None
) -> tuple[list[Floats], list[Floats]]:
    """Return row and column factors of every matrix, each (d, n): from `init`, else random and shared by all."""
    n, m = prepared[0].shape
    if init is not None:
        factors = [np.asarray(part, dtype=np.float64) for part in init]
        if len(factors) == 2:
            factors = factors * len(prepared)
        if len(factors) != 2 * len(prepared):
            raise ValueError(
                f"init has {len(factors)} factors, expected 2 or {2 * len(prepared)} (U, V of each matrix)"
            )
        for k, factor in enumerate(factors):
            expected = (m if k % 2 else n, rank)
            if factor.shape != expected:
                raise ValueError(f"init[{k}] has shape {factor.shape}, expected {expected}")
        # They are of the scores as they are.
        factors = [factor / (1 if k % 2 else prepared[k // 2].scale) for k, factor in enumerate(factors)]
    else:
        rank = min(rank, n, m)  # more cannot fit better, and would cost more
        # Non-negative, so that every u_iᵀv̄ has the sign of row i's scores from the first sweep on: with few scores a
        # start of mixed signs averages the rows' effects away. E[u²]E[v²]·d equals the scores' mean square, so that
        # scaling the scores scales the start along with them.
        power = prepared[0].square_sum / prepared[0].count
        spread = (power / rank) ** 0.25 if power > 0 else 1.0
        random = np.random.default_rng(seed)
        factors = [np.abs(random.normal(0.0, spread, (size, rank))) for size in (n, m)]
        for side, factor in enumerate(factors):
            # Without any score the minimiser is 0; from elsewhere it is reached slowly, by γ/(λ+γ) per step.
            factor[~np.logical_or.reduce([p.seen[side] for p in prepared])] = 0.0
        factors = factors * len(prepared)
    arrays = [np.array(factor.T, dtype=prepared[k // 2].dtype, order="C") for k, factor in enumerate(factors)]
    return arrays[0::2], arrays[1::2]


def _dot(a: Floats, b: Floats) -> float:
    return float(np.einsum("dn,dn->", a, b, dtype=np.float64))
