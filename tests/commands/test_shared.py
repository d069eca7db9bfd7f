"""translate and rerank by several processes: the bytes of one process, and the kill of any of them loses little."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_acpmbr.cli import main
from hf_acpmbr.commands._resumable import parts_of
from hf_acpmbr.commands._run import Job
from hf_acpmbr.workers import Workers

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node"]
ACCELERATE = ["accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--main_process_port", "0"]
LAUNCHERS = {"torchrun": TORCHRUN, "accelerate": [*ACCELERATE, "--num_processes"]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Lists for several shards."""
    path = tmp_path / "lists.jsonl"
    lists = [[f"the cat {k} sat", f"a cat {k} sat down", f"dogs {k % 3} run", f"cat {k}"] for k in range(300)]
    path.write_text("".join(json.dumps(texts) + "\n" for texts in lists), encoding="utf-8")
    return path


def command(source: Path, output: Path, *more: str) -> list[str]:
    options = ["--target", "embedded", "--decoder", "mbr", "--format", "jsonl", "--quiet"]
    return ["rerank", "--input", str(source), "--output", str(output), *options, *more]


def launch(arguments: list[str], launcher: str = "torchrun") -> subprocess.Popen[str]:
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    started = [sys.executable, "-m", *LAUNCHERS[launcher], "2", "-m", "hf_acpmbr", *arguments]
    return subprocess.Popen(started, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error


def wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def workers_of(launcher: int) -> dict[str, int]:
    """Process ids by rank, once both are there."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0") if parent == launcher else []
        except OSError:  # it has ended
            continue
        found.update({v.decode()[5:]: int(folder.name) for v in variables if v.startswith(b"RANK=")})
    return found


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_two_processes_write_the_bytes_of_one(source: Path, launcher: str) -> None:
    one, two = source.with_name("one"), source.with_name("two")
    finish(launch(command(source, two), launcher))
    assert main(command(source, one)) == 0
    assert two.read_bytes() == one.read_bytes()
    assert not parts_of(str(two)).exists()
    assert main(command(source, two, "--resume")) == 0, "one process knows the run of two as its own"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc")
@pytest.mark.parametrize("victim", ["launcher", "0", "1"])
@pytest.mark.parametrize("resumed_by", [1, 2])
def test_a_killed_run_is_resumed_by_any_number_of_processes(source: Path, victim: str, resumed_by: int) -> None:
    one, two = source.with_name("one"), source.with_name("two")
    process = launch(command(source, two))
    wait(lambda: len(workers_of(process.pid)) == 2)
    workers = workers_of(process.pid)
    wait(lambda: any(parts_of(str(two)).glob("*.json")))
    os.kill(workers.get(victim, process.pid), signal.SIGKILL)
    process.communicate(timeout=240)
    wait(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers.values()))
    if victim != "launcher":  # those that lost it notice within seconds, in which they may get through
        assert not two.exists()
    assert two.exists() or any(parts_of(str(two)).glob("*.json")) or two.with_name("two.unfinished").stat().st_size
    if resumed_by == 1:
        assert main(command(source, two, "--resume")) == 0
    else:
        finish(launch(command(source, two, "--resume")))
    assert main(command(source, one)) == 0
    assert two.read_bytes() == one.read_bytes()
    assert not parts_of(str(two)).exists()


@pytest.fixture
def alone_in_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as the only one of a launch."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setattr("hf_acpmbr.cli.watch_launch", lambda: None)
    monkeypatch.setattr("hf_acpmbr.workers.watch_launch", lambda: None)


@pytest.mark.usefixtures("alone_in_a_launch")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--output", "-"], "give --output FILE, on a disk that all of them see"),
        (["--input", "-"], "give --input FILE, since standard input is one process's"),
    ],
)
def test_what_several_processes_cannot_share_is_refused(
    source: Path, change: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command(source, source.with_name("out")), *change]) == 2
    assert message in capsys.readouterr().err


def test_preferences_are_shared_like_any_other_format(source: Path) -> None:
    lists = [{"candidates": json.loads(line), "source": "say"} for line in source.read_text().splitlines()]
    source.write_text("".join(json.dumps(entry) + "\n" for entry in lists), encoding="utf-8")
    pairs = ["--target", "chrf", "--format", "preferences", "--preferences-option", "pairs=top-k", "k=2"]
    one, two = source.with_name("one"), source.with_name("two")
    finish(launch(command(source, two, *pairs)))
    assert main(command(source, one, *pairs)) == 0
    assert two.read_bytes() == one.read_bytes()
    assert len(one.read_text().splitlines()) > len(lists)


@pytest.mark.usefixtures("alone_in_a_launch")
def test_shards_of_an_unfinished_run_are_neither_lost_nor_taken_by_another_run(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hf_acpmbr.shards import Shards

    one, two = source.with_name("one"), source.with_name("two")
    assert main(command(source, one)) == 0
    written = []
    put = Shards.put

    def dies_after_two(self: Shards, *args: object, **kwargs: object) -> None:
        put(self, *args, **kwargs)  # type: ignore[arg-type]
        written.append(1)
        if len(written) == 2:
            raise KeyboardInterrupt  # before it is in the output

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "put", dies_after_two)
        assert main(command(source, two)) == 130
    assert "64 lines are in" in capsys.readouterr().err
    assert len(list(parts_of(str(two)).glob("*.json"))) == 1
    assert main(command(source, two)) == 2
    assert "add --resume to continue it" in capsys.readouterr().err
    assert main(command(source, two, "--resume", "--target", "embedded-d1")) == 2
    assert "which another run wrote" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(
            Shards,
            "put",
            lambda self, shard, *args, **kwargs: (written.append(shard), put(self, shard, *args, **kwargs)),
        )
        assert main(command(source, two, "--resume")) == 0
    assert written[2:] == [2, 3, 4], "what was there is not made again"
    assert two.read_bytes() == one.read_bytes()


@pytest.mark.usefixtures("alone_in_a_launch")
def test_a_shard_is_discarded_once_its_lines_are_on_the_disk(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hf_acpmbr.shards import Shards

    output = source.with_name("out")
    on_disk, discarded = {}, []
    fsync, discard = os.fsync, Shards.discard

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        on_disk[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    def compared(self: Shards, shard: int) -> None:
        lines = output.with_name("out.unfinished").stat()
        assert on_disk[lines.st_ino] == lines.st_size > 0
        discarded.append(shard)
        discard(self, shard)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Shards, "discard", compared)
    assert main(command(source, output)) == 0
    assert discarded == [0, 1, 2, 3, 4]


def truncated(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:100])


def with_a_bad_byte(content: bytes) -> bytes:
    return content.replace(b"the cat 120 sat", b"the cat \xff sat")


def with_another_word(content: bytes) -> bytes:
    return content.replace(b"the cat 299 sat", b"the dog 299 sat")


@pytest.mark.usefixtures("alone_in_a_launch")
@pytest.mark.parametrize("change", [truncated, with_a_bad_byte, with_another_word])
def test_an_input_that_changes_after_it_was_checked_is_refused(
    source: Path,
    change: Callable[[bytes], bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a shard that another process should make: nobody waits for it once the file is known to be another."""
    about, share = Job.about, Workers.share

    def changes_the_file(self: Job[object]) -> dict[str, object]:
        source.write_bytes(change(source.read_bytes()))
        return about(self)

    monkeypatch.setattr(Job, "about", changes_the_file)
    monkeypatch.setattr(Workers, "share", lambda self, missing: [shard for shard in share(self, missing) if shard != 3])
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    output = source.with_name("out")
    assert main(command(source, output)) == 2
    assert "changed while it was read: start anew with a file that stays as it is" in capsys.readouterr().err
    assert not output.exists()
    lines = [len(shard.read_bytes().splitlines()) for shard in parts_of(str(output)).glob("*.txt")]
    assert set(lines) <= {64, 300 % 64}, "no shard is stored short"


def launch_on_two_machines(*arguments: list[str]) -> list[subprocess.Popen[str]]:
    """Two launchers, as on two machines that see the same disk, which meet at an address; a command for each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = ["--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", port]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    nodes = []
    for rank, own in enumerate(arguments):
        launcher = [sys.executable, "-m", "torch.distributed.run", *meeting, "--node_rank", str(rank)]
        started = [*launcher, "-m", "hf_acpmbr", *own]
        nodes.append(subprocess.Popen(started, env=environment, stderr=subprocess.PIPE, text=True))
    return nodes


def test_two_machines_write_the_bytes_of_one(source: Path) -> None:
    one, two = source.with_name("one"), source.with_name("two")
    for node in launch_on_two_machines(command(source, two), command(source, two)):
        finish(node)
    assert main(command(source, one)) == 0
    assert two.read_bytes() == one.read_bytes()
    assert not parts_of(str(two)).exists()


def test_machines_with_different_copies_of_the_input_are_refused(source: Path) -> None:
    copy, output = source.with_name("copy.jsonl"), source.with_name("out")
    copy.write_text(source.read_text(encoding="utf-8").replace("the cat 299 sat", "the dog 299 sat"), encoding="utf-8")
    nodes = launch_on_two_machines(command(source, output), command(copy, output))
    errors = [node.communicate(timeout=240)[1] for node in nodes]
    assert all(node.returncode for node in nodes)
    assert "process 1 has another input, model, metric or version of the package than process 0" in errors[1]
    assert not output.exists()
