"""Sentence BLEU (Papineni et al. 2002, https://aclanthology.org/P02-1040) with sacrebleu's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import Unpack

from ..candidates import FloatArray, IntArray
from ..scoring.utility import CommonOptions, Kernel, Statistics, TextTable, Utility
from .ngrams import MatchTable, NGramCounts, words


class SentenceBLEU(Utility):
    """Sentence BLEU with exponential smoothing and effective order, 0 to 100: `sacrebleu.sentence_bleu`.

    Args:
        tokenize: sacrebleu's tokeniser ("13a", "intl", "zh", "char", ...).
        lowercase: ignore case.
        max_ngram_order: longest n-gram.
    """

    encodes_texts = True

    name = "bleu"
    scale = 100.0
    pairs_at_once: ClassVar[int | None] = 4096
    description = "Sentence-level BLEU (sacrebleu's sentence_bleu: exponential smoothing, effective order)."
    homepage = "https://github.com/mjpost/sacrebleu"
    citation = "Papineni et al. 2002, BLEU, ACL, https://aclanthology.org/P02-1040"

    def __init__(
        self,
        *,
        tokenize: str = "13a",
        lowercase: bool = False,
        max_ngram_order: int = 4,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**options)
        if max_ngram_order < 1:
            raise ValueError(f"max_ngram_order must be at least 1, got {max_ngram_order}")
        from sacrebleu.metrics.bleu import BLEU

        if tokenize not in BLEU.TOKENIZERS:
            raise ValueError(f"tokenize={tokenize!r} is unknown: choose one of {', '.join(sorted(BLEU.TOKENIZERS))}")
        self.tokenize, self.lowercase, self.max_ngram_order = tokenize, lowercase, max_ngram_order
        self._bleu = BLEU(tokenize=tokenize, lowercase=lowercase, max_ngram_order=max_ngram_order, effective_order=True)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Count the n-grams of all texts; see `ngrams`."""
        return _BLEUKernel(words(self._bleu, table.texts), self.max_ngram_order)


class _BLEUKernel:
    def __init__(self, words: Sequence[Sequence[str]], order: int) -> None:
        self.lengths = np.fromiter((len(text) for text in words), dtype=np.float64, count=len(words))
        self.table = MatchTable([NGramCounts(words, order)])

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        matches = self.table.matches(hypotheses, references)
        totals = self.table.totals[hypotheses]
        return smoothed_bleu(matches, totals, self.lengths[hypotheses], self.lengths[references])


def smoothed_bleu(matches: IntArray, totals: IntArray, length_h: FloatArray, length_r: FloatArray) -> FloatArray:
    """Return (k,) BLEU from (k, n) matches and totals.

    The s-th order without a match counts as 1 / (2^s · total).
    """
    counted = totals > 0
    missed = counted & (matches == 0)
    precision = np.where(missed, 0.5 ** np.cumsum(missed, axis=1), matches) / np.maximum(totals, 1)
    logs = np.where(counted, np.log(np.where(counted, 100.0 * precision, 1.0)), 0.0)
    mean_log = logs.sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
    safe = np.maximum(length_h, 1.0)
    brevity = np.where(length_h < length_r, np.exp(1.0 - length_r / safe), 1.0)
    return np.asarray(np.where(matches.any(axis=1), brevity * np.exp(mean_log), 0.0), dtype=np.float64)
