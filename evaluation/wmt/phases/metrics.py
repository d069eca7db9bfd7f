"""Phase 5: a metric's scores of every row's choice against the real reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa

from evaluation.wmt.phases.base import Given, Source
from evaluation.wmt.phases.decisions import DecisionsPhase
from evaluation.wmt.phases.utility import UtilityPhase
from evaluation.wmt.settings import EvaluationSettings
from evaluation.wmt.store import Record


class MetricPhase(UtilityPhase[Mapping[str, float]]):
    """{row: score} for each source."""

    kind = "metric"
    compares = False
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "row": pa.string(), "score": pa.float64()})

    def __init__(self, run: EvaluationSettings, metric: str, decisions: DecisionsPhase) -> None:
        super().__init__(run, metric, (decisions,))
        self.decisions = decisions

    def source_rows(self, source: Source, given: Given) -> list[Record]:
        decisions = given[self.decisions]
        texts = [decision["text"] for decision in decisions]
        scores = self.utility.score(texts, [source.reference] * len(texts), [source.text] * len(texts))
        return [
            {"index": source.index, "row": decision["row"], "score": float(score)}
            for decision, score in zip(decisions, scores, strict=True)
        ]

    def by_source(self, shard: int) -> Mapping[int, Mapping[str, float]]:
        found: dict[int, dict[str, float]] = {}
        for row in self.store.read(shard):
            found.setdefault(row["index"], {})[row["row"]] = row["score"]
        return found
