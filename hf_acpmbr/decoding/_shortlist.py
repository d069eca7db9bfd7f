"""The Decision of a decoder whose guide chose which candidates the target judges."""

from __future__ import annotations

import numpy as np

from ..candidates import FloatArray, IntArray
from ._ranking import best_first, gains
from .base import Decoder
from .decision import Decision
from .problem import Problem


def shortlist_decision(
    decoder: Decoder, problem: Problem, shortlist: IntArray, means: FloatArray, judged: FloatArray
) -> Decision:
    """The shortlisted candidates by the target, the others behind them by the guide.

    Args:
        decoder: whose Decision it is.
        problem: with a target and a guide.
        shortlist: (k,) candidates that the target judged.
        means: (k,) what it said.
        judged: (n,) the guide's view of all candidates, more is better.
    """
    n, guide = problem.shape[0], problem.guides[0]
    expected, stays = np.full(n, np.nan), np.zeros(n)
    expected[shortlist], stays[shortlist] = means, 1
    return decoder._decision(
        problem,
        expected,
        f"best {shortlist.size} of {n} by {guide.utility.name}",
        deciding=problem.target,
        rates=[(s, n * problem.shape[1] / s.calls) for s in (problem.target, guide) if s.calls],
        order=best_first(stays, gains(problem.target.utility, expected), judged),
        shortlist=shortlist,
        guide_gains=judged,
    )
