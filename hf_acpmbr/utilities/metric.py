"""A utility as an `evaluate.Metric`. Importing this module imports evaluate; `Utility.as_metric` does so when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import datasets
import evaluate
import numpy as np

if TYPE_CHECKING:
    from .base import Utility

_INPUTS = """
Args:
    predictions: list of str, the hypotheses.
    references: list of str, one for each prediction (absent for reference-free metrics).
    sources: list of str, what was translated (only for metrics that need it).
Returns:
    scores: list of float, one for each prediction.
    mean_score: float, their average.
"""


class UtilityMetric(evaluate.Metric):  # type: ignore[misc]
    """`compute(predictions=, references=, sources=)` through the utility's engine."""

    def __init__(self, utility: Utility) -> None:
        self.utility = utility
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        fields = ["predictions"]
        if self.utility.needs_reference:
            fields.append("references")
        if self.utility.needs_source:
            fields.append("sources")
        return evaluate.MetricInfo(
            description=self.utility.description,
            citation=self.utility.citation,
            homepage=self.utility.homepage,
            inputs_description=_INPUTS,
            features=datasets.Features({field: datasets.Value("string") for field in fields}),
        )

    @property
    def name(self) -> str:
        return self.utility.name

    def add(self, *, prediction: str | None = None, reference: str | None = None, **kwargs: str) -> None:
        """One pair, as a batch of one: datasets 4 writes batches before the single examples that came earlier."""
        given = {"predictions": prediction, "references": reference, **kwargs}
        self.add_batch(**{name: [text] for name, text in given.items() if text is not None})

    def _compute(
        self, predictions: list[str], references: list[str] | None = None, sources: list[str] | None = None
    ) -> dict[str, list[float] | float]:
        scores = self.utility.score(predictions, references, sources)
        return {"scores": scores.tolist(), "mean_score": float(np.mean(scores)) if scores.size else float("nan")}
