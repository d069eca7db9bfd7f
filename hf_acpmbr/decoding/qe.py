"""Quality estimation: reranking by a reference-free utility, and MBR among the candidates that it likes best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray
from ..utilities import Scorer
from ._checks import check_flag, check_reference_free, check_whole
from ._kept import kept_decision
from ._ranking import gains, top
from .base import Decoder, Problem
from .decision import Decision


@dataclass(frozen=True)
class QERerank(Decoder):
    """The candidate with the best reference-free score: N calls, no pseudo-references.

    "Quality-Aware Decoding for Neural Machine Translation", https://arxiv.org/abs/2205.00978
    """

    name: ClassVar[str] = "qe"

    def _decide(self, problem: Problem) -> Decision:
        assert problem.target is not None
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

    keep: int = 32
    filter_references: bool = True

    name: ClassVar[str] = "qe-filter"
    needs: ClassVar[frozenset[str]] = frozenset({"target", "guide"})

    def __post_init__(self) -> None:
        check_whole("keep", self.keep, 1, "candidates that stay")
        check_flag("filter_references", self.filter_references)

    def _decide(self, problem: Problem) -> Decision:
        assert problem.target is not None
        guide = problem.guides[0]
        check_reference_free(self.name, guide, "first guide")
        judged = gains(guide.utility, quality(problem, guide))
        kept = top(judged, self.keep)
        both = self.filter_references and problem.references is problem.candidates
        columns = kept if both else np.arange(problem.shape[1])
        weights = problem.references.weights[columns]
        means = problem.score_block(problem.target, kept, columns) @ (weights / weights.sum())
        return kept_decision(self, problem, kept, means, judged)


def quality(problem: Problem, scorer: Scorer) -> FloatArray:
    """(n,) reference-free scores; the column is a formality."""
    return problem.score_block(scorer, np.arange(problem.shape[0]), np.zeros(1, dtype=np.int64))[:, 0]
