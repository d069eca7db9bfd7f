"""Phase 3: every row of the table and point of the figures decides for every source."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from evaluation.phases import Corpus, Phase, Source
from evaluation.rows import Row, all_rows
from evaluation.scoring import MatrixPhase, ReferencePhase, open_utility, stored_utility
from evaluation.settings import EvaluationSettings
from hf_acpmbr import Candidates, Decision
from hf_acpmbr.completion import ConvergenceWarning
from hf_acpmbr.utilities import Utility


def source_seed(seed: int, index: int) -> int:
    """Each source has its own random pairs, whichever process meets it."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)[0] >> 1)


def decide(
    rows: Sequence[Row],
    candidates: Candidates,
    utilities: dict[str, Utility],
    oracle: Utility,
    source: Source,
    seed: int,
    full: np.ndarray | None = None,
) -> list[Decision]:
    """The decisions of all rows for one source.

    Args:
        utilities: by name; stored matrices or the real ones.
        oracle: the target against the real reference.
        full: (n, n) the target's matrix, where it is known.
    """
    decisions = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the paper too stops after 30 sweeps
        for row in rows:
            real = row.config.decoder == "oracle"
            decisions.append(
                row.decoder.decode(
                    candidates,
                    [source.reference] if real else None,
                    oracle if real else utilities.get(str(row.config.target)),
                    [] if row.distilled is None else [utilities[row.distilled]],
                    source=source.text,
                    seed=seed,
                    full_matrix=None if real else full,
                )
            )
    return decisions


class DecisionsPhase(Phase):
    """From stored matrices where they are full, else with the utilities themselves, scoring only what is observed."""

    name = "decisions"
    costly = False
    schema: ClassVar[pa.Schema] = pa.schema(
        {
            "index": pa.int64(),
            "row": pa.string(),
            "text": pa.string(),
            "chosen": pa.int64(),
            "expected": pa.float64(),
            "full_expected": pa.float64(),
            "best_expected": pa.float64(),
            "completion_error": pa.float64(),
            "exact": pa.bool_(),
            "calls": pa.string(),
            "paper_cost": pa.float64(),
            "status": pa.string(),
            "unique": pa.int64(),
            "drawn": pa.int64(),
        }
    )

    def __init__(
        self, corpus: Corpus, folder: Path, run: EvaluationSettings, before: tuple[Phase, ...], rows: Sequence[Row] = ()
    ) -> None:
        super().__init__(corpus, folder, before)
        self.run, self.rows = run, list(rows or all_rows(run))
        self.matrices = [phase for phase in before if isinstance(phase, MatrixPhase)]
        self.references = next(phase for phase in before if isinstance(phase, ReferencePhase))
        self.loaded: dict[str, Utility] = {}
        self.descriptions: dict[str, Any] = {}

    def settings(self) -> Any:
        return [self.run.seed, [[row.key, row.config.to_dict(), row.count] for row in self.rows]]

    def start(self, device: str) -> None:
        self.descriptions = {phase.name: phase.known() for phase in (*self.matrices, self.references)}
        if not self.matrices:
            names = dict.fromkeys((self.run.target, *self.run.distilled))
            self.loaded = {name: open_utility(self.run, name, device) for name in names}

    def stop(self) -> None:
        self.loaded = {}

    def source_rows(self, source: Source, given: dict[str, Any]) -> list[dict[str, Any]]:
        candidates: Candidates = given["candidates"]
        utilities, full = self.loaded, None
        if self.matrices:
            utilities = {
                phase.utility_name: stored_utility(
                    given[phase.name], candidates, list(candidates.texts), self.descriptions[phase.name]
                )
                for phase in self.matrices
            }
            full = utilities[self.run.target].matrix  # type: ignore[attr-defined]
        oracle = stored_utility(
            given[self.references.name][:, None],
            candidates,
            [source.reference],
            self.descriptions[self.references.name],
        )
        seed = source_seed(self.run.seed, source.index)
        made = decide(self.rows, candidates, utilities, oracle, source, seed, full)
        target = None if full is None else full @ candidates.weights
        return [self._record(source, row, decision, target) for row, decision in zip(self.rows, made, strict=True)]

    def _record(self, source: Source, row: Row, decision: Decision, target: np.ndarray | None) -> dict[str, Any]:
        best = None
        if target is not None:
            better = self.descriptions[self.references.name]["higher_is_better"]
            best = float(target.max() if better else target.min())
        return {
            "index": source.index,
            "row": row.key,
            "text": decision.text,
            "chosen": decision.index,
            "expected": float(decision.expected[decision.index]),
            "full_expected": None if target is None else float(target[decision.index]),
            "best_expected": best,
            "completion_error": decision.completion_error,
            "exact": decision.exact,
            "calls": json.dumps(dict(decision.calls), sort_keys=True),
            "paper_cost": decision.paper_cost,
            "status": decision.status,
            "unique": len(decision.candidates),
            "drawn": decision.candidates.total,
        }
