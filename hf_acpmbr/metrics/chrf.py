"""chrF and chrF++ (Popović 2015, 2017; https://aclanthology.org/W15-3049) with sacrebleu's sentence values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import integer, number
from ..scoring.utility import Kernel, Statistics, TextTable, Utility
from .ngrams import STRING_PRICES, NGrams

_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class ChrF(Utility):
    """Character n-gram F-score, 0 to 100.

    Args:
        char_order: longest character n-gram.
        word_order: longest word n-gram; 2 gives chrF++.
        beta: weight of recall.
        lowercase: ignore case.
        whitespace: keep spaces in the character n-grams.
        eps_smoothing: average F over the orders, of which one without n-grams counts as next to nothing, as chrF++.py,
            Moses and NLTK do; the default averages precision and recall over the orders that both texts have.
    """

    encodes_texts = True

    name = "chrf"
    scale = 100.0
    can_aggregate = True
    pairs_at_once: ClassVar[int | None] = 4096
    quiet_options: ClassVar = {"eps_smoothing": False}

    def __init__(
        self,
        *,
        char_order: int = 6,
        word_order: int = 0,
        beta: float = 2.0,
        lowercase: bool = False,
        whitespace: bool = False,
        eps_smoothing: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.char_order, self.word_order = integer(1)("char_order", char_order), integer(0)("word_order", word_order)
        self.beta = float(number(0, above=True)("beta", beta))
        self.lowercase, self.whitespace, self.eps_smoothing = lowercase, whitespace, eps_smoothing
        self.symmetric = beta == 1
        self.name = "chrf" + "+" * word_order

    def prices(self) -> tuple[float, float]:
        return STRING_PRICES

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        return _ChrFKernel(self, table.texts)


class _ChrFKernel:
    def __init__(self, options: ChrF, texts: Sequence[str]) -> None:
        texts = [text.lower() for text in texts] if options.lowercase else texts
        characters = texts if options.whitespace else ["".join(text.split()) for text in texts]
        words = [([_words(text) for text in texts], options.word_order)] if options.word_order else []
        self.beta2, self.eps_smoothing = options.beta**2, options.eps_smoothing
        self.counted = NGrams((characters, options.char_order), *words)

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        matches, totals = self.counted.matches(hypotheses, references), self.counted.totals
        return self._f_score(matches, totals[hypotheses], totals[references])

    def aggregate_scores(self, hypotheses: IntArray, references: IntArray, weights: FloatArray) -> FloatArray:
        """Score against mean n-gram counts (Vamvas & Sennrich 2024, https://arxiv.org/abs/2402.04251)."""
        matches, totals = self.counted.aggregate_matches(hypotheses, references, weights)
        return self._f_score(matches, self.counted.totals[hypotheses][:, None, :], totals[None])

    def _f_score(self, matches: IntArray | FloatArray, total_h: IntArray, total_r: IntArray | FloatArray) -> FloatArray:
        """Return F of the means over the orders both texts have, or with `eps_smoothing` the mean of F over all."""
        precision, recall = matches / np.maximum(total_h, 1), matches / np.where(total_r > 0, total_r, 1)
        if not self.eps_smoothing:
            both = (total_h > 0) & (total_r > 0)
            effective = np.maximum(both.sum(axis=-1), 1)
            precision, recall = ((side * both).sum(axis=-1) / effective for side in (precision, recall))
        denominator = self.beta2 * precision + recall
        f = 100.0 * (1 + self.beta2) * precision * recall / np.where(denominator > 0, denominator, 1.0)
        return np.asarray(f.mean(axis=-1) if self.eps_smoothing else f)  # sacrebleu's eps of 1e-16 is lost in F


def _words(text: str) -> list[str]:
    """Split off one leading or trailing punctuation mark per word, as chrF++.py and sacrebleu do."""
    words = []
    for word in text.split():
        if len(word) > 1 and word[-1] in _PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in _PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return words
