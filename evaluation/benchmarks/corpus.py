"""A long input: `python -m evaluation.benchmarks.corpus --lines 1000000` measures memory and overhead per line.

The cheapest real job, so that what is measured is the way through files and not a metric: `acpmbr rerank` with chrF
over lists of two to four short candidates. The process is killed (-9) when a part of the lines is there and started
again with --resume. Its memory (resident, from /proc, so on Linux) is read all along, and its CPU time until the first
new line is what resuming costs. `--compare` also makes an uninterrupted run and compares the bytes.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from evaluation.assets import BUILTIN_SENTENCES, read_lines
from evaluation.benchmarks.peers import ROOT, THREADS
from hf_acpmbr.runs.output import parts_of
from hf_acpmbr.runs.shards import Shards

_LOOK_EVERY = 0.05  # seconds
_COUNTED: dict[tuple[Path, int], int] = {}  # lines of each finished shard
_TICKS = os.sysconf("SC_CLK_TCK")
HEADER = (
    "| lines | CPU s | lines per CPU s | MB at a tenth of the lines | MB at the end | most MB |"
    " killed after | CPU s until the first new line |\n|---|---|---|---|---|---|---|---|"
)


def lists(count: int, seed: int = 0) -> Iterator[dict[str, object]]:
    """Yield two to four short candidates for each line: a sentence, and the same with a word left out or changed."""
    sentences = [row["de"].split()[:6] for row in read_lines(BUILTIN_SENTENCES)]
    draw = random.Random(seed)
    for number in range(count):
        words = [*sentences[number % len(sentences)], str(number)]
        texts = [" ".join(words)]
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(words))
            changed = [words[place] + "e"] if draw.random() < 0.5 else []
            texts.append(" ".join([*words[:place], *changed, *words[place + 1 :]]))
        yield {"id": number, "candidates": texts}


@dataclass
class Watched:
    """A run of the command, looked at from outside."""

    cpu: float = 0.0  # seconds in all
    first: float = 0.0  # CPU seconds until the first new line
    memory: list[tuple[int, float]] = field(default_factory=list)  # (lines, resident MB), again and again
    peak: float = 0.0  # the most resident MB

    @classmethod
    def run(cls, source: Path, output: Path, *more: str, stop_at: int | None = None) -> Watched:
        """Rerank `source` into `output`; killed as soon as `stop_at` lines are there."""
        command = [sys.executable, "-m", "hf_acpmbr", "rerank", "--input", str(source), "--output", str(output)]
        command += ["--target", "chrf", "--quiet", *more]
        before = lines_of(output)
        started = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **THREADS})
        status_file, watched = Path(f"/proc/{started.pid}/status"), cls()
        while True:
            ended, status, usage = os.wait4(started.pid, os.WNOHANG)
            if ended:
                break
            lines = lines_of(output)
            found = dict(line.partition(":")[::2] for line in status_file.read_text().splitlines())
            if "VmRSS" in found and lines > before:
                watched.first = watched.first or _cpu(started.pid)
                watched.memory.append((lines, int(found["VmRSS"].split()[0]) / 1024))
                watched.peak = int(found["VmHWM"].split()[0]) / 1024
            if stop_at is not None and lines >= stop_at:
                os.kill(started.pid, 9)
                stop_at = None
            time.sleep(_LOOK_EVERY)
        started.returncode = os.waitstatus_to_exitcode(status)  # wait4 has taken it, with what it used
        if started.returncode not in (0, -9):
            raise RuntimeError(f"{' '.join(command)} failed with status {status}")
        watched.cpu = usage.ru_utime + usage.ru_stime
        return watched


def lines_of(output: Path) -> int:
    """Count the lines of the finished shards of an output; each is read once."""
    shards = Shards(parts_of(str(output)), ".txt")
    for shard in shards.numbers():
        if (output, shard) not in _COUNTED and (note := shards.note(shard)) is not None:
            _COUNTED[output, shard] = note.meta["records"]
    return sum(count for (path, _), count in _COUNTED.items() if path == output)


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measure(source: Path, folder: Path, lines: int, kill_at: float, compare: bool) -> str:
    """Measure a row of the table."""
    output = folder / "killed.txt"
    killed = Watched.run(source, output, stop_at=int(kill_at * lines))
    there = lines_of(output)
    resumed = Watched.run(source, output, "--resume")
    if compare:
        whole = folder / "whole.txt"
        Watched.run(source, whole)
        if not filecmp.cmp(whole, output, shallow=False):
            raise RuntimeError(f"{output} differs from the output of an uninterrupted run")
    memory = [*killed.memory, *resumed.memory]
    early = next((megabytes for count, megabytes in memory if count >= lines / 10), float("nan"))
    seconds = killed.cpu - killed.first + resumed.cpu - resumed.first
    cells = [f"{lines:,}", f"{killed.cpu + resumed.cpu:.0f}"]
    cells += [f"{lines / seconds:,.0f}", f"{early:.0f}", f"{memory[-1][1]:.0f}"]
    cells += [f"{max(killed.peak, resumed.peak):.0f}", f"{there:,}", f"{resumed.first:.1f}"]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2000, help="lists in the input (default: 2,000)")
    parser.add_argument("--kill-at", type=float, default=0.9, help="part of the lines after which it is killed")
    parser.add_argument("--compare", action="store_true", help="also make an uninterrupted run and compare the bytes")
    parser.add_argument("--folder", type=Path, help="for input and outputs; default: a temporary one")
    args = parser.parse_args()
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        source = folder / "lists.jsonl"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in lists(args.lines))
        print(measure(source, folder, args.lines, args.kill_at, args.compare), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
