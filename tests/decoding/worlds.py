"""Small worlds for decoder tests: texts with sentence vectors, utilities over them, and draws with duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_acpmbr import Candidates
from hf_acpmbr.scoring import Utility


class VectorUtility(Utility):
    """u(h, r) = sign · scale · tanh(h·r + tilt·h₀ − ‖h−r‖²/10), not symmetric.

    The vectors are looked up by text; averages and vectors are supported.
    """

    can_aggregate = True
    has_vectors = True

    def __init__(self, vectors, *, name="vectors", sign=1.0, tilt=0.3, scale=1.0, broken=False):
        super().__init__()
        self.vectors = vectors
        self.name, self.higher_is_better, self.scale = name, sign > 0, scale
        self.sign, self.tilt, self.broken = sign, tilt, broken
        self.known = {}

    def of_vectors(self, h, r):
        value = np.tanh(np.sum(h * r, axis=-1) + self.tilt * h[..., 0] - 0.1 * np.sum((h - r) ** 2, axis=-1))
        return np.full_like(value, np.nan) if self.broken else self.sign * self.scale * value

    def of_texts(self, h: str, r: str) -> float:
        if (h, r) not in self.known:
            self.known[h, r] = float(self.of_vectors(self.vectors[h], self.vectors[r]))
        return self.known[h, r]

    def kernel(self, table, statistics):
        return _VectorKernel(self, np.stack([self.vectors[text] for text in table.texts]))


class _VectorKernel:
    def __init__(self, utility, table):
        self.utility, self.table = utility, table

    def __call__(self, hypotheses, references, sources):
        return self.utility.of_vectors(self.table[hypotheses], self.table[references])

    def vectors(self, texts):
        return self.table[texts]

    def vector_scores(self, hypotheses, vectors):
        return self.utility.of_vectors(self.table[hypotheses][:, None, :], np.asarray(vectors)[None])

    def aggregate_scores(self, hypotheses, references, weights):
        return self.vector_scores(hypotheses, weights @ self.table[references])


class QualityUtility(Utility):
    """Reference-free: the first coordinate of the hypothesis, bent."""

    needs_reference = False

    def __init__(self, vectors, *, name="quality", sign=1.0, broken=False):
        super().__init__()
        self.vectors, self.name, self.higher_is_better = vectors, name, sign > 0
        self.sign, self.broken = sign, broken

    def of_text(self, text: str) -> float:
        vector = self.vectors[text]
        return float("nan") if self.broken else self.sign * float(vector[0] + 0.5 * vector[1] ** 2)

    def kernel(self, table, statistics):
        return lambda hypotheses, references, sources: np.array([self.of_text(table.texts[k]) for k in hypotheses])


@dataclass
class World:
    """Texts drawn several times each, in a mixed order."""

    vectors: dict[str, np.ndarray]
    drawn: list[str]
    logprobs: dict[str, float]

    @classmethod
    def make(cls, seed: int = 0, unique: int = 12, draws: int = 30, dimension: int = 3) -> World:
        rng = np.random.default_rng(seed)
        texts = [f"text {k}" for k in rng.permutation(unique)]
        drawn = texts + [texts[k] for k in rng.integers(0, unique, max(0, draws - unique)) ** 2 // unique]
        drawn = [drawn[k] for k in rng.permutation(len(drawn))]
        vectors = {text: 0.6 * rng.normal(size=dimension) for text in texts}
        return cls(vectors, drawn, {text: float(-rng.exponential(2.0)) for text in texts})

    @property
    def texts(self) -> list[str]:
        return list(dict.fromkeys(self.drawn))

    @property
    def counts(self) -> dict[str, int]:
        return {text: self.drawn.count(text) for text in self.texts}

    def candidates(self, drawn: Sequence[str] | None = None) -> Candidates:
        drawn = self.drawn if drawn is None else drawn
        return Candidates.from_texts(drawn, logprobs=[self.logprobs[text] for text in drawn])

    def target(self, sign: float = 1.0, **options) -> VectorUtility:
        return VectorUtility(self.vectors, name="target", sign=sign, **options)

    def guide(self, sign: float = 1.0, **options) -> VectorUtility:
        return VectorUtility(self.vectors, name="guide", sign=sign, tilt=-0.2, **options)

    def quality(self, sign: float = 1.0, **options) -> QualityUtility:
        return QualityUtility(self.vectors, sign=sign, **options)


def random_for(seed: int, stage: int) -> np.random.Generator:
    """The generator that decoders use at a stage, as documented in `Problem.seed_for`."""
    return np.random.default_rng(int(np.random.SeedSequence((seed, stage)).generate_state(1, np.uint64)[0]) >> 1)


def shuffled(drawn: Sequence[str], seed: int, stage: int = 0) -> list[str]:
    """All drawn texts, duplicates included, in the order in which decoders take them."""
    ordered = sorted(drawn)
    return [ordered[k] for k in random_for(seed, stage).permutation(len(ordered))]
