"""Translation edit rate (Snover et al. 2006, https://aclanthology.org/2006.amta-papers.25) by sacrebleu's search."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..scoring.utility import Kernel, Statistics, TextTable, Utility
from .ngrams import words

# The search for shifts tries up to a thousand of them per round, each with an edit distance of its own: a pair of
# unrelated texts takes 0.2 s at 100 words, 15 s at 500 and 34 s at 1,000 (CPU time, one core).
MAX_WORDS = 500
_PRICES = (400_000.0, 10_000.0)  # from 360 µs per pair of 17 words and 9 µs per text, as in `ngrams`


class TER(Utility):
    """Edits with block shifts over reference words, in percent; lower is better, and it may exceed 100.

    A text of more than `MAX_WORDS` words is refused.

    Args:
        normalized: sacrebleu's general tokenisation.
        no_punct: remove punctuation.
        asian_support: treat Asian characters as words.
        case_sensitive: keep case.
    """

    name = "ter"
    higher_is_better = False
    scale = 100.0
    pairs_at_once: ClassVar[int | None] = 4096

    def __init__(
        self,
        *,
        normalized: bool = False,
        no_punct: bool = False,
        asian_support: bool = False,
        case_sensitive: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        from sacrebleu.metrics.ter import TER as SacrebleuTER

        self.normalized, self.no_punct = normalized, no_punct
        self.asian_support, self.case_sensitive = asian_support, case_sensitive
        self._ter = SacrebleuTER(normalized, no_punct, asian_support, case_sensitive)

    def prices(self) -> tuple[float, float]:
        return _PRICES

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Split all texts into words, once each: sacrebleu itself would split references twice."""
        from sacrebleu.metrics.lib_ter import translation_edit_rate

        split = words(self._ter, table.texts)
        for text, count in zip(table.texts, map(len, split), strict=True):
            if count > MAX_WORDS:
                raise ValueError(
                    f"ter takes texts of at most {MAX_WORDS} words, and {text[:40]!r}… has {count:,}: its search "
                    "would take minutes for a pair. Split the text, or use 'chrf'"
                )

        def rates(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            found = [translation_edit_rate(split[h], split[r]) for h, r in zip(hypotheses, references, strict=True)]
            # Against an empty reference every word is an edit, and one is as bad as many.
            return np.array([100.0 * (e / length if length else float(e > 0)) for e, length in found], dtype=np.float64)

        return rates
