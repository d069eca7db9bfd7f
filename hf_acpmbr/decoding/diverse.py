"""Diverse MBR: an n-best list whose members are good and different."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import integer, number, optional, setting
from ..decision import Decision
from ..matrix import ObservedScores, Pairs
from ..scoring import Ask, Utility, UtilitySpec
from .base import Decoder, Gain, Problem, Steps, best_first, gains


@dataclass(frozen=True)
class DiverseMBR(Decoder):
    """Choose `size` candidates H that maximise Σ_{i∈H} E(i) − diversity · (1/|H|) Σ_{i∈H} Σ_{j∈H, j≠i} s(y_i, y_j).

    E is MBR's expected utility and s the similarity of two candidates, the mean of both directions; both are in units
    of the utilities' scales, with losses negated. diversity = 0 is MBR's n-best list. H is found greedily and then
    improved by exchanging single members until none helps. `nbest()` lists H, by expected utility.

    This is DMBR, equations 9 and 10 of "Generating Diverse and High-Quality Texts by Minimum Bayes Risk Decoding",
    https://arxiv.org/abs/2401.05054. The authors' code and mbrs divide the similarities by |H| − 1, not by the paper's
    |H|: their λ is `diversity` · (|H| − 1) / |H|. The paper's other method, k-medoids, is not offered.
    """

    size: int = setting(4, integer(1), help="how many candidates.")
    diversity: float = setting(0.5, number(0), help="the paper's λ.")
    similarity: UtilitySpec | None = setting(
        None,
        optional(UtilitySpec.check),
        help="utility that says how alike two candidates are, as `target` is given; None for the target.",
    )
    exchanges: int = setting(100, integer(0), help="at most this number of exchanges.")

    name: ClassVar[str] = "diverse"

    def decide(self, problem: Problem) -> Steps[Decision]:
        target = problem.target
        matrix = yield Ask.block(target)
        observed = ObservedScores(Pairs.full(problem.shape), matrix.reshape(-1))
        expected = matrix @ problem.references.weights
        value = problem.merit(target.utility, expected) / Gain.of(target.utility, observed.values).scale
        similarity = yield from self._similarity(problem)
        chosen = diverse_set(value, similarity, self.size, self.diversity, self.exchanges)
        member = np.zeros(len(value))
        member[chosen] = 1
        return self.decision(
            problem,
            expected,
            f"{len(chosen)} diverse candidates",
            deciding=target,
            rates=[(target, 1.0)],
            matrix=matrix,
            exact=True,
            observed=observed,
            order=best_first(member, value),
            nbest_size=len(chosen),
            shortlist=np.sort(chosen),
        )

    @cached_property
    def _alike(self) -> Utility | None:
        return None if self.similarity is None else self.similarity.load()

    def _similarity(self, problem: Problem) -> Steps[FloatArray]:
        """Ask for the (n, n) mean of both directions, more is more alike."""
        n = problem.shape[0]
        if self.size == 1 or self.diversity == 0:
            return np.zeros((n, n))
        scorer = problem.among_candidates(self._alike or problem.target.utility)
        every = np.arange(n)
        scores = yield Ask.block(scorer, every, every)
        alike = gains(scorer.utility, scores) / Gain.of(scorer.utility, scores).scale
        return np.asarray((alike + alike.T) / 2)


def diverse_set(value: FloatArray, similarity: FloatArray, size: int, diversity: float, exchanges: int) -> IntArray:
    """Choose greedily, then make the best single exchanges while they raise the objective.

    With H of final size h, adding i to H changes the objective by E(i) − 2·diversity/h · Σ_{j∈H} s(i, j).
    """
    n = len(value)
    h = min(size, n)
    pull = 2 * diversity / h
    chosen: list[int] = []
    crowd = np.zeros(n)  # Σ_{j∈H} s(i, j), with s(i, i) left out for members
    for _ in range(h):
        gain = value - pull * crowd
        gain[chosen] = -np.inf
        chosen.append(int(gain.argmax()))
        crowd += similarity[chosen[-1]]
    members = np.array(chosen, dtype=np.int64)
    for _ in range(exchanges if h < n else 0):
        others = np.setdiff1d(np.arange(n), members)
        own = np.diag(similarity)[members]
        loss = value[members] - pull * (crowd[members] - own)
        # Without member a, candidate b meets one neighbour less.
        gain_b = value[others][None, :] - pull * (crowd[others][None, :] - similarity[np.ix_(members, others)])
        change = gain_b - loss[:, None]
        a, b = np.unravel_index(int(change.argmax()), change.shape)
        if change[a, b] <= 1e-12 * max(1.0, float(np.abs(value).max())):
            break
        crowd += similarity[others[b]] - similarity[members[a]]
        members[a] = others[b]
    return members
