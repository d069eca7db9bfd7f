"""What the phases that score share: one utility each, loaded on this process's device and described in its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from evaluation.wmt.phases.base import Part, Phase
from evaluation.wmt.settings import EvaluationSettings
from evaluation.wmt.store import Record
from hf_acpmbr import load_utility
from hf_acpmbr.metrics.network import NetworkUtility
from hf_acpmbr.scoring import MatrixUtility, Utility
from hf_acpmbr.version import code_version


@dataclass(frozen=True)
class Description:
    """What a stored matrix must know about its utility."""

    name: str
    signature: str
    higher_is_better: bool
    scale: float
    parameters: int
    symmetric: bool

    @classmethod
    def of(cls, utility: Utility) -> Description:
        return cls(**{name: getattr(utility, name) for name in cls.__dataclass_fields__})

    def utility(
        self, matrix: npt.NDArray[np.floating], hypotheses: Sequence[str], references: Sequence[str]
    ) -> MatrixUtility:
        """A stored matrix instead of the utility it came from, which counts its calls as that one would."""
        stored = MatrixUtility(
            matrix,
            hypotheses,
            references,
            name=self.name,
            higher_is_better=self.higher_is_better,
            scale=self.scale,
            parameters=self.parameters,
        )
        stored.symmetric = self.symmetric and list(references) == list(hypotheses)
        return stored


class UtilityPhase(Phase[Part]):
    """A phase that works with one utility."""

    kind: ClassVar[str]
    compares: ClassVar[bool] = True  # candidates with each other or with a reference, not only rates them

    def __init__(self, run: EvaluationSettings, utility: str, before: tuple[Phase[object], ...]) -> None:
        self.name = f"{self.kind}-{utility.replace('/', '--')}"
        super().__init__(before[0].corpus, before[0].folder, before)
        self.run, self.utility_name = run, utility
        self._utility: Utility | None = None

    @property
    def utility(self) -> Utility:
        if self._utility is None:
            raise LookupError(f"{self.name} has not been started")
        return self._utility

    def settings(self) -> Mapping[str, object]:
        return {"utility_options": dict(self.run.utility_options.get(self.utility_name, {}))}

    def contents(self) -> Mapping[str, str]:
        return utility_contents(self.run, [self.utility_name])

    def check(self) -> None:
        utility = open_utility(self.run, self.utility_name, "cpu")
        if self.compares and not utility.needs_reference:
            raise ValueError(
                f"{self.utility_name} looks at no reference, so it cannot compare candidates: choose another target or "
                "distilled utility; as one of the metrics it is fine"
            )

    def start(self, device: str) -> None:
        self._utility = open_utility(self.run, self.utility_name, device)
        if isinstance(self._utility, NetworkUtility):
            _ = self._utility.network  # loaded now, so that what is loaded is what was checked

    def stop(self) -> None:
        self._utility = None

    def meta(self) -> Record:
        return asdict(Description.of(self.utility))

    def description(self) -> Description:
        """Of the utility that the results were made with."""
        return Description(**self.known())

    def numbers(self, shard: int) -> Mapping[int, npt.NDArray[np.floating]]:
        """The `scores` of each source, without turning them into Python lists."""
        table = self.store.columns(shard)
        lists = table["scores"].combine_chunks()
        values, offsets = lists.values.to_numpy(), lists.offsets.to_numpy()
        return {
            index: values[offsets[position] : offsets[position + 1]]
            for position, index in enumerate(table["index"].to_pylist())
        }


def utility_contents(run: EvaluationSettings, names: Sequence[str]) -> dict[str, str]:
    """Signatures, which name the content of checkpoints, and the code of the metrics."""
    found = {f"content of {name}": open_utility(run, name, "cpu").signature for name in names}
    return {**found, "version of the metrics' code": code_version("scoring", "metrics")}


def open_utility(run: EvaluationSettings, name: str, device: str) -> Utility:
    """A utility with the run's options for it; networks go to this process's device."""
    options = dict(run.utility_options.get(name, {}))
    try:
        utility = load_utility(name, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"utility_options.{name}: {error}" if options else str(error)) from None
    if isinstance(utility, NetworkUtility):  # nothing is loaded yet
        utility = load_utility(name, **{"device": device, **options})
    return utility
