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

from evaluation.wmt.launch import Progress, Workers
from evaluation.wmt.store import Note, Record, Store, digest
from hf_acpmbr.files import write_atomically

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

    @abstractmethod
    def settings(self) -> object:
        """All that the result depends on besides its inputs."""

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

    def missing(self, overwrite: bool = False, retry_failed: bool = False) -> list[int]:
        """Shards to make: absent, corrupt, made from other inputs, or (if asked) with failed sources."""
        self.store.clean()
        wanted = digest(self.settings())
        missing = []
        for shard in self.corpus.shards:
            note = self.store.sound(shard)
            if note is not None and note.settings != wanted and self.expensive and not overwrite:
                raise ValueError(
                    f"{self.store.folder} holds results made with other settings: choose another --output, "
                    "or give --overwrite to replace them"
                )
            current = note is not None and note.settings == wanted and note.inputs == self.inputs(shard)
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
            settings=digest(self.settings()),
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


def run_phase(phase: Phase[object], workers: Workers, overwrite: bool = False, retry_failed: bool = False) -> None:
    """Make what is missing, together with the other processes."""
    missing = workers.from_main(lambda: phase.missing(overwrite, retry_failed))
    share = workers.share(missing)

    def finished() -> int:
        return sum(len(phase.corpus.shard(shard)) for shard in missing if phase.store.note_path(shard).exists())

    if share:
        phase.start(workers.device)
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
