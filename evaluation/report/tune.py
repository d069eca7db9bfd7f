"""γ × λ × rank by the completed matrix's MSE, from a run's stored matrices: `python -m evaluation.report.tune RUN`.

Nothing is scored again: every combination completes the same observed entries. The paper chose γ so on WMT'22 En→De
(γ = 0.1 at Low, 1.0 at High); `--config paper_tune` makes that run.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evaluation.benchmarks.measures import mean_and_error
from evaluation.command import Parser, run_command
from evaluation.report.results import Results, open_results
from evaluation.wmt.phases.base import Corpus
from evaluation.wmt.phases.candidates import CandidatesPhase
from evaluation.wmt.phases.decisions import Judges, decide, source_seed
from evaluation.wmt.phases.scores import MatrixPhase
from evaluation.wmt.rows import Row, agreement_als, table_rows
from evaluation.wmt.settings import EvaluationSettings
from hf_acpmbr.files import write_atomically

GAMMAS = tuple(round(0.1 * k, 1) for k in range(1, 11))


@dataclass(frozen=True)
class Tuned:
    """One combination: mean MSE over the sentences, and its standard error."""

    budget: str
    distilled: str
    gamma: float
    regularization: float
    rank: int
    error: float
    uncertainty: float


def grid(
    settings: EvaluationSettings, gammas: Sequence[float], regularizations: Sequence[float], ranks: Sequence[int]
) -> list[Row]:
    """Combine AC-PMBR's rows of the table with all combinations."""
    rows = []
    for row in table_rows(settings):
        if row.can_have_agreement:
            for gamma, penalty, rank in itertools.product(gammas, regularizations, ranks):
                key = f"{row.key}/{gamma:g}/{penalty:g}/{rank}"
                rows.append(row.with_agreement(key, agreement=gamma, regularization=penalty, rank=rank))
    return rows


def shard_errors(shard: int, results: Results, corpus: Corpus, rows: list[Row]) -> list[list[float]]:
    """Measure the (sources, rows) MSE of one shard."""
    settings = results.settings
    drawn = CandidatesPhase(corpus, results.folder, settings)
    matrices = {name: MatrixPhase(settings, name, drawn) for name in (settings.target, *settings.distilled)}
    found = {name: phase.by_source(shard) for name, phase in matrices.items()}
    candidates, errors = drawn.by_source(shard), []
    for source in corpus.shard(shard):
        if source.index in candidates and all(source.index in part for part in found.values()):
            pool = candidates[source.index]
            stored = {
                name: matrices[name].stored(part[source.index], source, pool.texts) for name, part in found.items()
            }
            judges = Judges(stored, settings.target, stored[settings.target].matrix)
            made = decide(rows, pool, judges, source, source_seed(settings.seed, source.index))
            errors.append([float(decision.completion_error or 0.0) for decision in made])
    return errors


def tune(
    folder: Path,
    gammas: Sequence[float] = GAMMAS,
    regularizations: Sequence[float] = (0.1,),
    ranks: Sequence[int] = (8,),
    workers: int = 1,
) -> list[Tuned]:
    """Measure all combinations per block and distilled utility of the run's first language pair, best first in each."""
    results = open_results(folder)[0]
    settings = results.settings
    if not settings.full_matrices:
        raise ValueError(f"{folder} was run without full matrices, so no error is known: run it with --full-matrices")
    corpus = Corpus(results.pair, results.run_sentences, settings.shard_size)
    rows = grid(settings, gammas, regularizations, ranks)
    work = partial(shard_errors, results=results, corpus=corpus, rows=rows)
    with ProcessPoolExecutor(workers) if workers > 1 else nullcontext() as pool:
        shards = list(pool.map(work, corpus.shards) if pool else map(work, corpus.shards))
    mean, spread = mean_and_error([errors for shard in shards for errors in shard])
    found = [_tuned(row, float(m), float(s)) for row, m, s in zip(rows, mean, spread, strict=True)]
    order = {key: k for k, key in enumerate(dict.fromkeys((t.budget, t.distilled) for t in found))}
    return sorted(found, key=lambda t: (order[t.budget, t.distilled], t.error))


def _tuned(row: Row, error: float, uncertainty: float) -> Tuned:
    solver = agreement_als(row.recipe)
    gamma = solver.agreement if isinstance(solver.agreement, (int, float)) else solver.agreement[0]
    return Tuned(row.budget, str(row.distilled), gamma, solver.regularization, solver.rank, error, uncertainty)


def show(options: argparse.Namespace) -> None:
    found = tune(options.run, options.gamma, options.regularization, options.rank, options.workers)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(Tuned)])
    writer.writerows(dataclasses.astuple(tuned) for tuned in found)
    write_atomically(options.run / "tune.csv", out.getvalue())
    print(f"{'block':<12} {'distilled':<16} {'γ':>5} {'λ':>6} {'rank':>5} {'MSE':>9}   (best of each; all in tune.csv)")
    for _, group in itertools.groupby(found, key=lambda t: (t.budget, t.distilled)):
        best = next(group)
        print(
            f"{best.budget:<12} {best.distilled:<16} {best.gamma:>5g} {best.regularization:>6g} {best.rank:>5} "
            f"{best.error:>9.2f} ± {best.uncertainty:.2f}"
        )


def main() -> None:
    parser = Parser(prog="evaluation.report.tune", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run with full matrices")
    parser.add_argument("--gamma", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--regularization", type=float, nargs="+", default=[0.1], help="λ")
    parser.add_argument("--rank", type=int, nargs="+", default=[8])
    parser.add_argument("--workers", type=int, default=1, help="processes")
    run_command(parser, show)


if __name__ == "__main__":
    main()
