"""Texts as sacrebleu's metrics see them. The only file that touches its private functions; checked with 2.6."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER


def words(metric: BLEU | TER, texts: Sequence[str]) -> list[list[str]]:
    """Words of each text by the metric's own tokenisation."""
    return [metric._preprocess_segment(text).split() for text in texts]
