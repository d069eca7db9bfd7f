from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.wmt.phases.base import Store, parquet

SCHEMA = pa.schema({"index": pa.int64(), "scores": pa.list_(pa.float32())})
ROWS = [{"index": 0, "scores": [1.5, 2.5]}, {"index": 1, "scores": []}]


def write(store: Store, shard: int = 0) -> None:
    store.put(shard, parquet(ROWS, SCHEMA), settings={"s": "1"}, inputs="i", failed={3: "no"}, meta={"a": 1})


def test_what_was_written_is_read(tmp_path):
    store = Store(tmp_path)
    write(store)
    assert store.read(0) == ROWS
    note = store.sound(0)
    assert note is not None
    assert (note.settings, note.inputs, note.failed, note.meta) == ({"s": "1"}, "i", {"3": "no"}, {"a": 1})


def test_equal_results_are_equal_bytes(tmp_path):
    first, second = Store(tmp_path / "a"), Store(tmp_path / "b")
    for store in (first, second):
        write(store)
    assert first.path(0).read_bytes() == second.path(0).read_bytes()
    assert first.note_path(0).read_bytes() == second.note_path(0).read_bytes()


@given(position=st.floats(0, 1), flip=st.integers(1, 255))
def test_any_changed_byte_is_found(tmp_path_factory, position, flip):
    store = Store(tmp_path_factory.mktemp("store"))
    write(store)
    data = bytearray(store.path(0).read_bytes())
    data[min(int(position * len(data)), len(data) - 1)] ^= flip
    store.path(0).write_bytes(data)
    assert store.sound(0) is None


def test_halves_count_as_absent(tmp_path):
    store = Store(tmp_path)
    write(store)
    store.path(0).write_bytes(store.path(0).read_bytes()[:-5])
    assert store.sound(0) is None
    write(store)
    store.note_path(0).write_text('{"sha256": "a"')
    assert store.note(0) is None
    write(store)
    store.path(0).unlink()
    assert store.sound(0) is None


@pytest.mark.parametrize("broken", ["[]", "{}", "null", '{"settings": 5}'])
def test_what_is_no_note_counts_as_absent(tmp_path, broken):
    store = Store(tmp_path)
    write(store)
    store.note_path(0).write_text(broken, encoding="utf-8")
    assert store.sound(0) is None


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / "00000.parquet.host-1.tmp").write_bytes(b"half")
    Store(tmp_path).clean()
    assert list(tmp_path.iterdir()) == []
