"""The phase in which every row of the table and point of the figures decides for every source."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evaluation.benchmarks.measures import regret, squared_error
from evaluation.wmt.data import Source
from evaluation.wmt.phases.base import Given, Phase, Record
from evaluation.wmt.phases.candidates import CandidatesPhase, Drawn
from evaluation.wmt.phases.scores import MatrixPhase, ReferencePhase, open_utility, utility_contents
from evaluation.wmt.rows import BEAM, Row, all_rows
from evaluation.wmt.settings import EvaluationSettings
from hf_acpmbr import Candidates, Decision
from hf_acpmbr.completion import ConvergenceWarning
from hf_acpmbr.decoding import PMBR
from hf_acpmbr.scoring import Utility
from hf_acpmbr.version import code_version

Matrix = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Judges:
    """What decides for one source."""

    utilities: Mapping[str, Utility]  # by name; stored matrices or the real ones
    target: str
    full: Matrix | None = None  # (n, n) the target's, where it is known
    oracle: Utility | None = None  # the target against the real reference, where the oracle is asked for


def source_seed(seed: int, index: int) -> int:
    """Make a seed for each source, so that its random pairs do not depend on the process that meets it."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)[0]) >> 1


def decide(rows: Sequence[Row], candidates: Candidates, judges: Judges, source: Source, seed: int) -> list[Decision]:
    """Decide one source by each row."""
    decisions = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the paper too stops after 30 sweeps
        for row in rows:
            real = row.method == "oracle"
            target = None if row.recipe.target is None else judges.utilities[judges.target]
            decisions.append(
                row.decoder.decode(
                    candidates,
                    [source.reference] if real else None,
                    judges.oracle if real else target,
                    [] if row.distilled is None else [judges.utilities[row.distilled]],
                    source=source.text,
                    seed=seed,
                    full_matrix=None if real or target is None else judges.full,
                )
            )
    return decisions


def matrix_error(row: Row, decision: Decision, judges: Judges) -> float | None:
    """Measure the MSE of what a row takes for the target's matrix; a distilled one is brought to the target's scale.

    None for decoders that complete no matrix, and where the two have opposite directions: they share no scale.
    """
    if row.own and not isinstance(row.recipe.decoder, PMBR):
        return None
    if row.method != "distilled-mbr" or judges.full is None or decision.matrix is None:
        return decision.completion_error
    guide, target = judges.utilities[str(row.distilled)], judges.utilities[judges.target]
    if guide.higher_is_better != target.higher_is_better:
        return None
    weights = decision.candidates.weights
    return squared_error(decision.matrix, judges.full, weights, scale=guide.scale, truth_scale=target.scale)


class DecisionsPhase(Phase):
    """From stored matrices where they are full, else with the utilities themselves, scoring only what is observed."""

    name = "decisions"
    expensive = False
    schema: ClassVar[pa.Schema] = pa.schema(
        {
            "index": pa.int64(),
            "row": pa.string(),
            "text": pa.string(),
            "chosen": pa.int64(),
            "expected": pa.float64(),
            "regret": pa.float64(),
            "stated": pa.float64(),
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
        self,
        run: EvaluationSettings,
        drawn: CandidatesPhase,
        matrices: Sequence[MatrixPhase],
        references: ReferencePhase,
    ) -> None:
        super().__init__(drawn.corpus, drawn.folder, (drawn, *matrices, references))
        self.run, self.rows = run, [row for row in all_rows(run) if row.method != BEAM]
        self.drawn, self.matrices, self.references = drawn, matrices, references
        self.loaded: dict[str, Utility] = {}

    def settings(self) -> Mapping[str, object]:
        return {"seed": self.run.seed, "rows": [[row.key, row.recipe.to_dict(), row.per_row] for row in self.rows]}

    def contents(self) -> Mapping[str, str]:
        return {**utility_contents(self.run, self._utilities), "version of the code": code_version()}

    def start(self, device: str) -> None:
        if not self.matrices:
            self.loaded = {name: open_utility(self.run, name, device) for name in self._utilities}

    def check(self) -> None:
        for row in self.rows:
            _ = row.decoder

    @property
    def _utilities(self) -> tuple[str, ...]:
        return (self.run.target, *self.run.distilled)

    def stop(self) -> None:
        self.loaded = {}

    def source_rows(self, source: Source, given: Given) -> list[Record]:
        drawn: Drawn = given[self.drawn.name]
        candidates, texts = drawn.candidates, drawn.candidates.texts
        oracle = self.references.stored(given[self.references.name], source, texts)
        stored = {phase.utility_name: phase.stored(given[phase.name], source, texts) for phase in self.matrices}
        full = stored[self.run.target].matrix if stored else None
        judges = Judges(stored or self.loaded, self.run.target, full, oracle)
        decisions = decide(self.rows, candidates, judges, source, source_seed(self.run.seed, source.index))
        # Beam search decides nothing: only its text is known.
        beam = {"index": source.index, "row": BEAM, "text": drawn.beam, "calls": "{}", "status": "", "exact": False}
        return [beam, *(self._record(source, *made, judges) for made in zip(self.rows, decisions, strict=True))]

    def _record(self, source: Source, row: Row, decision: Decision, judges: Judges) -> Record:
        lost, stated, target = None, None, judges.oracle
        if decision.expected_regret is not None and target is not None and not row.full and row.method != "oracle":
            stated = 100.0 * decision.expected_regret / target.scale
        if judges.full is not None and target is not None:
            expected = judges.full @ decision.candidates.weights
            lost = regret(expected, decision.index, higher_is_better=target.higher_is_better, scale=target.scale)
        return {
            "index": source.index,
            "row": row.key,
            "text": decision.text,
            "chosen": decision.index,
            "expected": float(decision.expected[decision.index]),
            "regret": lost,
            "stated": stated,
            "completion_error": matrix_error(row, decision, judges),
            "exact": decision.exact,
            "calls": json.dumps(dict(decision.calls), sort_keys=True),
            "paper_cost": decision.paper_cost,
            "status": decision.status,
            "unique": len(decision.candidates),
            "drawn": decision.candidates.total,
        }

    def by_source(self, shard: int) -> Mapping[int, list[Record]]:
        grouped: dict[int, list[Record]] = {}
        for row in self.store.read(shard):
            grouped.setdefault(row["index"], []).append(row)
        return grouped
