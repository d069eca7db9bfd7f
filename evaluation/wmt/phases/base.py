"""A phase turns the shards of one kind into the shards of the next, on any number of processes, and can be resumed."""

from __future__ import annotations

import gc
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar, cast

import pyarrow as pa

from evaluation.wmt.store import Record, Store
from hf_acpmbr.files import write_atomically
from hf_acpmbr.shards import Note, digest
from hf_acpmbr.workers import Progress, Workers

Part = TypeVar("Part", covariant=True)
P = TypeVar("P")


@dataclass(frozen=True)
class Source:
    """One sentence to translate."""

    index: int
    id: str
    text: str
    reference: str


class Corpus:
    """The sentences of one language pair, given as (id, source, reference), in shards of `shard_size` neighbours."""

    def __init__(self, pair: str, sentences: Sequence[Sequence[str]], shard_size: int) -> None:
        self.pair, self.size = pair, shard_size
        self.sources = [Source(index, *texts) for index, texts in enumerate(sentences)]

    @property
    def shards(self) -> range:
        return range(-(-len(self.sources) // self.size))

    def shard(self, shard: int) -> list[Source]:
        return self.sources[shard * self.size : (shard + 1) * self.size]


class Given:
    """What the earlier phases have made for one source: `given[phase]`."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = parts

    def __getitem__(self, phase: Phase[P]) -> P:
        return cast(P, self._parts[phase.name])


class Phase(ABC, Generic[Part]):
    """One step of the run; `Part` is what later phases get of it for a source.

    `expensive` results made with other settings are not thrown away without being asked.
    """

    name: str
    schema: ClassVar[pa.Schema]
    expensive: ClassVar[bool] = True

    def __init__(self, corpus: Corpus, folder: Path, before: tuple[Phase[object], ...] = ()) -> None:
        self.corpus, self.folder, self.before = corpus, folder, before
        self.store = Store(folder / "shards" / corpus.pair / self.name)
        self.made_with: dict[str, str] = {}

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """All that the result depends on besides its inputs, as the configuration says it."""

    @abstractmethod
    def contents(self) -> Mapping[str, str]:
        """What stands behind the configuration's names now: digests of models, metrics and code."""

    def check(self) -> None:
        """Refuse what can be known to fail, without loading weights."""

    def identify(self) -> dict[str, str]:
        """Note the contents as they are now: the results of this run are made with them."""
        settings = {name: digest(value) for name, value in self.settings().items()}
        self.made_with = {**settings, **self.contents()}
        return self.made_with

    def refuse_changes(self) -> None:
        """An error where the contents are no longer those that were noted."""
        changed = [name for name, value in self.contents().items() if self.made_with[name] != value]
        if changed:
            raise ValueError(f"{self.name}: the {changed[0]} was replaced while the run was going: start it again")

    @abstractmethod
    def source_rows(self, source: Source, given: Given) -> list[Record]:
        """The rows of one source; `given` holds the earlier phases' parts for it. May raise: then it has failed."""

    @abstractmethod
    def by_source(self, shard: int) -> Mapping[int, Part]:
        """What later phases get of this one, for each source."""

    def start(self, device: str) -> None:
        """Load what the phase works with."""

    def stop(self) -> None:
        """Let go of it."""

    def meta(self) -> Record:
        return {}

    def inputs(self, shard: int) -> str:
        texts = [(source.id, source.text, source.reference) for source in self.corpus.shard(shard)]
        notes = [note.sha256 if (note := phase.store.note(shard)) else "" for phase in self.before]
        return digest([texts, notes])

    def given(self, shard: int) -> dict[int, Given]:
        """For each source that no earlier phase has failed on: the earlier phases' parts."""
        parts = [(phase.name, phase.by_source(shard)) for phase in self.before]
        return {
            source.index: Given({name: part[source.index] for name, part in parts})
            for source in self.corpus.shard(shard)
            if all(source.index in part for _, part in parts)
        }

    def refuse_other_results(self, overwrite: bool) -> None:
        """An error where expensive results of other settings or contents would have to go."""
        for note in self.notes() if self.expensive and not overwrite else ():
            if other := _different(note.settings, self.made_with):
                raise ValueError(
                    f"{self.store.folder} holds results made with another {', '.join(other)}: choose another --output, "
                    "or give --overwrite to replace them"
                )

    def missing(self, retry_failed: bool = False) -> list[int]:
        """Shards to make: absent, corrupt, made from other inputs, or (if asked) with failed sources."""
        self.store.clean()
        missing = []
        for shard in self.corpus.shards:
            note = self.store.sound(shard)
            current = note is not None and note.settings == self.made_with and note.inputs == self.inputs(shard)
            if not current or (retry_failed and note is not None and note.failed):
                missing.append(shard)
        for shard in missing:
            self.store.discard(shard)
        return missing

    def make(self, shard: int) -> None:
        """Make one shard; a source that fails is noted and left out."""
        began = time.time()
        given = self.given(shard)
        rows: list[Record] = []
        failed = {}
        for source in self.corpus.shard(shard):
            if source.index in given:
                try:
                    rows += self.source_rows(source, given[source.index])
                except Exception as error:
                    failed[source.index] = f"{self.name}: {type(error).__name__}: {error}"
        self.store.write(
            shard,
            rows,
            self.schema,
            settings=self.made_with,
            inputs=self.inputs(shard),
            failed=failed,
            meta=self.meta(),
        )
        # Times differ from run to run, so they are kept apart from the results.
        log = {"seconds": round(time.time() - began, 3), "sources": len(given)}
        write_atomically(self.folder / "log" / self.corpus.pair / self.name / f"{shard:05d}.json", json.dumps(log))

    def notes(self) -> list[Note]:
        found = [self.store.note(shard) for shard in self.corpus.shards]
        return [note for note in found if note is not None]

    def failures(self) -> dict[int, str]:
        return {int(index): message for note in self.notes() for index, message in note.failed.items()}

    def known(self) -> Record:
        """The `meta` of this phase's results."""
        return next((note.meta for note in self.notes() if note.meta), {})


def _different(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def run_phase(phase: Phase[object], workers: Workers, retry_failed: bool = False) -> None:
    """Make what is missing, together with the other processes."""
    missing = workers.from_main(lambda: phase.missing(retry_failed))
    share = workers.share(missing)

    def finished() -> int:
        return sum(len(phase.corpus.shard(shard)) for shard in missing if phase.store.note_path(shard).exists())

    if share:
        phase.start(workers.device)
        phase.refuse_changes()  # what was loaded is what was checked
    total = sum(len(phase.corpus.shard(shard)) for shard in missing)
    progress = Progress(f"{phase.corpus.pair} {phase.name}", total, finished, shown=workers.is_main and bool(missing))
    for shard in share:
        phase.make(shard)
        progress.update()
    progress.follow()
    phase.stop()
    gc.collect()
    workers.wait()
    if workers.is_main:
        _check(phase)


def _check(phase: Phase[object]) -> None:
    absent = len(phase.corpus.shards) - len(phase.notes())
    if absent:
        raise RuntimeError(
            f"{absent} shards of {phase.name} are not in {phase.store.folder} after all processes ended: --output must "
            "be a folder that every machine sees"
        )
    failed = phase.failures()
    if failed and len(failed) == len(phase.corpus.sources):
        raise RuntimeError(f"every source failed; the first: {next(iter(failed.values()))}")
