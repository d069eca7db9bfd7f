"""The paper's experiment: draw, score, decode with every row of the table, evaluate; on one process or many.

    accelerate launch evaluation/run_wmt.py --config evaluation/configs/paper_high.yaml
    accelerate launch --multi_gpu --num_processes 2 evaluation/run_wmt.py --config embedded      # also 2 CPU processes

Everything is kept in --output in shards, so a run that was killed goes on where it stopped and ends with the same
files; the number of processes changes nothing in them. https://arxiv.org/abs/2512.01316
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# MKL's last digits depend on where in memory an array begins, and so on what the process did before; in this mode they
# do not. Those of numpy's products depend on the number of threads, which launchers set differently. Both are read when
# the libraries load, hence set before anything else is imported.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if __package__ in (None, ""):  # launched as a file: the project's folder, not evaluation/, is where imports start
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from evaluation.candidates import CandidatesPhase
from evaluation.data import load_sentences
from evaluation.decisions import DecisionsPhase
from evaluation.launch import Workers
from evaluation.phases import Corpus, Phase, run_phase
from evaluation.results import CORPUS_METRICS, merge, open_results
from evaluation.scoring import MatrixPhase, MetricPhase, ReferencePhase
from evaluation.settings import EvaluationSettings, load_settings
from evaluation.table import build_table

DEFAULT_OUTPUT = "runs"


def phases(settings: EvaluationSettings, corpus: Corpus, folder: Path) -> list[Phase]:
    """The steps for one language pair, in order."""
    drawn = CandidatesPhase(corpus, folder, settings)
    utilities = (settings.target, *settings.distilled) if settings.full_matrices else ()
    matrices = [MatrixPhase(corpus, folder, settings, name, (drawn,)) for name in utilities]
    reference = ReferencePhase(corpus, folder, settings, settings.target, (drawn,))
    decisions = DecisionsPhase(corpus, folder, settings, (drawn, *matrices, reference))
    metrics = [
        MetricPhase(corpus, folder, settings, name, (decisions,))
        for name in settings.metrics
        if name not in CORPUS_METRICS
    ]
    return [drawn, *matrices, reference, decisions, *metrics]


def run(settings: EvaluationSettings, folder: Path, workers: Workers, overwrite: bool, retry_failed: bool) -> None:
    """All language pairs; the main process then merges the shards."""
    for pair in settings.data.pairs:
        corpus = Corpus(pair, load_sentences(settings.data, pair), settings.shard_size)
        steps = phases(settings, corpus, folder)
        for phase in steps:
            run_phase(phase, workers, overwrite, retry_failed)
        if workers.is_main:
            merge(settings, corpus, steps, folder)
        workers.wait()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="YAML file, or the name of one in evaluation/configs")
    parser.add_argument("--output", type=Path, help=f"folder for everything (default {DEFAULT_OUTPUT}/<config's name>)")
    parser.add_argument("--model", help="Hub id, folder or 'embedded'")
    parser.add_argument("--target", help="the utility that decides")
    parser.add_argument("--distilled", nargs="+", help="its cheaper versions")
    parser.add_argument("--metrics", nargs="+", help="columns of the table")
    parser.add_argument("--data", help="wmt22, wmt23, tatoeba, builtin, a JSONL(.gz) file or a Hub dataset")
    parser.add_argument("--pairs", nargs="+", help="language pairs, such as en-de de-en")
    parser.add_argument("--limit", type=int, help="only the first so many sentences")
    parser.add_argument("--num-candidates", type=int, help="N")
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--full-matrices",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="score every pair (for MBR, MSE and regret) or only what the decoders observe",
    )
    parser.add_argument("--processes", type=int, help="refuse to run with another number of processes")
    parser.add_argument("--overwrite", action="store_true", help="replace results made with other settings")
    parser.add_argument("--retry-failed", action="store_true", help="try again the sources that failed")
    return parser.parse_args(arguments)


def read_settings(options: argparse.Namespace) -> EvaluationSettings:
    """The configuration with what the command line changes."""
    changes = {
        "model.name": options.model,
        "target": options.target,
        "distilled": options.distilled,
        "metrics": options.metrics,
        "data.name": options.data,
        "data.pairs": options.pairs,
        "data.limit": options.limit,
        "sampling.num_candidates": options.num_candidates,
        "seed": options.seed,
        "full_matrices": options.full_matrices,
    }
    return load_settings(options.config, changes)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = read_settings(options)
    folder = options.output or Path(DEFAULT_OUTPUT) / settings.name
    workers = Workers.start(settings.threads, options.processes)
    try:
        run(settings, folder, workers, options.overwrite, options.retry_failed)
        if workers.is_main:
            report_to_terminal(folder)
    finally:
        workers.end()
    return 0


def report_to_terminal(folder: Path) -> None:
    for results in open_results(folder):
        print(f"\n{build_table(results).text()}")
        if results.failed:
            print(
                f"\n{len(results.failed)} sources failed and are left out; --retry-failed tries them again "
                f"(failures.{results.pair}.jsonl):"
            )
            for index, message in list(results.failed.items())[:5]:
                print(f"  {index}: {message}")


if __name__ == "__main__":
    sys.exit(main())
