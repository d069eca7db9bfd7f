"""The end of a run: one file of results for each language pair, whoever made the shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from evaluation.wmt.phases.base import Phase
from evaluation.wmt.phases.decisions import DecisionsPhase
from evaluation.wmt.phases.metrics import MetricPhase
from evaluation.wmt.phases.utility import UtilityPhase
from evaluation.wmt.settings import EvaluationSettings
from evaluation.wmt.store import parquet
from hf_acpmbr import __version__
from hf_acpmbr.files import write_atomically


def merge(settings: EvaluationSettings, phases: Sequence[Phase[object]], folder: Path) -> None:
    """Results sorted by sentence and row, what failed, and what the run was: sentences, settings, utilities."""
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
    }
    write_atomically(about, json.dumps(run, ensure_ascii=False, indent=1) + "\n")
