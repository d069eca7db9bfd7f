"""Quality estimation: reranking by a reference-free utility, and MBR among the candidates that it likes best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..config import flag, integer, setting
from ..decision import Decision
from ..scoring import Ask, Scorer
from .base import Decoder, Need, Problem, Steps, gains


@dataclass(frozen=True)
class QERerank(Decoder):
    """The candidate with the best reference-free score: N calls, no pseudo-references.

    "Quality-Aware Decoding for Neural Machine Translation", https://arxiv.org/abs/2205.00978
    """

    name: ClassVar[str] = "qe"

    def decide(self, problem: Problem) -> Steps[Decision]:
        check_reference_free(self.name, problem.target, "target")
        scores = yield ask_quality(problem, problem.target)
        return self.decision(
            problem,
            scores[:, 0],
            "reference-free scores",
            deciding=problem.target,
            rates=[(problem.target, float(problem.drawn[1]))],
        )


@dataclass(frozen=True)
class QEFilterMBR(Decoder):
    """Keep the best candidates by a reference-free utility (the first guide), then MBR with the target among them.

    "Quality-Aware Decoding for Neural Machine Translation", https://arxiv.org/abs/2205.00978
    """

    keep: int = setting(32, integer(1), help="how many candidates stay.")
    filter_references: bool = setting(
        True,
        flag,
        help="the candidates that stay are also the only pseudo-references, as in the paper: keep² "
        "calls. With False, or where other pseudo-references were given, they meet all "
        "pseudo-references.",
    )

    name: ClassVar[str] = "qe-filter"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "guide"})

    def decide(self, problem: Problem) -> Steps[Decision]:
        guide = problem.guides[0]
        check_reference_free(self.name, guide, "first guide")
        scores = yield ask_quality(problem, guide)
        judged = gains(guide.utility, scores[:, 0])
        shortlist = problem.shortlist(judged, guide, self.keep)
        both = self.filter_references and problem.references is problem.candidates
        columns = shortlist if both else np.arange(problem.shape[1])
        weights = problem.references.weights[columns]
        scores = yield Ask.block(problem.target, shortlist, columns)
        return self.shortlist_decision(problem, shortlist, scores @ (weights / weights.sum()), judged)


def check_reference_free(decoder: str, scorer: Scorer, role: str) -> None:
    """Refuse a utility that compares with references."""
    if scorer.utility.needs_reference:
        raise ValueError(
            f"{decoder} needs a reference-free utility (quality estimation) as its {role}, but "
            f"{scorer.utility.name!r} compares with a reference: give one such as 'cometkiwi', "
            "or set needs_reference = False on your own Utility"
        )


def ask_quality(problem: Problem, scorer: Scorer) -> Ask:
    """Ask for (n, 1) reference-free scores; the column is a formality."""
    return Ask.block(scorer, np.arange(problem.shape[0]), np.zeros(1, dtype=np.int64))
