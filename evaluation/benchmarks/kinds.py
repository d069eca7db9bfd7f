"""Made-up matrices of kinds that stopping rules get wrong, each with guides of known worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from evaluation.benchmarks.matrices import MatrixCase
from evaluation.benchmarks.measures import Floats

# Correlations with the target of guides that are made up beside it.
GUIDES = {"good": 0.85, "noisy": 0.3}


def _plain(random: np.random.Generator, n: int, quality: float = 0.02, noise: float = 0.04) -> Floats:
    """Texts with a quality, a difficulty, likenesses in four directions, and noise in each pair."""
    vectors = random.normal(size=(n, 4)) / 2
    parts = quality * random.normal(size=(n, 1)) + 0.03 * random.normal(size=n) + 0.045 * (vectors @ vectors.T)
    return np.asarray(0.7 + parts + noise * random.normal(size=(n, n)))


def _meanings(random: np.random.Generator, n: int, shares: Sequence[float] = (0.5, 0.5)) -> Floats:
    """Meanings: texts of one agree with each other and not with the others."""
    meaning = np.searchsorted(np.cumsum(shares), random.random(n))
    parts = 0.02 * random.normal(size=(n, 1)) + 0.02 * random.normal(size=n) + 0.03 * random.normal(size=(n, n))
    return np.where(meaning[:, None] == meaning, 0.75, 0.45) + parts


def _three_meanings(random: np.random.Generator, n: int) -> Floats:
    return _meanings(random, n, (0.4, 0.35, 0.25))


def _column(random: np.random.Generator, n: int) -> Floats:
    """One pseudo-reference gives everybody 0 or 1."""
    matrix = _plain(random, n)
    matrix[:, random.integers(n)] = random.integers(0, 2, n)
    return matrix


def _outside(random: np.random.Generator, n: int) -> Floats:
    """One pseudo-reference gives scores far outside the utility's range, and decides alone."""
    matrix = _plain(random, n)
    matrix[:, random.integers(n)] = 0.7 + 3 * random.normal(size=n)
    return matrix


def _ties(random: np.random.Generator, n: int) -> Floats:
    """The best text was drawn in two spellings that the utility does not tell apart."""
    matrix = _plain(random, n)
    best, other = np.argsort(-matrix.mean(axis=1))[[0, 3]]
    matrix[other] = matrix[best]
    matrix[:, other] = matrix[:, best]
    return matrix


def _flat(random: np.random.Generator, n: int) -> Floats:
    """All are nearly as good as the best, and scores are noisy."""
    return 0.7 + 3e-4 * random.normal(size=(n, 1)) + 0.03 * random.normal(size=n) + 0.02 * random.normal(size=(n, n))


def _noisy_judge(random: np.random.Generator, n: int) -> Floats:
    """Independent noise in each pair, five times what the candidates differ by."""
    return 0.7 + 0.03 * random.normal(size=(n, 1)) + 0.03 * random.normal(size=n) + 0.15 * random.normal(size=(n, n))


def _heavy_tails(random: np.random.Generator, n: int) -> Floats:
    return np.asarray(
        0.7
        + 0.01 * random.standard_t(2.5, (n, 1))
        + 0.02 * random.normal(size=n)
        + 0.02 * random.standard_t(2.5, (n, n))
    )


def _few_bad(random: np.random.Generator, n: int) -> Floats:
    """Most are about as good as the best, some far worse."""
    return np.asarray(_plain(random, n, 0.0) - 0.02 * random.gamma(1.0, 1.0, (n, 1)))


def _few_good(random: np.random.Generator, n: int) -> Floats:
    """A few are far better than all others."""
    return np.asarray(_plain(random, n, 0.005) + 0.02 * random.exponential(1.0, (n, 1)) ** 2)


def _low_rank(random: np.random.Generator, n: int) -> Floats:
    """Likenesses in three directions and nothing else."""
    left, right = random.normal(size=(n, 3)), random.normal(size=(n, 3))
    return np.asarray(0.7 + 0.03 * (left @ right.T))


KINDS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "plain": _plain,
    "noisy judge": _noisy_judge,
    "two meanings": _meanings,
    "one column": _column,
    "ties": _ties,
    "flat": _flat,
    "heavy tails": _heavy_tails,
    "few bad": _few_bad,
    "few good": _few_good,
    "column outside the range": _outside,
    "three meanings": _three_meanings,
    "low rank": _low_rank,
}


def made_up_kind(kind: str, seed: int, size: int = 160, all_unique: bool = False) -> MatrixCase:
    """Make a case of a kind; texts are drawn as unevenly as from a model, or once each."""
    random = np.random.default_rng((seed, list(KINDS).index(kind)))
    target = KINDS[kind](random, size)
    counts = np.ones(size, dtype=np.int64) if all_unique else random.zipf(2.0, size).clip(max=60)
    centred = target - target.mean()
    guides = {
        name: r * centred + np.sqrt(1 - r**2) * centred.std() * random.normal(size=target.shape)
        for name, r in GUIDES.items()
    }
    return MatrixCase(f"{kind}/{seed}", target, {**guides, "anti": -target, "perfect": target.copy()}, counts)
