"""Several utilities decide together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray
from ..config import number, one_of, optional, setting, several
from ..decision import Decision
from ..matrix import Pairs
from .base import Decoder, Gain, Need, Problem, Steps, gains


def _shares(name: str, value: object) -> tuple[float, ...]:
    weights = several(number(0))(name, value)
    if not sum(weights):
        raise ValueError(f"{name} must not be all 0, got {list(weights)}")
    return weights


@dataclass(frozen=True)
class EnsembleMBR(Decoder):
    """Full MBR with the target and all guides as equals: a weighted mean of their judgements of each candidate.

    method "mean": Σ_k w_k E_k(i) / scale_k, expected utilities in units of each utility's scale, losses negated.
    method "rank": Σ_k w_k Q_k(i), where Q_k is the share of the drawn candidates that candidate i beats by utility k
    (ties count half): an average rank, which no utility can dominate by its spread.

    `expected` is this combination, more is better. Utilities on different devices are scored at the same time.
    "Quality-Aware Decoding for Neural Machine Translation", https://arxiv.org/abs/2205.00978, and the multi-aspect
    outlook of https://arxiv.org/abs/2512.01316.
    """

    method: str = setting("mean", one_of("mean", "rank"), help='"mean" or "rank".')
    weights: tuple[float, ...] | None = setting(
        None,
        optional(_shares),
        help="one for the target and one for each guide, not negative; None for equal ones. Only their ratios count.",
    )

    name: ClassVar[str] = "ensemble"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "guide"})
    any_guides: ClassVar[bool] = True

    def decide(self, problem: Problem) -> Steps[Decision]:
        scorers = (problem.target, *problem.guides)
        weights = np.array(self.weights or [1.0] * len(scorers))
        if len(weights) != len(scorers):
            raise ValueError(
                f"weights has {len(weights)} numbers for {len(scorers)} utilities (the target and {len(scorers) - 1} "
                "guides): give one for each, the target's first"
            )
        every = Pairs.full(problem.shape)
        observed = yield from problem.observe([(scorer, every) for scorer in scorers])
        opinions = []
        for scorer, scores in zip(scorers, observed, strict=True):
            mean = gains(scorer.utility, scores.values.reshape(problem.shape) @ problem.references.weights)
            ranked = self.method == "rank"
            scale = Gain.of(scorer.utility, scores.values).scale
            opinions.append(beaten(mean, problem.candidates.weights) if ranked else mean / scale)
        return self.decision(
            problem,
            weights / weights.sum() @ np.stack(opinions),
            f"every pair by {len(scorers)} utilities",
            deciding=None,
            rates=[(scorer, 1.0) for scorer in scorers],
            observed=observed[0],
            guides=tuple(observed[1:]),
        )


def beaten(values: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the (n,) share of draws with a lower value, ties counted half; `shares` (n,) add up to 1."""
    distinct, place = np.unique(values, return_inverse=True)
    mass = np.bincount(place.reshape(-1), weights=shares, minlength=distinct.size)
    below = np.cumsum(mass) - mass
    return np.asarray((below + mass / 2)[place.reshape(-1)])
