"""The end of a run: one file of results for each language pair, made by the process that finds all shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from evaluation.wmt.phases.base import Phase, parquet
from evaluation.wmt.phases.decisions import DecisionsPhase
from evaluation.wmt.phases.scores import MetricPhase, UtilityPhase
from evaluation.wmt.settings import EvaluationSettings
from hf_acpmbr import __version__
from hf_acpmbr.files import lock_file, write_atomically
from hf_acpmbr.runs.shards import json_digest


def merge_if_complete(
    settings: EvaluationSettings, phases: Sequence[Phase], folder: Path, *, again: bool
) -> tuple[bool, str]:
    """Merge one language pair if all shards are there and no other process does.

    Args:
        again: also if these very shards were merged before.

    Returns:
        Whether this process merged it, and which shards are missing, in words.
    """
    corpus = phases[0].corpus
    parts = [(phase, shard) for phase in phases for shard in corpus.shards]
    absent = {shard for phase, shard in parts if phase.store.note(shard) is None}
    missing = sorted(absent or {shard for phase, shard in parts if not phase.is_current(shard)})
    if missing:
        some = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        return False, f"{corpus.pair}: of {len(corpus.shards)} shards these are not through all phases: {some}"
    contents = [note.sha256 for phase in phases for note in phase.notes()]
    made_from = json_digest([contents, settings.to_dict(), __version__])
    with phases[0].store.note_path(0).open("rb") as file:
        if not lock_file(file) or (not again and _made_from(folder / f"run.{corpus.pair}.json") == made_from):
            return False, ""
        merge(settings, phases, folder, made_from)
    return True, ""


def _made_from(merged: Path) -> object:
    try:
        return json.loads(merged.read_text(encoding="utf-8")).get("made_from")
    except (FileNotFoundError, ValueError):
        return None


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
