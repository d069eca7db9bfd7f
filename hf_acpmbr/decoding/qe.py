"""Quality estimation: reranking by a reference-free utility, and MBR among the candidates that it likes best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray
from ..config import flag, integer, setting
from ..utilities import Scorer
from ._ranking import gains, top
from ._shortlist import shortlist_decision
from .base import Decoder, Need
from .decision import Decision
from .problem import Problem


@dataclass(frozen=True)
class QERerank(Decoder):
    """The candidate with the best reference-free score: N calls, no pseudo-references.

    "Quality-Aware Decoding for Neural Machine Translation", https://arxiv.org/abs/2205.00978
    """

    name: ClassVar[str] = "qe"

    def _decide(self, problem: Problem) -> Decision:
        check_reference_free(self.name, problem.target, "target")
        return self._decision(
            problem,
            quality(problem, problem.target),
            "reference-free scores",
            deciding=problem.target,
            rates=[(problem.target, float(problem.drawn[1]))],
        )


@dataclass(frozen=True)
class QEFilterMBR(Decoder):
    """Keep the best candidates by a reference-free utility (the first guide), then MBR with the target among them.

    "Quality-Aware Decoding for Neural Machine Translation", https://arxiv.org/abs/2205.00978

    Args:
        keep: how many candidates stay.
        filter_references: the candidates that stay are also the only pseudo-references, as in the paper: keep² calls.
            With False, or where other pseudo-references were given, they meet all pseudo-references.
    """

    keep: int = setting(32, integer(1))
    filter_references: bool = setting(True, flag)

    name: ClassVar[str] = "qe-filter"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "guide"})

    def _decide(self, problem: Problem) -> Decision:
        guide = problem.guides[0]
        check_reference_free(self.name, guide, "first guide")
        judged = gains(guide.utility, quality(problem, guide))
        shortlist = top(judged, self.keep)
        both = self.filter_references and problem.references is problem.candidates
        columns = shortlist if both else np.arange(problem.shape[1])
        weights = problem.references.weights[columns]
        means = problem.score_block(problem.target, shortlist, columns) @ (weights / weights.sum())
        return shortlist_decision(self, problem, shortlist, means, judged)


def check_reference_free(decoder: str, scorer: Scorer, role: str) -> None:
    """Refuse a utility that compares with references."""
    if scorer.utility.needs_reference:
        raise ValueError(
            f"{decoder} needs a reference-free utility (quality estimation) as its {role}, but "
            f"{scorer.utility.name!r} compares with a reference: give one such as 'cometkiwi', "
            "or set needs_reference = False on your own Utility"
        )


def quality(problem: Problem, scorer: Scorer) -> FloatArray:
    """(n,) reference-free scores; the column is a formality."""
    return problem.score_block(scorer, np.arange(problem.shape[0]), np.zeros(1, dtype=np.int64))[:, 0]
