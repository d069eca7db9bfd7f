"""Real processes that lose their launcher or a sibling, and what each of them says at its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hf_acpmbr.launched import watch_launch

# A launcher that forks its workers, so that torch is imported once.
LAUNCHER = """
import os, sys, time
from datetime import timedelta
import torch.distributed as distributed
from hf_acpmbr.launched import Watch

workers = []
for rank in range(2):
    if child := os.fork():
        workers.append(child)
        continue
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
    watch = Watch(interval=0.1, patience=10)
    watch.start()
    distributed.init_process_group("gloo", timeout=timedelta(days=30))
    time.sleep(1 if rank else 0)  # signs of life are exchanged
    print("met", rank, os.getpid(), os.getppid(), flush=True)
    if sys.argv[2] == "work" or rank:
        time.sleep(0.5 if sys.argv[2] == "end" else 600)
    distributed.barrier()
    watch.leave()
    print("done", rank, flush=True)
    os._exit(0)
print([os.waitpid(worker, 0)[1] for worker in workers], flush=True)
"""


@contextmanager
def launched(way: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The launcher, and the ids of its two workers once both have met; they do not outlive the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", LAUNCHER, str(port), way]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        met = {}
        while len(met) < 2:
            word, rank, worker, _ = process.stdout.readline().split()
            assert word == "met"
            met[int(rank)] = int(worker)
        yield process, [met[0], met[1]]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_end(worker: int) -> None:
    deadline = time.monotonic() + 60
    while is_alive(worker):
        assert time.monotonic() < deadline, f"process {worker} is still there"
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="reads the state of processes in /proc")


def test_workers_whose_launcher_was_killed_end_by_themselves_and_say_why():
    with launched("work") as (launcher, workers):
        launcher.kill()
        for worker in workers:
            wait_for_end(worker)
        said = launcher.stdout.read()
    for rank in (0, 1):
        line = (
            f"process {rank} of 2 ends by itself: its launcher (process {launcher.pid}) is gone; what is written stays"
        )
        assert line in said


@pytest.mark.parametrize(
    ("lost", "reason"), [(1, "process 1 gave no sign of life for 1 s"), (0, "where the processes met, does not")]
)
def test_a_worker_whose_sibling_fell_silent_ends_by_itself_and_says_why(lost, reason):
    """Stopped, not killed: a machine that has lost its network closes no connection. Process 0 waits in a barrier."""
    with launched("work" if lost == 0 else "wait") as (launcher, workers):
        os.kill(workers[lost], signal.SIGSTOP)
        wait_for_end(workers[1 - lost])
        os.kill(workers[lost], signal.SIGKILL)
        said = launcher.stdout.read()
    assert f"process {1 - lost} of 2 ends by itself: " in said
    assert reason in said


def test_workers_that_are_through_do_not_miss_each_other():
    with launched("end") as (launcher, _):
        said = launcher.stdout.read()
    assert sorted(line for line in said.split("\n") if "done" in line) == ["done 0", "done 1"]
    assert "[0, 0]" in said
    assert "ends by itself" not in said


def test_a_process_that_nobody_launched_is_not_watched(monkeypatch):
    for name in ("LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    watch_launch.cache_clear()
    assert watch_launch() is None
