"""What the choice among n draws is expected to lose against MBR over the m draws that one would have taken.

Two things are missing after n draws. The pseudo-references seen so far give each candidate's expected utility e with
noise, which m draws would lower; and better candidates may be among those not drawn yet. Both losses are read from a
decision's expected utilities and from a block of scores of its best candidates (the contenders):

References: the centred scores of the contenders against common pseudo-references give the covariance of the noise in
their e. In worlds drawn with it, scaled by √(1 − n/m) to what lies between n and m draws, the mean of
max_i e*_i − e*_leader is what the leader loses.

Candidates not drawn: M(k) is the expected maximum of e over k of the n draws, taken exactly. Its last gains
d1 = M(n) − M(n/2), d2 = M(n/2) − M(n/4) and d3 continue by a factor ρ per doubling: with
d = (d1 + ρ d2 + ρ² d3) / 3 the draws up to m gain d Σ_j ρ^j, j = 1 … log2(m/n).

Their sum is right on average over sentences, not for each. The careful bound is meant to hold for each: the draws are
split into halves A and B, A's references choose among A's candidates, and the mean over splits of what this choice
loses against the best contender by B's references is charged. It knows half as many draws as the choice itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..candidates import FloatArray, IntArray
from ..decision import Decision, DrawLoss
from ..recipe import EVERY_SENTENCE
from ..scoring import Ask, Source
from .base import Decoder, Problem, Steps

# Contenders, and the pseudo-references that each of them is scored against; most of these scores are known. A bound
# for every sentence has to see the rare references as well.
_BLOCK, _CAREFUL_BLOCK = (12, 24), (16, 192)
# ρ, what the gain of one doubling of the draws is of the gain of the doubling before.
_GAIN_PER_DOUBLING = 0.6
_WORLDS = 200
_SPLITS = 40
# The part of the stated loss that may be lost in the choice among the candidates there are. It uses far less of it.
_POOL_SHARE = 0.4
# Of a step from n draws to the next number: below √2 the same prefixes are computed again and again, and above 4 the
# forecast is a guess. When nearly all draws are needed, all are taken.
_LEAST_STEP, _MOST_STEP = math.sqrt(2), 4.0
_NEARLY_ALL = 0.8


@dataclass(frozen=True, eq=False)
class Part:
    """The first draws of a source, of which there can be more.

    Args:
        drawn: how many there are.
        most: how many there can be.
        sure: what the loss is estimated for (`Sampling.sure`).
        came: how many had been drawn when each text first came.
        earlier: the same source with fewer draws.
    """

    drawn: int
    most: int
    sure: str
    came: dict[str, int]
    earlier: Source[Decision] | None = None

    def decide(self, decoder: Decoder, problem: Problem) -> Steps[Decision]:
        """Decide among these draws and add what the choice may lose against MBR over all.

        Args:
            decoder: one whose `loss_bound` is not None.
            problem: whose candidates are the pseudo-references too.
        """
        if self.earlier is not None:
            problem.continue_from(self.earlier)
        if self.drawn < self.most:  # with all draws, as if they had come at once
            problem.loss_share = _POOL_SHARE
            problem.came = np.array([self.came[text] for text in problem.candidates.texts])
        return self._steps(decoder, problem)

    def _steps(self, decoder: Decoder, problem: Problem) -> Steps[Decision]:
        decision = yield from decoder.decide(problem)
        if self.drawn >= self.most:
            return decision.changed(draws=DrawLoss(self.drawn, self.most, 0.0, 0.0))
        loss = yield from self._loss(decision, problem)
        calls, cached, encodings, seconds = problem.costs()
        return decision.changed(draws=loss, calls=calls, cached=cached, encodings=encodings, seconds=seconds)

    def _loss(self, decision: Decision, problem: Problem) -> Steps[DrawLoss]:
        target, careful = problem.target, self.sure == EVERY_SENTENCE
        rows, columns = _chosen(decision, *(_CAREFUL_BLOCK if careful else _BLOCK))
        scores, own = yield [Ask.block(target, rows, columns), Ask(target, rows, rows)]
        scores, own = (problem.merit(target.utility, values, rows) for values in (scores, own))
        random = np.random.default_rng(problem.seed_for(2))
        block = Contenders(scores, rows, columns, problem.candidates.counts, self.most)
        if careful:
            return DrawLoss(self.drawn, self.most, block.split_loss(random), 0.0)
        expected = block.without_own_draw(problem.merit(target.utility, decision.expected), own)
        unseen = unseen_loss(expected, block.counts, self.most)
        return DrawLoss(self.drawn, self.most, block.reference_loss(expected[rows], random), unseen)


def next_draws(loss: float, bound: float, drawn: int, most: int) -> int:
    """Forecast how many draws bring a loss below the bound: it halves with about every doubling."""
    wanted = math.ceil(drawn * min(max(loss / bound, _LEAST_STEP), _MOST_STEP))
    return wanted if wanted <= _NEARLY_ALL * most else most


@dataclass(frozen=True, eq=False)
class Contenders:
    """The best candidates and their scores against some pseudo-references.

    Args:
        scores: (K, D) more is better; the leader is first.
        rows, columns: (K,) and (D,) which of the U texts they are.
        counts: (U,) how often each text was drawn.
        most: how many draws there can be.
    """

    scores: FloatArray
    rows: IntArray
    columns: IntArray
    counts: IntArray
    most: int

    def without_own_draw(self, expected: FloatArray, own: FloatArray) -> FloatArray:
        """Return (U,) expected utilities over the other n − 1 draws: a text is its own best reference.

        Args:
            own: (K,) scores of the contenders against themselves; the others are taken to have their mean.
        """
        n = int(self.counts.sum())
        selves = np.full(len(expected), own.mean())
        selves[self.rows] = own
        return np.asarray((n * expected - selves) / max(n - 1, 1))

    def reference_loss(self, expected: FloatArray, random: np.random.Generator) -> float:
        """Return what the leader is expected to lose because of the pseudo-references' noise.

        Args:
            expected: (K,) of the contenders.
        """
        n = int(self.counts.sum())
        # A rare reference of the block stands for others, a frequent one only for itself.
        shares = np.maximum(self.counts[self.columns] / n, 1 / len(self.columns))
        shares /= shares.sum()
        centred = self.scores - (self.scores @ shares)[:, None]
        centred[self.rows[:, None] == self.columns] = 0.0  # of itself a text says nothing about the others
        normal = random.standard_normal((len(self.columns), _WORLDS)) * np.sqrt(shares)[:, None]
        worlds = expected[:, None] + math.sqrt(1 / n - 1 / self.most) * (centred @ normal)
        return float((worlds.max(axis=0) - worlds[0]).mean())

    def split_loss(self, random: np.random.Generator) -> float:
        """Return what a choice by half of the draws loses by the other half, scaled to what is not drawn yet."""
        n, losses = int(self.counts.sum()), []
        for _ in range(_SPLITS):
            half = random.multivariate_hypergeometric(self.counts, n // 2)
            chosen = np.flatnonzero(half[self.rows] > 0)
            first, second = half[self.columns], (self.counts - half)[self.columns]
            if first.any() and second.any() and chosen.size:
                by_first, by_second = (self.scores @ (part / part.sum()) for part in (first, second))
                losses.append(by_second.max() - by_second[chosen[np.argmax(by_first[chosen])]])
        return math.sqrt(1 - n / self.most) * float(np.mean(losses)) if losses else math.inf


def unseen_loss(expected: FloatArray, counts: IntArray, most: int) -> float:
    """Return by how much the best of `most` draws is expected to exceed the best of those drawn."""
    falling = np.sort(np.repeat(expected, counts))[::-1]
    n = len(falling)
    peaks = [expected_maximum(falling, max(n >> halvings, 1)) for halvings in range(4)]
    rho = _GAIN_PER_DOUBLING
    gain = sum(rho**j * (peaks[j] - peaks[j + 1]) for j in range(3)) / 3
    doublings = math.log2(most / n)
    whole = int(doublings)
    steps = sum(rho**j for j in range(1, whole + 1)) + (doublings - whole) * rho ** (whole + 1)
    return gain * steps


def expected_maximum(falling: FloatArray, k: int) -> float:
    """Return the expected maximum of k of these n values, taken without replacement.

    The r-th largest is the maximum if none of the r larger ones is taken: C(n − 1 − r, k − 1) of the C(n, k) choices.
    """
    n = len(falling)
    ranks = np.arange(n - k)
    # P(rank r + 1) / P(rank r) = (n − k − r) / (n − 1 − r), from P(rank 0) = k / n.
    ratios = np.concatenate([[k / n], (n - k - ranks) / (n - 1 - ranks)])
    return float(np.cumprod(ratios) @ falling[: n - k + 1])


def _chosen(decision: Decision, contenders: int, references: int) -> tuple[IntArray, IntArray]:
    """Choose the best candidates, and the pseudo-references that most of them are scored against already."""
    best = decision.ranking[:contenders]
    counts = decision.candidates.counts
    known = np.zeros(len(counts), dtype=np.int64)
    if decision.observed is not None:
        pairs = decision.observed.pairs
        np.add.at(known, pairs.columns[np.isin(pairs.rows, best)], 1)
    order = np.lexsort((np.arange(len(counts)), -counts, -known))
    return best, np.sort(order[:references])
