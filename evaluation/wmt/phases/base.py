"""A phase turns shards of one kind into those of the next. Each process takes its own shards through all phases.

Results are shards (`hf_acpmbr.runs.shards`) that are parquet files with one or more rows for each source.
"""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from evaluation.wmt.data import Source
from hf_acpmbr.runs.shards import Note, Shards, Share, json_digest

Record: TypeAlias = dict[str, Any]  # a row of a parquet file, or what a phase says about its rows
Given: TypeAlias = Mapping[str, Any]  # what the earlier phases have made for one source, by the phase's name


@dataclass(frozen=True)
class Corpus:
    """The sentences of one language pair, in shards of `size` neighbours."""

    pair: str
    sources: Sequence[Source]
    size: int

    @property
    def shards(self) -> range:
        return range(-(-len(self.sources) // self.size))

    def shard(self, shard: int) -> Sequence[Source]:
        return self.sources[shard * self.size : (shard + 1) * self.size]


class Store(Shards):
    """The shards of one phase in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ".parquet")

    def table(self, shard: int) -> pa.Table:
        """Read a shard, for large columns that should not become Python lists."""
        return pq.read_table(self.path(shard))

    def read(self, shard: int) -> list[Record]:
        """Read the rows of a shard."""
        return list(self.table(shard).to_pylist())

    def clean(self) -> None:
        """Remove what killed processes left unfinished, once nobody writes any more."""
        for file in self.folder.glob("*.tmp"):
            file.unlink(missing_ok=True)


def parquet(rows: Sequence[Record], schema: pa.Schema | None = None) -> bytes:
    """Write rows as the bytes of a parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


class Phase(ABC):
    """One step of the run.

    `expensive` results made with other settings are not thrown away without being asked.
    """

    name: str
    schema: ClassVar[pa.Schema]
    expensive: ClassVar[bool] = True

    def __init__(self, corpus: Corpus, folder: Path, before: tuple[Phase, ...] = ()) -> None:
        self.corpus, self.folder, self.before = corpus, folder, before
        self.store = Store(folder / "shards" / corpus.pair / self.name)
        self.made_with: dict[str, str] = {}

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Return all that the result depends on besides its inputs, as the configuration says it."""

    @abstractmethod
    def contents(self) -> Mapping[str, str]:
        """Return what stands behind the configuration's names now: digests of models, metrics and code."""

    @abstractmethod
    def source_rows(self, source: Source, given: Given) -> list[Record]:
        """Make the rows of one source. May raise: then the source has failed."""

    @abstractmethod
    def by_source(self, shard: int) -> Mapping[int, Any]:
        """Return what later phases get of this one, for each source."""

    def check(self) -> None:  # noqa: B027
        """Refuse what can be known to fail, without loading weights."""

    def start(self, device: str) -> None:  # noqa: B027
        """Load what the phase works with."""

    def stop(self) -> None:  # noqa: B027
        """Release it."""

    def meta(self) -> Record:
        """Describe the results to those who read them."""
        return {}

    def identify(self) -> None:
        """Note the contents as they are now: the results of this run are made with them."""
        settings = {name: json_digest(value) for name, value in self.settings().items()}
        self.made_with = {**settings, **self.contents()}

    def refuse_other_results(self, overwrite: bool) -> None:
        """Refuse to replace expensive results of other settings or contents."""
        for note in self.notes() if self.expensive and not overwrite else ():
            names = sorted({*note.settings, *self.made_with})
            if other := [name for name in names if note.settings.get(name) != self.made_with.get(name)]:
                raise ValueError(
                    f"{self.store.folder} holds results made with another {', '.join(other)}: choose another --output, "
                    "or give --overwrite to replace them"
                )

    def inputs(self, shard: int) -> str:
        """Name what a shard is made from."""
        texts = [(source.id, source.text, source.reference) for source in self.corpus.shard(shard)]
        notes = [note.sha256 if (note := phase.store.note(shard)) else "" for phase in self.before]
        return json_digest([texts, notes])

    def is_current(self, shard: int) -> bool:
        """Whether a shard is whole and made from the current inputs with the settings of this run."""
        note = self.store.note(shard)  # read first: the check of the bytes is the slow one
        current = note is not None and note.settings == self.made_with and note.inputs == self.inputs(shard)
        return current and self.store.sound(shard) == note

    def make(self, shard: int) -> None:
        """Make one shard; a source that fails here is noted, and one that has failed before is left out."""
        rows, failed = list[Record](), dict[int, str]()
        parts = {phase.name: phase.by_source(shard) for phase in self.before}
        for source in self.corpus.shard(shard):
            if all(source.index in part for part in parts.values()):
                try:
                    rows += self.source_rows(source, {name: part[source.index] for name, part in parts.items()})
                except Exception as error:
                    failed[source.index] = f"{self.name}: {type(error).__name__}: {error}"
        noted: Any = {"settings": self.made_with, "inputs": self.inputs(shard), "failed": failed, "meta": self.meta()}
        self.store.put(shard, parquet(rows, self.schema), **noted)

    def notes(self) -> Iterator[Note]:
        """Read the notes of the shards that are made."""
        return (note for note in map(self.store.note, self.corpus.shards) if note is not None)

    def failures(self) -> dict[int, str]:
        return {int(index): message for note in self.notes() for index, message in note.failed.items()}

    def known(self) -> Record:
        """Return the `meta` of this phase's results."""
        return dict(next((note.meta for note in self.notes() if note.meta), {}))


def run_phase(phase: Phase, share: Share, retry_failed: bool = False) -> None:
    """Make what is missing of this process's shards."""
    missing = []
    for shard in share.of_all(len(phase.corpus.shards)):
        note = phase.store.note(shard)
        if not phase.is_current(shard) or (retry_failed and note is not None and note.failed):
            phase.store.discard(shard)
            missing.append(shard)
    if missing:
        phase.start(share.take_device())
        for name, content in phase.contents().items():  # what was loaded is what was checked
            if phase.made_with[name] != content:
                raise ValueError(f"{phase.name}: the {name} was replaced while the run was going: start it again")
    with tqdm(
        total=sum(len(phase.corpus.shard(shard)) for shard in missing),
        desc=f"{phase.corpus.pair} {phase.name}",
        unit=" sources",
        mininterval=0.5 if sys.stderr.isatty() else 15.0,
        disable=not missing or bool(share.local),  # of a launcher's processes, the first shows its progress
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
