"""Phases 2 and 4: full matrices of the utilities, scores against the real references, scores of what was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from evaluation.phases import Corpus, Phase, Source
from evaluation.settings import EvaluationSettings
from hf_acpmbr import Candidates, load_utility
from hf_acpmbr.matrix import Pairs
from hf_acpmbr.utilities import MatrixUtility, Utility
from hf_acpmbr.utilities.network import NetworkUtility


class UtilityPhase(Phase):
    """A phase that works with one utility."""

    def __init__(
        self, corpus: Corpus, folder: Path, run: EvaluationSettings, utility: str, before: tuple[Phase, ...]
    ) -> None:
        self.name = f"{self.kind}-{utility.replace('/', '--')}"
        super().__init__(corpus, folder, before)
        self.run, self.utility_name = run, utility
        self.utility: Utility | None = None

    kind: ClassVar[str]

    def settings(self) -> Any:
        return [self.utility_name, dict(self.run.utility_options.get(self.utility_name, {}))]

    def start(self, device: str) -> None:
        self.utility = open_utility(self.run, self.utility_name, device)

    def stop(self) -> None:
        self.utility = None

    def meta(self) -> dict[str, Any]:
        return {} if self.utility is None else describe(self.utility)


class MatrixPhase(UtilityPhase):
    """All scores of unique candidates against unique candidates, in float32 as networks give them."""

    kind = "matrix"
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "scores": pa.list_(pa.float32())})

    def source_rows(self, source: Source, given: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.utility is not None
        texts = given["candidates"].texts
        pairs = Pairs.full((len(texts), len(texts)))
        scores = self.utility.prepare(texts, texts, source.text)(pairs.rows, pairs.columns)
        return [{"index": source.index, "scores": scores.astype(np.float32)}]

    def by_source(self, shard: int) -> dict[int, np.ndarray]:
        """(n, n) for each source."""
        table = self.store.columns(shard)
        lists = table["scores"].combine_chunks()
        values, offsets = lists.values.to_numpy(), lists.offsets.to_numpy()
        matrices = {}
        for position, index in enumerate(table["index"].to_pylist()):
            flat = values[offsets[position] : offsets[position + 1]]
            size = round(len(flat) ** 0.5)
            matrices[index] = flat.reshape(size, size)
        return matrices


class ReferencePhase(UtilityPhase):
    """The target's scores of all candidates against the real reference, for the oracle."""

    kind = "reference"
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "scores": pa.list_(pa.float64())})

    def source_rows(self, source: Source, given: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.utility is not None
        texts = given["candidates"].texts
        rows = np.arange(len(texts))
        scores = self.utility.prepare(texts, [source.reference], source.text)(rows, np.zeros_like(rows))
        return [{"index": source.index, "scores": scores}]

    def by_source(self, shard: int) -> dict[int, np.ndarray]:
        return {row["index"]: np.array(row["scores"]) for row in self.store.read(shard)}


class MetricPhase(UtilityPhase):
    """A metric's scores of every row's choice against the real reference."""

    kind = "metric"
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "row": pa.string(), "score": pa.float64()})

    def source_rows(self, source: Source, given: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.utility is not None
        decisions = given["decisions"]
        texts = [decision["text"] for decision in decisions]
        scores = self.utility.score(texts, [source.reference] * len(texts), [source.text] * len(texts))
        return [
            {"index": source.index, "row": decision["row"], "score": float(score)}
            for decision, score in zip(decisions, scores, strict=True)
        ]


def open_utility(run: EvaluationSettings, name: str, device: str) -> Utility:
    """A utility with the run's options for it; networks go to this process's device."""
    options = dict(run.utility_options.get(name, {}))
    utility = load_utility(name, **options)
    if isinstance(utility, NetworkUtility):  # nothing is loaded yet
        utility = load_utility(name, **{"device": device, **options})
    return utility


def describe(utility: Utility) -> dict[str, Any]:
    """What a stored matrix must know about its utility."""
    return {
        "name": utility.name,
        "signature": utility.signature,
        "higher_is_better": utility.higher_is_better,
        "scale": utility.scale,
        "parameters": utility.parameters,
        "symmetric": utility.symmetric,
    }


def stored_utility(matrix: np.ndarray, candidates: Candidates, references: list[str], known: Any) -> MatrixUtility:
    """A stored matrix in the place of the utility it came from, which counts its calls as that one would."""
    utility = MatrixUtility(
        matrix,
        candidates.texts,
        references,
        name=known["name"],
        higher_is_better=known["higher_is_better"],
        scale=known["scale"],
        parameters=known["parameters"],
    )
    utility.symmetric = known["symmetric"] and list(references) == list(candidates.texts)
    return utility
