"""Sentence BLEU (Papineni et al. 2002, https://aclanthology.org/P02-1040) with sacrebleu's values."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import integer, number, one_of, optional
from ..scoring.utility import Kernel, Statistics, TextTable, Utility
from .ngrams import STRING_PRICES, NGrams, words


class SentenceBLEU(Utility):
    """Sentence BLEU with effective order, 0 to 100: `sacrebleu.sentence_bleu`.

    Args:
        tokenize: sacrebleu's tokeniser ("13a", "intl", "zh", "char", ...).
        lowercase: ignore case.
        max_ngram_order: longest n-gram.
        smooth_method: what stands for orders without a match: "exp" halves it from one to the next, "floor" takes
            `smooth_value`, "add-k" adds it to all counts above unigrams, "none" makes the score 0.
        smooth_value: for "floor" and "add-k"; default: sacrebleu's, 0.1 and 1.
    """

    encodes_texts = True

    name = "bleu"
    scale = 100.0
    pairs_at_once: ClassVar[int | None] = 4096
    quiet_options: ClassVar = {"smooth_method": "exp", "smooth_value": None}

    def __init__(
        self,
        *,
        tokenize: str = "13a",
        lowercase: bool = False,
        max_ngram_order: int = 4,
        smooth_method: str = "exp",
        smooth_value: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        from sacrebleu.metrics.bleu import BLEU

        one_of(*sorted(BLEU.TOKENIZERS))("tokenize", tokenize)
        one_of(*BLEU.SMOOTH_DEFAULTS)("smooth_method", smooth_method)
        usual = BLEU.SMOOTH_DEFAULTS[smooth_method]
        if smooth_value is not None and usual is None:
            raise ValueError(f"smooth_value={smooth_value} has no effect with smooth_method={smooth_method!r}")
        self.tokenize, self.lowercase = tokenize, lowercase
        self.max_ngram_order = integer(1)("max_ngram_order", max_ngram_order)
        self.smooth_method, self.smooth_value = smooth_method, optional(number(0))("smooth_value", smooth_value)
        self._smooth_value = float(usual or 0.0) if smooth_value is None else smooth_value
        self._bleu = BLEU(tokenize=tokenize, lowercase=lowercase, max_ngram_order=max_ngram_order, effective_order=True)

    def prices(self) -> tuple[float, float]:
        return STRING_PRICES

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        split = words(self._bleu, table.texts)
        lengths = np.fromiter((len(text) for text in split), dtype=np.float64, count=len(split))
        counted = NGrams((split, self.max_ngram_order))

        def scores(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            matches, totals = counted.matches(hypotheses, references), counted.totals[hypotheses]
            return self._bleu_of(matches, totals, lengths[hypotheses], lengths[references])

        return scores

    def _bleu_of(self, matches: IntArray, totals: IntArray, length_h: FloatArray, length_r: FloatArray) -> FloatArray:
        """Return (k,) BLEU from (k, n) matches and totals."""
        any_match = matches.any(axis=1)
        if self.smooth_method == "add-k":
            added = self._smooth_value * (np.arange(matches.shape[1]) > 0)
            matches, totals = matches + added, totals + added
        counted = totals > 0
        missed = counted & (matches == 0)
        # "exp": the s-th order without a match counts as 1 / (2^s · total).
        instead = 0.5 ** np.cumsum(missed, axis=1) if self.smooth_method == "exp" else self._smooth_value
        precision = np.where(missed, instead, matches) / np.where(counted, totals, 1)
        with np.errstate(divide="ignore"):  # a precision of 0 makes the score 0
            logs = np.where(counted, np.log(np.where(counted, 100.0 * precision, 1.0)), 0.0)
        mean_log = logs.sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
        brevity = np.where(length_h < length_r, np.exp(1.0 - length_r / np.maximum(length_h, 1.0)), 1.0)
        return np.asarray(np.where(any_match, brevity * np.exp(mean_log), 0.0), dtype=np.float64)
