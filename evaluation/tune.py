"""γ × λ × rank by the MSE of the completed matrix, from a run's stored matrices: `python -m evaluation.tune RUN`.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from evaluation.candidates import CandidatesPhase
from evaluation.data import load_sentences
from evaluation.decisions import decide, source_seed
from evaluation.phases import Corpus
from evaluation.results import open_results
from evaluation.rows import Row, table_rows
from evaluation.scoring import MatrixPhase, stored_utility
from evaluation.settings import EvaluationSettings
from evaluation.shards import write_atomically

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
    """AC-PMBR's rows of the table, each with every combination."""
    rows = []
    for row in table_rows(settings):
        if row.can_have_agreement:
            for gamma, penalty, rank in itertools.product(gammas, regularizations, ranks):
                key = f"{row.key}/{gamma:g}/{penalty:g}/{rank}"
                rows.append(row.with_agreement(key, agreement=gamma, regularization=penalty, rank=rank))
    return rows


def shard_errors(shard: int, settings: EvaluationSettings, corpus: Corpus, folder: Path, rows: list[Row]) -> np.ndarray:
    """(sources, rows) MSE of one shard."""
    drawn = CandidatesPhase(corpus, folder, settings)
    names = (settings.target, *settings.distilled)
    matrices = {name: MatrixPhase(corpus, folder, settings, name, (drawn,)) for name in names}
    known = {name: phase.known() for name, phase in matrices.items()}
    stored = {name: phase.by_source(shard) for name, phase in matrices.items()}
    candidates = drawn.by_source(shard)
    errors = []
    for source in corpus.shard(shard):
        if source.index in candidates and all(source.index in part for part in stored.values()):
            pool = candidates[source.index]
            utilities = {
                name: stored_utility(part[source.index], pool, list(pool.texts), known[name])
                for name, part in stored.items()
            }
            full = utilities[settings.target].matrix
            seed = source_seed(settings.seed, source.index)
            made = decide(rows, pool, dict(utilities), utilities[settings.target], source, seed, full)
            errors.append([decision.completion_error for decision in made])
    return np.array(errors, dtype=np.float64).reshape(-1, len(rows))


def tune(
    folder: Path,
    gammas: Sequence[float] = GAMMAS,
    regularizations: Sequence[float] = (0.1,),
    ranks: Sequence[int] = (8,),
    workers: int = 1,
) -> list[Tuned]:
    """Every combination for every block and distilled utility of the run's first language pair, best first in each."""
    results = open_results(folder)[0]
    settings = results.settings
    if not settings.full_matrices:
        raise ValueError(f"{folder} was run without full matrices, so no error is known: run it with --full-matrices")
    corpus = Corpus(results.pair, load_sentences(settings.data, results.pair), settings.shard_size)
    rows = grid(settings, gammas, regularizations, ranks)
    work = partial(shard_errors, settings=settings, corpus=corpus, folder=folder, rows=rows)
    if workers > 1:
        with ProcessPoolExecutor(workers) as pool:
            errors = np.concatenate(list(pool.map(work, corpus.shards)))
    else:
        errors = np.concatenate([work(shard) for shard in corpus.shards])
    mean, spread = errors.mean(0), errors.std(0) / np.sqrt(len(errors))
    found = [_tuned(row, float(m), float(s)) for row, m, s in zip(rows, mean, spread, strict=True)]
    order = {key: k for k, key in enumerate(dict.fromkeys((t.budget, t.distilled) for t in found))}
    return sorted(found, key=lambda t: (order[t.budget, t.distilled], t.error))


def _tuned(row: Row, error: float, uncertainty: float) -> Tuned:
    config = row.config
    assert isinstance(config.agreement, float)
    return Tuned(
        row.budget, str(row.distilled), config.agreement, config.regularization, config.rank, error, uncertainty
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run with full matrices")
    parser.add_argument("--gamma", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--regularization", type=float, nargs="+", default=[0.1], help="λ")
    parser.add_argument("--rank", type=int, nargs="+", default=[8])
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args()
    found = tune(options.run, options.gamma, options.regularization, options.rank, options.workers)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(Tuned)])
    writer.writerows(dataclasses.astuple(tuned) for tuned in found)
    write_atomically(options.run / "tune.csv", out.getvalue().encode())
    print(f"{'block':<12} {'distilled':<16} {'γ':>5} {'λ':>6} {'rank':>5} {'MSE':>9}   (best of each; all in tune.csv)")
    for _, group in itertools.groupby(found, key=lambda t: (t.budget, t.distilled)):
        best = next(group)
        print(
            f"{best.budget:<12} {best.distilled:<16} {best.gamma:>5g} {best.regularization:>6g} {best.rank:>5} "
            f"{best.error:>9.2f} ± {best.uncertainty:.2f}"
        )


if __name__ == "__main__":
    main()
