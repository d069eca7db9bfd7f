"""Phase 2: all scores of a utility between the candidates of every source."""

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

Matrix = npt.NDArray[np.floating]


class MatrixPhase(UtilityPhase[Matrix]):
    """Unique candidates against unique candidates, in float32 as networks give them."""

    kind = "matrix"
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "scores": pa.list_(pa.float32())})

    def __init__(self, run: EvaluationSettings, utility: str, drawn: CandidatesPhase) -> None:
        super().__init__(run, utility, (drawn,))
        self.drawn = drawn

    def source_rows(self, source: Source, given: Given) -> list[Record]:
        scores = full_matrix(self.utility, given[self.drawn].texts, source=source.text)
        return [{"index": source.index, "scores": scores.astype(np.float32).ravel()}]

    def by_source(self, shard: int) -> Mapping[int, Matrix]:
        """(n, n) for each source."""
        return {index: flat.reshape(-1, round(len(flat) ** 0.5)) for index, flat in self.numbers(shard).items()}
