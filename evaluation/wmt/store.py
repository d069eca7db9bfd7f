"""The results of a phase: shards (see `hf_acpmbr.runs.shards`) that are parquet files with one row for each source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from hf_acpmbr.runs.shards import Shards

Record: TypeAlias = dict[str, Any]  # a row of a parquet file, or what a phase says about its rows


class Store(Shards):
    """The shards of one phase in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ".parquet")

    def write(
        self,
        shard: int,
        rows: Sequence[Record],
        schema: pa.Schema,
        *,
        settings: Mapping[str, str],
        inputs: str,
        failed: Mapping[int, str],
        meta: Record,
    ) -> None:
        """A shard of rows."""
        self.put(shard, parquet(rows, schema), settings=settings, inputs=inputs, failed=failed, meta=meta)

    def read(self, shard: int) -> list[Record]:
        """The rows of a shard."""
        return list(pq.read_table(self.path(shard)).to_pylist())

    def columns(self, shard: int) -> pa.Table:
        """The shard as a table, for large columns that should not become Python lists."""
        return pq.read_table(self.path(shard))


def parquet(rows: Sequence[Record], schema: pa.Schema | None = None) -> bytes:
    """Rows as the bytes of a parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data
