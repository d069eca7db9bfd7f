"""A few averaged pseudo-references instead of M: reference aggregation, and centroids of sentence vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import flag, integer, setting
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


@dataclass(frozen=True)
class CentroidMBR(Decoder):
    """argmax_i (1/K) Σ_k u(y_i, c_k) with K centroids of the pseudo-references' sentence vectors: N·K calls.

    The centroids come from k-means (k-means++ start), in which a pseudo-reference counts as often as it was drawn.
    The paper's mean over centroids is unweighted, which gives rare kinds of translation more say; `weighted=True` uses
    each cluster's share of the draws and becomes MBR when every unique pseudo-reference is its own centroid. With as
    many centroids as draws, every draw is its own centroid, and both means are MBR.

    Unlike in mbrs, the authors' library, two centroids never start from equal draws, so that there may be fewer than K,
    and a centroid that is nearest to no pseudo-reference is dropped, not left where it was.

    "Centroid-Based Efficient Minimum Bayes Risk Decoding", https://arxiv.org/abs/2402.11197
    """

    centroids: int = setting(64, integer(1), help="K; at most the number of unique pseudo-references is used.")
    iterations: int = setting(
        10, integer(0), help="of k-means, which also ends when no pseudo-reference changes its cluster."
    )
    weighted: bool = setting(False, flag, help="weight the centroids by the draws in their clusters.")

    name: ClassVar[str] = "centroid"

    def decide(self, problem: Problem) -> Steps[Decision]:
        utility = problem.target.utility
        if not utility.has_vectors:
            raise ValueError(
                f"{self.name} clusters sentence vectors, which {utility.name!r} does not have: use a utility that "
                "compares sentence vectors such as 'comet' or 'embedding-cosine', or another decoder such as 'halving'"
            )
        n, m = problem.shape
        target = problem.target
        _, vectors = yield Ask.call(target, target.vectors)
        vectors = finite(target, np.asarray(vectors, dtype=np.float64))
        random = np.random.default_rng(problem.seed_for(0))
        # By text, so that the order of the pseudo-references has no influence.
        by_text = np.array(sorted(range(m), key=problem.references.texts.__getitem__))
        counts = problem.references.counts[by_text].astype(np.float64)
        centres, shares = k_means(vectors[by_text], counts, self.centroids, self.iterations, random)
        scores = yield Ask.call(target, lambda: finite(target, target.vector_scores(np.arange(n), centres)))
        # With a centroid for each draw, the copies of a pseudo-reference are equal centroids, here scored once.
        by_draws = self.weighted or self.centroids >= problem.drawn[1]
        weights = shares if by_draws else np.full(len(centres), 1 / len(centres))
        return self.decision(
            problem,
            scores @ weights,
            f"{m} pseudo-references in {len(centres)} clusters",
            deciding=problem.target,
            rates=[(problem.target, m / len(centres))],
        )


def k_means(
    points: FloatArray, counts: FloatArray, k: int, iterations: int, random: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return (K, D) centroids of (m, D) points that count `counts` times each, and the share (K,) of every cluster.

    K is below k where there are fewer distinct points, or where a cluster loses all its points.
    """
    centres = _spread(points, counts, k, random)
    assigned = _nearest(points, centres)
    for _ in range(iterations):
        sizes = np.bincount(assigned, weights=counts, minlength=len(centres))
        sums = np.zeros_like(centres)
        np.add.at(sums, assigned, points * counts[:, None])
        centres = sums[sizes > 0] / sizes[sizes > 0, None]
        previous, assigned = assigned, _nearest(points, centres)
        if len(centres) == len(sizes) and np.array_equal(previous, assigned):
            break
    sizes = np.bincount(assigned, weights=counts, minlength=len(centres))
    return centres[sizes > 0], sizes[sizes > 0] / sizes.sum()


def _spread(points: FloatArray, counts: FloatArray, k: int, random: np.random.Generator) -> FloatArray:
    """Draw k-means++ centres: points with probability ∝ their squared distance to the nearest centre so far."""
    chosen = [int(random.choice(len(points), p=counts / counts.sum()))]
    squared = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < min(k, len(points)):
        mass = squared * counts
        mass[chosen] = 0.0
        if not mass.sum() > 0:  # only copies of the chosen points are left
            break
        chosen.append(int(random.choice(len(points), p=mass / mass.sum())))
        squared = np.minimum(squared, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _nearest(points: FloatArray, centres: FloatArray) -> IntArray:
    return np.asarray(_squared_distances(points, centres).argmin(axis=1), dtype=np.int64)


def _squared_distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Return (m, K), without an (m, K, D) array."""
    cross = points @ centres.T
    return np.asarray(np.maximum((points**2).sum(1)[:, None] - 2 * cross + (centres**2).sum(1), 0.0))


def finite(scorer: Scorer, scores: FloatArray) -> FloatArray:
    """Return `scores`, refused if any is NaN or infinite: the engine checks only scores of pairs."""
    if not np.isfinite(scores).all():
        raise ValueError(
            f"utility {scorer.utility.name!r} gave NaN or infinity for {int((~np.isfinite(scores)).sum())} of "
            f"{scores.size} averaged references: check the texts, or score in dtype='float32'"
        )
    return scores
