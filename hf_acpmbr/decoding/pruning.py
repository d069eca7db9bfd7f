"""Confidence-based pruning: more and more pseudo-references for fewer and fewer candidates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import integer, number, setting, several
from ..decision import Decision
from ..scoring import Ask
from .base import Decoder, Problem, Steps, best_first
from .draws import Draws


@dataclass(frozen=True)
class PruningMBR(Decoder):
    """Grow the sample of pseudo-references; after each step drop candidates that are unlikely to be the best.

    With r pseudo-references so far, let y* be the best candidate on them. Bootstrap samples of these r give each
    candidate a win rate P(U(y) ≥ U(y*)); candidates whose win rate is not above 1 − α are dropped.

    "Faster Minimum Bayes Risk Decoding with Confidence-based Pruning", https://arxiv.org/abs/2311.14919
    """

    alpha: float = setting(
        0.99,
        number(0, 1, above=True, below=True),
        help="confidence; the higher, the fewer candidates are dropped by mistake.",
    )
    schedule: tuple[int, ...] = setting(
        (16, 32, 64, 128, 256),
        several(integer(1)),
        help="how many pseudo-references have been drawn after each step, rising.",
    )
    bootstrap: int = setting(500, integer(1), help="how many bootstrap samples.")

    name: ClassVar[str] = "pruning"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(later <= earlier for earlier, later in pairwise(self.schedule)):
            raise ValueError(f"schedule must rise from step to step, got {list(self.schedule)}")

    def decide(self, problem: Problem) -> Steps[Decision]:
        n = problem.shape[0]
        draws = Draws.of(problem)
        random = np.random.default_rng(problem.seed_for(1))
        expected, steps_survived = np.full(n, np.nan), np.zeros(n)
        alive: IntArray = np.arange(n)
        survivors = [n]
        for r in dict.fromkeys(min(step, len(draws)) for step in self.schedule):
            columns, counts = draws.part(0, r)
            scores = yield Ask.block(problem.target, alive, columns)
            expected[alive] = scores @ (counts / counts.sum())
            steps_survived[alive] += 1
            wins = win_rates(problem.merit(problem.target.utility, scores, alive), counts, self.bootstrap, random)
            alive = alive[wins > 1 - self.alpha]
            survivors.append(alive.size)
            if alive.size == 1:
                break
        steps_survived[alive] += 1
        return self.decision(
            problem,
            expected,
            f"pruned to {alive.size} of {n} with {r} of {len(draws)} pseudo-references",
            deciding=problem.target,
            rates=[(problem.target, problem.shape[0] * problem.shape[1] / max(problem.target.calls, 1))],
            exact=r == len(draws) and alive.size == n,
            order=best_first(steps_survived, problem.merit(problem.target.utility, expected)),
            rounds=tuple(survivors),
        )


def win_rates(values: FloatArray, counts: IntArray, bootstrap: int, random: np.random.Generator) -> FloatArray:
    """Return the (k,) share of bootstrap samples in which each candidate is at least as good as the best one.

    `values` is (k, u) gains against unique pseudo-references drawn `counts` times each. Drawing r = Σ counts of them
    with replacement is a multinomial over the unique ones, so all samples are one (k, u) × (u, bootstrap) product.
    """
    r = int(counts.sum())
    best = int(np.argmax(values @ counts))
    samples = random.multinomial(r, counts / r, size=bootstrap)
    # Differences to the best row, so that a row equal to it ties exactly.
    return np.asarray(((values - values[best]) @ samples.T >= 0).mean(axis=1))
