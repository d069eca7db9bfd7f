"""The paper's experiment: draw, score, decode with every row of the table, evaluate; on one process or many.

    accelerate launch evaluation/run_wmt.py --config paper --budgets high
    accelerate launch --multi_gpu --num_processes 2 evaluation/run_wmt.py --config embedded      # also 2 CPU processes
    python evaluation/run_wmt.py --config embedded --shard 0/2                                   # and 1/2, anywhere

Everything is kept in --output in shards, so a run that was killed goes on where it stopped and ends with the same
files; the number of processes changes nothing in them. https://arxiv.org/abs/2512.01316
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evaluation.assets import DATA_HELP
from evaluation.command import Parser, add_debug, exit_code
from evaluation.report.results import CORPUS_METRICS, open_results
from evaluation.report.table import build_table
from evaluation.wmt.data import load_sentences
from evaluation.wmt.phases.base import Corpus, Phase, parquet, run_phase
from evaluation.wmt.phases.candidates import CandidatesPhase
from evaluation.wmt.phases.decisions import DecisionsPhase
from evaluation.wmt.phases.scores import MatrixPhase, MetricPhase, ReferencePhase, UtilityPhase
from evaluation.wmt.settings import EvaluationSettings, load_settings
from hf_acpmbr import __version__
from hf_acpmbr.files import lock_file, write_atomically
from hf_acpmbr.runs.shards import HOW_TO_LAUNCH, Share, json_digest

DEFAULT_OUTPUT = "runs"
# Options that change the configuration, by key; their names are the last part of it that is not "name".
CHANGES: dict[str, dict[str, Any]] = {
    "model.name": {"help": "Hub id, folder or 'embedded'"},
    "target": {"help": "the utility that decides"},
    "distilled": {"nargs": "+", "help": "its cheaper versions"},
    "metrics": {"nargs": "+", "help": "columns of the table"},
    "data.name": {"help": "builtin, tatoeba, wmt23, …, a JSONL(.gz) file"},
    "data.pairs": {"nargs": "+", "help": "language pairs, such as en-de de-en"},
    "data.limit": {"type": int, "help": "at most this many sentences, the first"},
    "sampling.num_candidates": {"type": int, "help": "N"},
    "budgets": {"nargs": "*", "help": "the paper's settings: low, high"},
    "seed": {"type": int},
    "full_matrices": {
        "action": argparse.BooleanOptionalAction,
        "help": "score every pair (for MBR, MSE and regret) or only what the decoders observe",
    },
}


def phases(settings: EvaluationSettings, pair: str, folder: Path, data: Path | None) -> list[Phase]:
    """List the steps for one language pair, in order."""
    corpus = Corpus(pair, load_sentences(settings.data, pair, data), settings.shard_size)
    drawn = CandidatesPhase(corpus, folder, settings)
    utilities = (settings.target, *settings.distilled) if settings.full_matrices else ()
    matrices = [MatrixPhase(settings, name, drawn) for name in utilities]
    reference = ReferencePhase(settings, settings.target, drawn)
    decisions = DecisionsPhase(settings, drawn, matrices, reference)
    metrics = [MetricPhase(settings, name, decisions) for name in settings.metrics if name not in CORPUS_METRICS]
    return [drawn, *matrices, reference, decisions, *metrics]


def check(steps: Sequence[Sequence[Phase]], options: argparse.Namespace) -> None:
    """Look at everything that can fail before the first phase: the metrics come last, and some are gated."""
    for pair in steps:
        for phase in pair:
            try:
                phase.check()
                phase.identify()  # names all files, and loads none
            except OSError as error:
                raise FileNotFoundError(f"{phase.name}: its files cannot be had: {error}") from error
            phase.refuse_other_results(options.overwrite)


def run(settings: EvaluationSettings, options: argparse.Namespace, folder: Path, share: Share) -> bool:
    """Take this process's shards through all phases, and merge what is complete; return whether that is everything."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file: give a folder")
    steps = [phases(settings, pair, folder, options.data_folder) for pair in settings.data.pairs]
    check(steps, options)
    for phase in (phase for pair in steps for phase in pair if not options.merge):
        run_phase(phase, share, options.retry_failed)
    for phase in (phase for pair in steps for phase in pair):
        phase.refuse_other_results(options.overwrite)  # that another process has made meanwhile
    merged = [merge_if_complete(settings, pair, folder, again=share.count == 1) for pair in steps]
    if missing := "; ".join(words for _, words in merged if words):
        if options.merge:
            raise ValueError(f"--merge: {missing}")
        print(f"{share}: {missing}; the process that makes the last one merges", file=sys.stderr)
    return not missing and any(made for made, _ in merged)


def merge_if_complete(
    settings: EvaluationSettings, phases: Sequence[Phase], folder: Path, *, again: bool
) -> tuple[bool, str]:
    """Merge one language pair if all shards are there and no other process does, or has (unless `again`).

    Return whether this process merged it, and which shards are missing, in words.
    """
    corpus = phases[0].corpus
    parts = [(phase, shard) for phase in phases for shard in corpus.shards]
    absent = {shard for phase, shard in parts if phase.store.note(shard) is None}
    missing = sorted(absent or {shard for phase, shard in parts if not phase.is_current(shard)})
    if missing:
        some = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        return False, f"{corpus.pair}: of {len(corpus.shards)} shards these are not through all phases: {some}"
    contents = [note.sha256 for phase in phases for note in phase.notes()]
    made_from, merged = json_digest([contents, settings.to_dict(), __version__]), folder / f"run.{corpus.pair}.json"
    with phases[0].store.note_path(0).open("rb") as file:
        done = merged.exists() and made_from in merged.read_text(encoding="utf-8")
        if not lock_file(file) or (done and not again):
            return False, ""
        merge(settings, phases, folder, made_from)
    return True, ""


def merge(settings: EvaluationSettings, phases: Sequence[Phase], folder: Path, made_from: str) -> None:
    """Write results sorted by sentence and row, what failed, and what the run was: sentences, settings, utilities."""
    for phase in phases:
        phase.store.clean()
    corpus, about = phases[0].corpus, folder / f"run.{phases[0].corpus.pair}.json"
    about.unlink(missing_ok=True)  # written last again: it says that the other files are of one run
    decisions = next(phase for phase in phases if isinstance(phase, DecisionsPhase))
    metrics = [phase for phase in phases if isinstance(phase, MetricPhase)]
    records = []
    for shard in corpus.shards:
        scores = {f"metric:{phase.utility_name}": phase.by_source(shard) for phase in metrics}
        for row in decisions.store.read(shard):
            index, key = row["index"], row["row"]
            if all(key in known.get(index, {}) for known in scores.values()):
                records.append({**row, **{name: known[index][key] for name, known in scores.items()}})
    if not records:
        raise RuntimeError(f"no source of {corpus.pair} came through; see the notes in {folder / 'shards'}")
    write_atomically(folder / f"results.{corpus.pair}.parquet", parquet(records))
    failed = {index: message for phase in phases for index, message in phase.failures().items()}
    lines = [json.dumps({"index": i, "id": corpus.sources[i].id, "error": failed[i]}) for i in sorted(failed)]
    write_atomically(folder / f"failures.{corpus.pair}.jsonl", "".join(line + "\n" for line in lines))
    run = {
        "settings": settings.to_dict(),
        "pair": corpus.pair,
        "sentences": [[source.id, source.text, source.reference] for source in corpus.sources],
        "utilities": {p.utility_name: dict(p.known()) for p in phases if isinstance(p, UtilityPhase)},
        "model": phases[0].made_with["content of the model"],
        "version": __version__,
        "made_from": made_from,
    }
    write_atomically(about, json.dumps(run, ensure_ascii=False, indent=1) + "\n")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="run_wmt", description=__doc__)
    parser.add_argument("--config", required=True, help="YAML file, or the name of one in evaluation/configs")
    parser.add_argument("--output", type=Path, help=f"folder for everything (default {DEFAULT_OUTPUT}/<config's name>)")
    parser.add_argument("--data-folder", type=Path, help=DATA_HELP)
    changes = parser.add_argument_group("changes of the configuration")
    for key, options in CHANGES.items():
        name = key.removesuffix(".name").rpartition(".")[2]
        changes.add_argument(f"--{name.replace('_', '-')}", dest=key, **options)
    parser.add_argument("--processes", type=int, help="refuse to run with another number of processes")
    parser.add_argument(
        "--shard", metavar="I/P", type=Share.parse, help="make only part I of P, counted from 0; needs no launcher"
    )
    parser.add_argument("--merge", action="store_true", help="only merge what all parts have made")
    parser.add_argument("--overwrite", action="store_true", help="replace results made with other settings")
    parser.add_argument("--retry-failed", action="store_true", help="try again the sources that failed")
    add_debug(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return exit_code("run_wmt", lambda: _run(options), debug=options.debug)


def _run(options: argparse.Namespace) -> int:
    share = Share.of(options.shard)
    if options.processes not in (None, share.count):
        raise ValueError(f"--processes {options.processes} were expected, but {share.count} runs; {HOW_TO_LAUNCH}")
    settings = load_settings(options.config, {key: getattr(options, key) for key in CHANGES})
    folder = options.output or Path(DEFAULT_OUTPUT) / settings.name
    if share.take_device() == "cpu":
        torch.set_num_threads(settings.threads)
    if run(settings, options, folder, share):
        report_to_terminal(folder)
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
