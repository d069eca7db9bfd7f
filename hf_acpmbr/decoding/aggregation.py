"""Reference aggregation: one averaged pseudo-reference instead of M."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray
from ..config import integer, setting
from ..decision import Decision
from ..scoring import Ask, Scorer
from .base import Decoder, Problem, Steps, best_first, top
from .draws import Draws


@dataclass(frozen=True)
class AggregationMBR(Decoder):
    """Compare every candidate with the mean representation of the pseudo-references: N calls instead of N·M.

    The representation is the utility's own: n-gram counts for chrF, sentence vectors for COMET. With K partitions the
    pseudo-references are dealt at random into K equal parts, each is averaged, and the K scores are averaged; K = M is
    MBR. `fine` > 0 scores that many of the best with full MBR ("aggregate-to-fine").

    "Linear-time Minimum Bayes Risk Decoding with Reference Aggregation", https://arxiv.org/abs/2402.04251
    """

    partitions: int = setting(1, integer(1), help="K, into how many averages the pseudo-references go.")
    fine: int = setting(
        0, integer(0), help="how many of the best candidates to score again against all pseudo-references; 0 for none."
    )

    name: ClassVar[str] = "aggregation"

    def decide(self, problem: Problem) -> Steps[Decision]:
        utility = problem.target.utility
        if not utility.can_aggregate:
            raise ValueError(
                f"{self.name} averages the pseudo-references' representations, which {utility.name!r} does not have: "
                "use a utility with n-gram counts or cached sentence vectors such as 'chrf' or 'comet', "
                "or another decoder such as 'halving'"
            )
        n, m = problem.shape
        counts = Draws.of(problem).split(min(self.partitions, problem.drawn[1]))
        sizes = counts.sum(axis=1, keepdims=True)
        target = problem.target
        scores = yield Ask.call(target, lambda: finite(target, target.aggregate_scores(np.arange(n), counts / sizes)))
        expected = scores @ (sizes[:, 0] / sizes.sum())
        refined = np.zeros(n)
        if self.fine:
            best = top(problem.merit(utility, expected), self.fine)
            refined[best] = 1
            judged = yield Ask.block(target, best, np.arange(m))
            expected[best] = judged @ problem.references.weights
        return self.decision(
            problem,
            expected,
            f"{m} pseudo-references averaged into {len(counts)}" + (f", best {self.fine} in full" if self.fine else ""),
            deciding=problem.target,
            rates=[(problem.target, n * m / max(problem.target.calls, 1))],
            order=best_first(refined, problem.merit(utility, expected)),
        )


def finite(scorer: Scorer, scores: FloatArray) -> FloatArray:
    """Return `scores`, refused if any is NaN or infinite: the engine checks only scores of pairs."""
    if not np.isfinite(scores).all():
        raise ValueError(
            f"utility {scorer.utility.name!r} gave NaN or infinity for {int((~np.isfinite(scores)).sum())} of "
            f"{scores.size} averaged references: check the texts, or score in dtype='float32'"
        )
    return scores
