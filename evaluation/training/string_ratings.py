"""What the strings of a hypothesis and its reference say about a rating: a line through numbers, fitted to ratings.

It is what a trained utility has to beat before its agreement with ratings says anything about understanding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.training.rated_pairs import RatedPair
from hf_acpmbr import load_utility


@dataclass(frozen=True)
class StringRatings:
    """`fit` to rated pairs, then `rate` any texts."""

    weights: np.ndarray

    @classmethod
    def fit(cls, *kinds: Sequence[RatedPair]) -> StringRatings:
        """The line with the least squared error.

        Args:
            kinds: rated pairs on one scale; each kind weighs the same, however many pairs it has.
        """
        pairs = [pair for kind in kinds for pair in kind]
        known = features([pair.hypothesis for pair in pairs], [pair.reference for pair in pairs])
        roots = np.concatenate([np.full(len(kind), len(kind) ** -0.5) for kind in kinds])
        scores = np.array([pair.score for pair in pairs])
        return cls(np.asarray(np.linalg.lstsq(known * roots[:, None], scores * roots, rcond=None)[0]))

    def rate(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """(n,) what the strings say."""
        return np.asarray(features(hypotheses, references) @ self.weights)


def features(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(n, 7) 1, chrF, BLEU, common words, the reference's length, how much the lengths differ, and which way."""
    strings = [load_utility(name) for name in ("chrf", "bleu")]
    likeness = [utility.score(hypotheses, references) / utility.scale for utility in strings]
    common = [common_words(*texts) for texts in zip(hypotheses, references, strict=True)]
    ours, theirs = (np.log([max(1, len(text)) for text in texts]) for texts in (hypotheses, references))
    return np.stack([np.ones(len(common)), *likeness, common, theirs, np.abs(ours - theirs), ours - theirs], axis=1)


def common_words(one: str, other: str) -> float:
    """F1 of the sets of words, in lower case."""
    ours, theirs = set(one.lower().split()), set(other.lower().split())
    return 2 * len(ours & theirs) / max(1, len(ours) + len(theirs))
