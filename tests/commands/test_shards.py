"""translate and rerank by several processes: the bytes of one process, and the kill of any of them loses little."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_acpmbr.cli.main import main
from hf_acpmbr.runs.job import Job
from hf_acpmbr.runs.output import parts_of
from hf_acpmbr.runs.shards import Shards, Share

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node"]
ACCELERATE = ["accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--main_process_port", "0"]
LAUNCHERS = {"torchrun": TORCHRUN, "accelerate": [*ACCELERATE, "--num_processes"]}
LISTS = 300  # 19 shards of a batch of 16


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "lists.jsonl"
    lists = [[f"the cat {k} sat", f"a cat {k} sat down", f"dogs {k % 3} run", f"cat {k}"] for k in range(LISTS)]
    path.write_text("".join(json.dumps(texts) + "\n" for texts in lists), encoding="utf-8")
    return path


def command(source: Path, output: Path, *more: str, target: str = "chrf") -> list[str]:
    options = ["--target", target, "--decoder", "mbr", "--format", "jsonl", "--quiet"]
    return ["rerank", "--input", str(source), "--output", str(output), *options, *more]


def start(arguments: list[str], *launcher: str) -> subprocess.Popen[str]:
    started = [sys.executable, *launcher, "-m", "hf_acpmbr", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(started, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error


def finished_shards(output: Path) -> set[int]:
    return set(Shards(parts_of(str(output)), ".txt").numbers())


def wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def one(source: Path) -> bytes:
    """What one process writes."""
    output = source.with_name("one")
    assert main(command(source, output)) == 0
    return output.read_bytes()


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_two_processes_of_a_launcher_write_the_bytes_of_one(source: Path, one: bytes, launcher: str) -> None:
    two = source.with_name("two")
    finish(start(command(source, two), "-m", *LAUNCHERS[launcher], "2"))
    assert two.read_bytes() == one
    assert not parts_of(str(two)).exists()
    assert main(command(source, two, "--resume")) == 0, "one process knows the run of two as its own"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_parts_made_without_a_launcher_in_any_order_give_the_bytes_of_one(
    source: Path, one: bytes, order: tuple[int, ...]
) -> None:
    output = source.with_name("three")
    for part in order:
        assert not output.exists()
        assert main(command(source, output, "--shard", f"{part}/3")) == 0
    assert output.read_bytes() == one
    assert sorted(path.name for path in source.parent.glob("three*")) == ["three", "three.run.json"]


def test_three_processes_of_which_one_is_killed_are_finished_by_two(source: Path, one: bytes) -> None:
    """SIGKILL in the middle of a shard: a shard takes the network some hundred milliseconds, a look two."""
    reference, output = source.with_name("reference"), source.with_name("out")
    assert main(command(source, reference, target="embedded")) == 0
    parts = [start(command(source, output, "--shard", f"{k}/3", target="embedded")) for k in range(3)]
    wait(lambda: any(shard % 3 == 1 for shard in finished_shards(output)))
    parts[1].send_signal(signal.SIGKILL)
    assert parts[1].wait() == -signal.SIGKILL
    parts[1].communicate()
    for k in (0, 2):
        finish(parts[k])  # they wait for nobody
    assert not output.exists()
    there = finished_shards(output)
    lost = set(range(19)) - there
    assert lost, "the kill came in the middle"
    assert {shard % 3 for shard in lost} == {1}
    before = {shard: Shards(parts_of(str(output)), ".txt").path(shard).stat().st_mtime_ns for shard in there}
    assert main(command(source, output, "--merge", target="embedded")) == 2
    assert main(command(source, output, "--shard", "0/2", target="embedded")) == 2, "it says --resume"
    assert main(command(source, output, "--resume", "--shard", "0/2", target="embedded")) == 0
    assert finished_shards(output) == there | {shard for shard in lost if shard % 2 == 0}
    kept = Shards(parts_of(str(output)), ".txt")
    assert all(kept.path(shard).stat().st_mtime_ns == time for shard, time in before.items()), "nothing is made twice"
    finish(start(command(source, output, "--resume", "--shard", "1/2", target="embedded")))
    assert output.read_bytes() == reference.read_bytes()
    assert not parts_of(str(output)).exists()


def test_merge_by_hand_needs_no_model_and_names_what_is_missing(
    source: Path, one: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = source.with_name("out")
    assert main(command(source, output, "--merge")) == 2
    assert "so nothing to merge" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("hf_acpmbr.runs.output.OutputFile.merge", lambda *_: False)  # the last one dies before it
        for part in ("0/2", "1/2"):
            assert main(command(source, output, "--shard", part)) == 0
    monkeypatch.setattr("hf_acpmbr.cli.rerank.build_mbr", lambda *_: pytest.fail("it loads utilities"))
    assert main(command(source, output, "--merge", "--nbest", "2")) == 2
    assert "out.parts is of another run (options.nbest: 1 → 2)" in capsys.readouterr().err
    lost = Shards(parts_of(str(output)), ".txt")
    note = lost.note_path(7).read_bytes()
    lost.note_path(7).unlink()
    assert main(command(source, output, "--merge")) == 2
    assert "--merge: 1 of 19 shards are missing in" in (said := capsys.readouterr().err)
    assert said.endswith("out.parts: 7\n")
    lost.note_path(7).write_bytes(note)
    assert main(command(source, output, "--merge")) == 0
    assert output.read_bytes() == one


def test_processes_beyond_the_shards_have_nothing_to_do_and_leave_nothing(tmp_path: Path) -> None:
    source, output = tmp_path / "short", tmp_path / "out"
    source.write_text('["a"]\n', encoding="utf-8")
    for part in ("1/3", "0/3", "2/3"):
        assert main(command(source, output, "--shard", part)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.run.json", "short"]
    source.write_bytes(b"")
    for part in ("1/2", "0/2"):
        assert main(command(source, output, "--shard", part)) == 0
    assert output.read_bytes() == b""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--output", "-"], "give --output FILE, on a disk that all of them see"),
        (["--input", "-"], "give --input FILE, since standard input is one process's"),
        (["--merge"], "--merge makes no shards: leave out --resume and --shard"),
    ],
)
def test_what_several_processes_cannot_share_is_refused(
    source: Path, change: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command(source, source.with_name("out"), "--shard", "0/2"), *change]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in source.parent.iterdir()) == [source.name]


def test_shards_of_an_unfinished_run_are_neither_lost_nor_taken_by_another_run(
    source: Path, one: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two, written, put = source.with_name("two"), [], Shards.put

    def dies_after_two(self: Shards, shard: int, *args: object, **kwargs: object) -> None:
        put(self, shard, *args, **kwargs)  # type: ignore[arg-type]
        written.append(shard)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "put", dies_after_two)
        assert main(command(source, two)) == 130
        assert "32 lines are in" in capsys.readouterr().err
        assert main(command(source, two)) == 2
        assert "has 32 lines of an unfinished run: add --resume to continue it" in capsys.readouterr().err
        assert main(command(source, two, "--resume", target="bleu")) == 2
        assert "two.parts is of another run (target: chrf" in capsys.readouterr().err
        assert main(command(source, two, "--resume")) == 0
    assert sorted(written) == list(range(19)), "what was there is not made again"
    assert two.read_bytes() == one


def truncated(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:100])


def with_a_bad_byte(content: bytes) -> bytes:
    return content.replace(b"the cat 120 sat", b"the cat \xff sat")


def with_another_word(content: bytes) -> bytes:
    return content.replace(b"the cat 299 sat", b"the dog 299 sat")


@pytest.mark.parametrize("change", [truncated, with_a_bad_byte, with_another_word])
@pytest.mark.parametrize("more", [[], ["--shard", "1/2"]])
def test_an_input_that_changes_after_it_was_checked_is_refused(
    source: Path,
    change: Callable[[bytes], bytes],
    more: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = Job.about

    def changes_the_file(self: Job[object]) -> dict[str, object]:
        source.write_bytes(change(source.read_bytes()))
        return about(self)

    monkeypatch.setattr(Job, "about", changes_the_file)
    output = source.with_name("out")
    assert main(command(source, output, *more)) == 2
    assert "changed while it was read: start anew with a file that stays as it is" in capsys.readouterr().err
    assert not output.exists()
    assert finished_shards(output) == set(), "nothing made of it is kept"


def test_copies_of_the_input_that_differ_are_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, output = source.with_name("copy.jsonl"), source.with_name("out")
    copy.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(command(source, output, "--shard", "0/3")) == 0
    assert main(command(copy, output, "--shard", "1/3")) == 0, "a copy is as good"
    copy.write_text(copy.read_text(encoding="utf-8").replace("the cat 299", "the dog 299"), encoding="utf-8")
    assert main(command(copy, output, "--shard", "2/3")) == 2
    assert "out.parts is of another run (input.input: " in capsys.readouterr().err
    assert not output.exists()


Attempt = tuple[int, list[tuple[int, int]]]  # P, and which of its processes run, with the shards until a kill


@st.composite
def attempts(draw: st.DrawFn) -> list[Attempt]:
    found = []
    for _ in range(draw(st.integers(0, 3))):
        processes = draw(st.integers(1, 5))
        order = draw(st.lists(st.integers(0, processes - 1), unique=True))
        found.append((processes, [(index, draw(st.integers(0, 9))) for index in order]))
    processes = draw(st.integers(1, 5))
    return [*found, (processes, [(index, 99) for index in draw(st.permutations(range(processes)))])]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tries=attempts(), format=st.sampled_from(["jsonl", "parquet", "preferences"]))
def test_any_processes_in_any_order_with_any_kills_write_the_bytes_of_one(
    tmp_path: Path, tries: list[Attempt], format: str
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    source, output, whole = folder / "in", folder / "out", folder / "whole"
    lists = [{"candidates": [f"cat {k}", f"a cat {k}", "dogs"], "source": f"s{k}", "id": k} for k in range(100)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lists), encoding="utf-8")
    more = ("--format", format)
    assert main(command(source, whole, *more)) == 0
    put = Shards.put
    for processes, run in tries:
        for index, shards in run:
            left = [shards]

            def dies(self: Shards, shard: int, data: bytes, *, left: list[int] = left, **kwargs: Any) -> None:
                if not left[0]:
                    self.path(shard).write_bytes(data[: len(data) // 2])
                    raise KeyboardInterrupt
                left[0] -= 1
                put(self, shard, data, **kwargs)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Shards, "put", dies)
                code = main(command(source, output, *more, "--resume", "--shard", f"{index}/{processes}"))
            assert code in (0, 130)
    assert output.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in folder.glob("out*")) == ["out", "out.run.json"]


@given(shards=st.integers(0, 40), processes=st.integers(1, 7))
def test_every_shard_has_exactly_one_process(shards: int, processes: int) -> None:
    made = [shard for rank in range(processes) for shard in Share(rank, processes).of_all(shards)]
    assert sorted(made) == list(range(shards))


def test_a_process_is_known_by_the_option_or_by_the_launcher_and_never_by_both() -> None:
    launched = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert Share.of(None, launched) == Share(3, 4, 1)
    assert Share.of(None, {}) == Share(0, 1, None)
    assert Share.of(Share.parse("2/5"), {}) == Share(2, 5)
    with pytest.raises(ValueError, match="--shard 2/5 under a launcher of 4 processes"):
        Share.of(Share(2, 5), launched)
    for wrong in ("5/5", "1", "-1/2", "1/0", "a/b", "0/2/3"):
        with pytest.raises(argparse.ArgumentTypeError, match="counted from 0"):
            Share.parse(wrong)


def test_a_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    assert [Share(5, 8, 1).take_device(), Share(5, 8).take_device()] == ["cuda:1", "cuda"]
    assert taken == [1]
    with pytest.raises(ValueError, match="process 2 of this machine has no GPU, there are 2"):
        Share(2, 3, 2).take_device()


def environment(*arguments: str) -> dict[str, str]:
    """What accelerate's launcher gives to the one process it starts."""
    options = launch_command_parser().parse_args([*arguments, "script.py"])
    options, *_ = _validate_launch_command(options)
    _, found = prepare_simple_launcher_cmd_env(options)
    return {name: value for name, value in found.items() if os.environ.get(name) != value}


def test_a_launch_that_silently_runs_one_process_is_refused() -> None:
    with pytest.raises(ValueError, match="asked for several processes or machines and started only one"):
        Share.of(None, environment("--cpu", "--num_processes", "2"))
    assert Share.of(None, environment("--cpu", "--num_processes", "1")).count == 1
