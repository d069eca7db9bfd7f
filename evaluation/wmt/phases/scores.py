"""The phases that score, each with one utility: candidates with each other, with the reference, and the choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evaluation.benchmarks.measures import full_matrix
from evaluation.wmt.data import Source
from evaluation.wmt.phases.base import Given, Phase, Record
from evaluation.wmt.settings import EvaluationSettings
from hf_acpmbr import load_utility
from hf_acpmbr.metrics.network import NetworkUtility
from hf_acpmbr.scoring import MatrixUtility, Utility
from hf_acpmbr.version import code_version

# What a stored matrix must know about its utility.
DESCRIPTION = ("name", "signature", "higher_is_better", "scale", "parameters", "symmetric")


class UtilityPhase(Phase):
    """A phase that works with one utility, loaded on this process's device and described in its results."""

    kind: ClassVar[str]
    compares: ClassVar[bool] = True  # candidates with each other or with a reference, not only rates them
    utility: Utility

    def __init__(self, run: EvaluationSettings, utility: str, before: Phase) -> None:
        self.name = f"{self.kind}-{utility.replace('/', '--')}"
        super().__init__(before.corpus, before.folder, (before,))
        self.run, self.utility_name, self.given = run, utility, before.name

    def settings(self) -> Mapping[str, object]:
        return {"utility_options": dict(self.run.utility_options.get(self.utility_name, {}))}

    def contents(self) -> Mapping[str, str]:
        return utility_contents(self.run, [self.utility_name])

    def check(self) -> None:
        if self.compares and not open_utility(self.run, self.utility_name, "cpu").needs_reference:
            raise ValueError(
                f"{self.utility_name} looks at no reference, so it cannot compare candidates: choose another target or "
                "distilled utility; as one of the metrics it is fine"
            )

    def start(self, device: str) -> None:
        self.utility = open_utility(self.run, self.utility_name, device)
        if isinstance(self.utility, NetworkUtility):
            _ = self.utility.network  # loaded now, so that what is loaded is what was checked

    def stop(self) -> None:
        vars(self).pop("utility", None)

    def meta(self) -> Record:
        return {name: getattr(self.utility, name) for name in DESCRIPTION}


class MatrixPhase(UtilityPhase):
    """All scores between the candidates of a source, in float32 as networks give them."""

    kind = "matrix"
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "scores": pa.list_(pa.float32())})

    def references(self, source: Source, texts: Sequence[str]) -> Sequence[str]:
        """Return what the candidates are scored against."""
        return texts

    def source_rows(self, source: Source, given: Given) -> list[Record]:
        texts = given[self.given].candidates.texts
        scores = full_matrix(self.utility, texts, self.references(source, texts), source.text)
        precision = self.schema.field("scores").type.value_type.to_pandas_dtype()
        return [{"index": source.index, "scores": scores.astype(precision).ravel()}]

    def by_source(self, shard: int) -> Mapping[int, npt.NDArray[np.floating]]:
        """Return (n, n) scores for each source, without turning them into Python lists."""
        table = self.store.table(shard)
        lists = table["scores"].combine_chunks()
        values, ends = lists.values.to_numpy(), lists.offsets.to_numpy()
        indices = table["index"].to_pylist()
        parts = [values[first:last] for first, last in pairwise(ends)]
        return {index: self.shaped(part) for index, part in zip(indices, parts, strict=True)}

    def shaped(self, scores: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        return scores.reshape(-1, round(len(scores) ** 0.5))

    def stored(self, scores: npt.NDArray[np.floating], source: Source, texts: Sequence[str]) -> MatrixUtility:
        """Stand in for the utility that the scores came from: calls are counted as its own would be."""
        references = self.references(source, texts)
        about: dict[str, Any] = {name: value for name, value in self.known().items() if name in DESCRIPTION}
        symmetric = about.pop("symmetric") and list(references) == list(texts)
        del about["signature"]
        found = MatrixUtility(scores, texts, references, **about)
        found.symmetric = symmetric
        return found


class ReferencePhase(MatrixPhase):
    """The target's scores of all candidates against the real reference, for the oracle: (n, 1)."""

    kind = "reference"
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "scores": pa.list_(pa.float64())})

    def references(self, source: Source, texts: Sequence[str]) -> Sequence[str]:
        return [source.reference]

    def shaped(self, scores: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        return scores[:, None]


class MetricPhase(UtilityPhase):
    """A metric's scores of every row's choice against the real reference: {row: score} for each source."""

    kind = "metric"
    compares = False
    schema: ClassVar[pa.Schema] = pa.schema({"index": pa.int64(), "row": pa.string(), "score": pa.float64()})

    def source_rows(self, source: Source, given: Given) -> list[Record]:
        decisions = given[self.given]
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


def utility_contents(run: EvaluationSettings, names: Sequence[str]) -> dict[str, str]:
    """Name the content of checkpoints by their signatures, and the code of the metrics."""
    found = {f"content of {name}": open_utility(run, name, "cpu").signature for name in names}
    return {**found, "version of the metrics' code": code_version("scoring", "metrics")}


def open_utility(run: EvaluationSettings, name: str, device: str) -> Utility:
    """Load a utility with the run's options for it; networks go to this process's device."""
    options = dict(run.utility_options.get(name, {}))
    try:
        utility = load_utility(name, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"utility_options.{name}: {error}" if options else str(error)) from None
    if isinstance(utility, NetworkUtility):  # nothing is loaded yet
        utility = load_utility(name, **{"device": device, **options})
    return utility
