from __future__ import annotations

import json
import os

import pyarrow as pa
import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
from hypothesis import given
from hypothesis import strategies as st

from evaluation.wmt.store import Store
from hf_acpmbr.workers import Workers, refuse_lonely_run

SCHEMA = pa.schema({"index": pa.int64(), "scores": pa.list_(pa.float32())})
ROWS = [{"index": 0, "scores": [1.5, 2.5]}, {"index": 1, "scores": []}]


def write(store: Store, shard: int = 0) -> None:
    store.write(shard, ROWS, SCHEMA, settings={"s": "1"}, inputs="i", failed={3: "no"}, meta={"a": 1})


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


def test_a_note_of_an_earlier_version_counts_as_results_of_something_else(tmp_path):
    store = Store(tmp_path)
    write(store)
    note = json.loads(store.note_path(0).read_text(encoding="utf-8"))
    store.note_path(0).write_text(json.dumps({**note, "settings": "0123abcd"}), encoding="utf-8")
    found = store.sound(0)
    assert found is not None
    assert found.settings == {"version of this program": "0123abcd"}
    for broken in ("[]", "{}", "null", '{"settings": 5}'):
        store.note_path(0).write_text(broken, encoding="utf-8")
        assert store.sound(0) is None


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / "00000.parquet.host-1.tmp").write_bytes(b"half")
    Store(tmp_path).clean()
    assert list(tmp_path.iterdir()) == []


def environment(*arguments: str) -> dict[str, str]:
    """What accelerate's launcher gives to the one process it starts."""
    options = launch_command_parser().parse_args([*arguments, "script.py"])
    options, *_ = _validate_launch_command(options)
    _, found = prepare_simple_launcher_cmd_env(options)
    return {name: value for name, value in found.items() if os.environ.get(name) != value}


def test_a_launch_that_silently_runs_one_process_is_refused():
    with pytest.raises(ValueError, match="asked for several processes or machines and started only one"):
        refuse_lonely_run(1, None, environment("--cpu", "--num_processes", "2"))
    refuse_lonely_run(1, None, environment("--cpu", "--num_processes", "1"))
    refuse_lonely_run(1, None, {})


def test_processes_that_do_not_know_each_other_are_refused():
    with pytest.raises(ValueError, match="started 2 processes, but each believes that it is alone"):
        refuse_lonely_run(1, None, {"WORLD_SIZE": "2"})
    with pytest.raises(ValueError, match="--processes 4 were expected, but 2 runs"):
        refuse_lonely_run(2, 4, {"WORLD_SIZE": "2"})
    refuse_lonely_run(2, 2, {"WORLD_SIZE": "2"})


@given(items=st.lists(st.integers(), unique=True, max_size=20), processes=st.integers(1, 5))
def test_every_shard_has_exactly_one_process(items, processes):
    class Fake:
        num_processes = processes

    shares = []
    for rank in range(processes):
        fake = Fake()
        fake.process_index = rank
        shares += Workers(fake).share(items)
    assert sorted(shares) == sorted(items)
