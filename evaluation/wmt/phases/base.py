"""A phase turns shards of one kind into those of the next. Each process takes its own shards through all phases."""

from __future__ import annotations

import gc
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar, cast

import pyarrow as pa
from tqdm import tqdm

from evaluation.wmt.store import Record, Store
from hf_acpmbr.files import write_atomically
from hf_acpmbr.runs.shards import Note, Share, differing, digest

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
            if other := differing(note.settings, self.made_with):
                raise ValueError(
                    f"{self.store.folder} holds results made with another {', '.join(other)}: choose another --output, "
                    "or give --overwrite to replace them"
                )

    def is_current(self, shard: int) -> bool:
        """Whether a shard is there, whole, and made from what is there now with the settings of this run."""
        note = self.store.note(shard)  # read first: the check of the bytes is the slow one
        current = note is not None and note.settings == self.made_with and note.inputs == self.inputs(shard)
        return current and self.store.sound(shard) == note

    def missing(self, shards: Iterable[int], retry_failed: bool = False) -> list[int]:
        """Those of the shards that are to be made: not current, or (if asked) with failed sources."""
        missing = []
        for shard in shards:
            note = self.store.note(shard)
            if not self.is_current(shard) or (retry_failed and note is not None and note.failed):
                self.store.discard(shard)
                missing.append(shard)
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


def run_phase(phase: Phase[object], share: Share, retry_failed: bool = False) -> None:
    """Make what is missing of this process's shards."""
    missing = phase.missing(share.of_all(len(phase.corpus.shards)), retry_failed)
    if missing:
        phase.start(share.take_device())
        phase.refuse_changes()  # what was loaded is what was checked
    rarely = 0.5 if sys.stderr.isatty() else 15.0
    quiet = not missing or bool(share.local)  # of a launcher's processes, the first shows its progress
    with tqdm(
        total=sum(len(phase.corpus.shard(shard)) for shard in missing),
        desc=f"{phase.corpus.pair} {phase.name}",
        unit=" sources",
        mininterval=rarely,
        disable=quiet,
    ) as progress:
        for shard in missing:
            phase.make(shard)
            progress.update(len(phase.corpus.shard(shard)))
    phase.stop()
    gc.collect()
    failed = phase.failures()
    tried = sum(len(phase.corpus.shard(shard)) for shard in phase.store.numbers())
    if failed and len(failed) == tried:
        raise RuntimeError(f"every source failed; the first: {next(iter(failed.values()))}")
