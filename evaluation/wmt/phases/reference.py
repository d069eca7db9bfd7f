"""Phase 3: the target's scores of all candidates against the real reference, for the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evaluation.benchmarks.measures import full_matrix
from evaluation.wmt.phases.base import Given, Source
from evaluation.wmt.phases.candidates import CandidatesPhase
from evaluation.wmt.phases.utility import UtilityPhase
from evaluation.wmt.settings import EvaluationSettings
from evaluation.wmt.store import Record


class ReferencePhase(UtilityPhase[npt.NDArray[np.floating]]):
    """(n,) scores for each source."""

    kind = "reference"
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "scores": pa.list_(pa.float64())})

    def __init__(self, run: EvaluationSettings, drawn: CandidatesPhase) -> None:
        super().__init__(run, run.target, (drawn,))
        self.drawn = drawn

    def source_rows(self, source: Source, given: Given) -> list[Record]:
        scores = full_matrix(self.utility, given[self.drawn].texts, [source.reference], source.text)
        return [{"index": source.index, "scores": scores.ravel()}]

    def by_source(self, shard: int) -> Mapping[int, npt.NDArray[np.floating]]:
        return self.numbers(shard)
