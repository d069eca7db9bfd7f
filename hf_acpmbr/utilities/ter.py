"""Translation edit rate (Snover et al. 2006, https://aclanthology.org/2006.amta-papers.25) with sacrebleu's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Kernel, Statistics, TextTable, Utility


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
        **options: object,
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        from sacrebleu.metrics.ter import TER as SacrebleuTER

        self._ter = SacrebleuTER(
            normalized=normalized, no_punct=no_punct, asian_support=asian_support, case_sensitive=case_sensitive
        )
        flags = {"norm": normalized, "nopunct": no_punct, "asian": asian_support, "case": case_sensitive}
        self._flags = "|".join(f"{key}:{'yes' if value else 'no'}" for key, value in flags.items())

    @property
    def signature(self) -> str:
        return f"TER|{self._flags}"

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Words of all texts, tokenised once."""
        return _TERKernel([self._ter._preprocess_segment(text).split() for text in table.texts])


class _TERKernel:
    def __init__(self, words: Sequence[list[str]]) -> None:
        self.words = words

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        from sacrebleu.metrics.lib_ter import translation_edit_rate

        out = np.empty(hypotheses.size)
        for k, (h, r) in enumerate(zip(hypotheses.tolist(), references.tolist(), strict=True)):
            edits, length = translation_edit_rate(self.words[h], self.words[r])
            out[k] = 100.0 * (edits / length if length else float(edits > 0))
        return out
