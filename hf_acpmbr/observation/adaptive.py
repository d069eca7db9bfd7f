"""Spend the target's budget in a few rounds, each on the candidates that can still be the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..checks import number
from ..matrix import Pairs
from ..protocols import Posterior, View
from ..stage import Stage, setting
from .balanced import balanced

# How many posterior deviations a candidate is given the benefit of when it is decided who can still be the best, and
# has to answer for when the best is chosen: who was hardly tried should be tried, not returned.
_DOUBT = 1.5
_ROUNDS = 5
# Before it can stop early: one round of candidates that the guide likes says little about the others.
_LEAST_ROUNDS = 2
# Pseudo-references for each candidate of the first round, and the shares of its candidates that the guide chooses and
# that are drawn most often; the rest is random. It shows how far the guide can be trusted.
_FIRST_DEPTH, _GUIDED, _PROMINENT = 3, 0.5, 0.25
# Scores of a text with itself, asked in the first round: two show whether they are all the same.
_SELF_PAIRS = 2


@dataclass(frozen=True)
class Adaptive(Stage):
    """Successive halving on the posterior of a completion.

    The first of five rounds tries some candidates: half of them the guide's favourites, a quarter those drawn most, the
    rest at random, so that it shows how far the guide can be trusted. Every further round takes those that can still be
    the best by the posterior of all scores so far, from the third on at most about half as many as in the round before.
    All candidates of a round are brought to the same depth in one sequence of pseudo-references, drawn by weight
    without replacement, so that what a pseudo-reference does to every candidate cancels. The guide is the control
    variate: the completion carries its calibrated estimate, and the target's scores only have to tell the difference.
    In the end the candidate whose posterior is highest at its lower end is chosen.

    Correlated sequential halving: "Ultra Fast Medoid Identification via Correlated Sequential Halving",
    https://arxiv.org/abs/1906.04356; for MBR without a guide, https://arxiv.org/abs/2401.02749.

    Args:
        confidence: stop early when the leader is the best with at least this probability; 1 spends the whole budget.
    """

    confidence: float = setting(0.99, number(0, 1, above=True, note="1 never stops early"))

    name: ClassVar[str] = "adaptive"
    in_rounds: ClassVar[bool] = True

    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """Pairs for the guides, of which nothing is known beforehand: a balanced mask."""
        return balanced(shape, budget, seed)

    def plan(self, view: View, budget: int, seed: int) -> AdaptivePlan:
        """A plan for one source, with at most `budget` pairs in all rounds together."""
        if budget < 1:
            raise ValueError(f"budget must be at least 1, got {budget}")
        random = np.random.default_rng(seed)
        # Exponential races: the order of arrival is a draw by weight without replacement.
        with np.errstate(divide="ignore"):
            order = np.argsort(random.exponential(size=view.shape[1]) / view.weights, kind="stable")
        standing = np.lexsort((random.random(view.shape[0]), -view.prominence.astype(np.float64)))
        return AdaptivePlan(view.shape, budget, self.confidence, order, standing, random)


@dataclass(eq=False)
class AdaptivePlan:
    """Asks for pairs round by round: `next` with the posterior so far, until it gives none.

    Args:
        shape: (N, M).
        budget: pairs in all.
        confidence: of stopping early.
        order: (M,) the pseudo-references in the order in which they are used.
        standing: (N,) the candidates, the most prominent first.
        random: for the first round.
        sizes: how many candidates took part in every round so far.
        stopped_early: whether the leader was sure before the budget was spent.
        spent: pairs asked for so far.
    """

    shape: tuple[int, int]
    budget: int
    confidence: float
    order: IntArray
    standing: IntArray
    random: np.random.Generator
    sizes: list[int] = field(default_factory=list)
    stopped_early: bool = False
    spent: int = 0

    def __post_init__(self) -> None:
        self._depth = np.zeros(self.shape[0], dtype=np.int64)
        self._asked = np.empty(0, dtype=np.int64)
        self._foretold: tuple[FloatArray, FloatArray] | None = None
        self._moved = self._gone = 0.0
        self._own = np.empty(0, dtype=np.int64)
        self._to_go = _ROUNDS

    @property
    def rounds(self) -> tuple[int, ...]:
        """How many candidates took part in each round so far."""
        return tuple(self.sizes)

    def next(self, posterior: Posterior) -> Pairs:
        """The pairs of the next round, given what the guide and then the posterior say; none when it is done."""
        mean, deviation = posterior.mean, _deviations(posterior)
        checked = self._checked(mean, deviation)
        tried = self._to_go > 0 and len(self.sizes) >= _LEAST_ROUNDS and self.confidence < 1
        if tried and confidence_in(self._best_first(mean, checked)[0], mean, checked) >= self.confidence:
            self.stopped_early = True
        pairs = Pairs.none(self.shape)
        while not (self.stopped_early or len(pairs)) and self._to_go:
            allowance = (self.budget - self.spent) // self._to_go
            self._to_go -= 1
            if allowance:
                survivors = self._survivors(mean, deviation, allowance)
                own = self._self_pairs(survivors, allowance)
                pairs = self._deepen(survivors, allowance - len(own), own)
        if len(pairs):
            self.sizes.append(len(survivors))
            self.spent += len(pairs)
            self._asked = survivors
        return pairs

    def _checked(self, mean: FloatArray, deviation: FloatArray) -> FloatArray:
        """(N,) the deviations, widened as far as the posteriors before the last rounds proved too sure of themselves.

        How far a round should have moved a candidate, among the others, is known beforehand: the part of its variance
        that is gone.
        """
        if self._foretold is not None and len(self._asked):
            before, doubt = self._foretold
            gone = (np.square(doubt) - np.square(deviation))[self._asked]
            moved = (mean - before - np.mean(mean - before))[self._asked]
            told = gone > 1e-3 * np.square(doubt[self._asked])
            self._moved += float(np.sum(np.square(moved[told])))
            self._gone += float(np.sum(gone[told]))
            self._asked = self._asked[:0]
        if self.sizes:
            self._foretold = mean, deviation
        return deviation * math.sqrt(max(1.0, self._moved / self._gone)) if self._gone else deviation

    def ranking(self, posterior: Posterior) -> IntArray:
        """(N,) candidates from best to worst by what can be relied on: the posterior's lower end."""
        return self._best_first(posterior.mean, self._checked(posterior.mean, _deviations(posterior)))

    def _best_first(self, mean: FloatArray, deviation: FloatArray) -> IntArray:
        return np.argsort(_DOUBT * deviation - mean, kind="stable")

    @property
    def status(self) -> str:
        """How it went, for people."""
        went = " → ".join(map(str, self.sizes))
        ended = f"stopped early, the leader is {self.confidence:.4g} sure" if self.stopped_early else "all rounds done"
        return f"{self.spent} of {self.budget} target scores in rounds of {went} candidates, {ended}"

    def _survivors(self, mean: FloatArray, deviation: FloatArray, allowance: int) -> IntArray:
        n, m = self.shape
        depth = 2 ** len(self.sizes) if self.sizes else _FIRST_DEPTH
        # No fewer than can use up what the round may spend.
        size = min(max(allowance // depth, 2, math.ceil(allowance / m)), n, max(allowance, 1))
        optimistic = mean + _DOUBT * deviation
        ranked = np.argsort(-optimistic, kind="stable")
        if self.sizes:
            plausible = np.count_nonzero(optimistic >= np.max(mean - _DOUBT * deviation))
            return ranked[: min(size, max(plausible, 2, math.ceil(allowance / m)))]
        favourites = ranked[: math.ceil(_GUIDED * size)]
        others = self.standing[~np.isin(self.standing, favourites)]
        prominent, rest = np.split(others, [math.ceil(_PROMINENT * size)])
        return np.concatenate([favourites, prominent, self.random.permutation(rest)])[:size]

    def _self_pairs(self, survivors: IntArray, allowance: int) -> IntArray:
        """In a square matrix the first round also asks how some candidates score with themselves."""
        if self.sizes or self.shape[0] != self.shape[1] or allowance < len(survivors) + _SELF_PAIRS:
            return np.empty(0, dtype=np.int64)
        self._own = survivors[:_SELF_PAIRS]
        return self._own

    def _deepen(self, survivors: IntArray, allowance: int, own: IntArray) -> Pairs:
        """Bring all survivors to the same depth in the order of pseudo-references, as deep as the allowance reaches."""
        depths = np.arange(1, self.shape[1] + 1)
        have = np.sort(self._depth[survivors])
        # Σ_i max(0, depth − have_i), for every depth at once.
        below = np.searchsorted(have, depths, side="left")
        cost = below * depths - np.concatenate([[0], np.cumsum(have)])[below]
        depth = int(np.searchsorted(cost, allowance, side="right"))
        counts = np.maximum(depth - self._depth[survivors], 0)
        rows = np.repeat(survivors, counts)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + self._depth[rows]
        columns = self.order[place]
        self._depth[survivors] = np.maximum(self._depth[survivors], depth)
        asked = np.isin(rows, self._own) & (rows == columns)
        rows, columns = np.concatenate([rows[~asked], own]), np.concatenate([columns[~asked], own])
        return Pairs(rows, columns, self.shape)


def confidence_in(leader: int, mean: FloatArray, deviation: FloatArray) -> float:
    """How sure it is, for normal posteriors, that `leader` is the best: at least 1 − Σ_i P(i beats it)."""
    others = np.arange(len(mean)) != leader
    spread = np.sqrt(2 * (np.square(deviation[others]) + deviation[leader] ** 2))
    gap = mean[leader] - mean[others]
    with np.errstate(divide="ignore", invalid="ignore"):
        certain = np.where(gap == 0, 0.0, np.copysign(np.inf, gap))
        beaten = [0.5 * math.erfc(z) for z in np.where(spread > 0, gap / spread, certain)]
    return max(0.0, 1.0 - math.fsum(beaten))


def _deviations(posterior: Posterior) -> FloatArray:
    if posterior.deviation is None:
        raise ValueError("adaptive needs posteriors with deviations: choose a completer that knows how sure it is")
    return posterior.deviation
