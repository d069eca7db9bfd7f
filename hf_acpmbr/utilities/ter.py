"""Translation edit rate (Snover et al. 2006, https://aclanthology.org/2006.amta-papers.25) with sacrebleu's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import CommonOptions, Kernel, Statistics, TextTable, Utility
from .ter_edits import count_edits

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PAIRS_AT_ONCE = 4096  # pairs whose shifts are searched together


class TER(Utility):
    """Edits with block shifts over reference words, in percent; lower is better, and it may exceed 100.

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
    description = "Translation edit rate (sacrebleu's sentence TER)."
    homepage = "https://github.com/mjpost/sacrebleu"
    citation = (
        "@inproceedings{snover-etal-2006-study, title = {A Study of Translation Edit Rate with Targeted Human "
        "Annotation}, author = {Snover, Matthew and Dorr, Bonnie and Schwartz, Rich and Micciulla, Linnea and "
        "Makhoul, John}, booktitle = {Proceedings of AMTA}, year = {2006}}"
    )

    def __init__(
        self,
        *,
        normalized: bool = False,
        no_punct: bool = False,
        asian_support: bool = False,
        case_sensitive: bool = False,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**options)
        from sacrebleu.metrics.ter import TER as SacrebleuTER

        self._ter = SacrebleuTER(
            normalized=normalized, no_punct=no_punct, asian_support=asian_support, case_sensitive=case_sensitive
        )
        self.normalized, self.no_punct = normalized, no_punct
        self.asian_support, self.case_sensitive = asian_support, case_sensitive

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Words of all texts, tokenised once."""
        from .sacrebleu_words import words

        return _TERKernel(words(self._ter, table.texts))


class _TERKernel:
    def __init__(self, words: Sequence[list[str]]) -> None:
        index: dict[str, int] = {}
        self.words = [np.array([index.setdefault(w, len(index)) for w in text], dtype=np.int64) for text in words]
        self.sizes = np.array([text.size for text in self.words], dtype=np.int64)

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        edits = self.sizes[hypotheses].copy()  # against an empty reference every word is an edit
        filled = np.flatnonzero(self.sizes[references] > 0)
        for start in range(0, filled.size, _PAIRS_AT_ONCE):
            part = filled[start : start + _PAIRS_AT_ONCE]
            pairs = [(self.words[h], self.words[r]) for h, r in zip(hypotheses[part], references[part], strict=True)]
            edits[part] = count_edits(pairs)
        lengths = self.sizes[references]
        rate = np.where(lengths > 0, edits / np.maximum(lengths, 1), edits > 0)
        return np.asarray(100.0 * rate, dtype=np.float64)
