"""From sources to choices, by mbrs and by this package: `python -m evaluation.benchmarks.whole_job --model FOLDER`.

Both are started as users start them, on the same lines and model, one after the other and with one thread: mbrs by
`mbrs-generate` and `mbrs-decode` (ε-sampling, MBR with its faster chrF, its defaults otherwise) in an environment of
its own (see `peers`), this package by `acpmbr translate --decoder mbr --target chrf`. CPU seconds are those of the
started processes, loading included, which is most of it for few samples. What this package takes for sampling is timed
in a run of its own that chooses without scoring, so its scoring is a difference of two runs and may be lost in their
noise. The two draw their own samples, so their choices agree only as far as the samples do: how many lines agree is
counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from evaluation.benchmarks.peers import ROOT, THREADS, Missing, peer_python

HEADER = (
    "| N | | generation, CPU s | scoring and choice, CPU s | whole job, CPU s | chrF calls | same choice |"
    "\n|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Row:
    """One library at N candidates per line, and how many choices are the `same` where that is known."""

    count: int
    library: str
    generation: float
    scoring: float
    calls: int
    same: str = ""

    @property
    def whole(self) -> float:
        return self.generation + self.scoring

    def __str__(self) -> str:
        seconds = f"{self.generation:.1f} | {self.scoring:.1f} | {self.whole:.1f}"
        return f"| {self.count:,} | {self.library} | {seconds} | {self.calls:,} | {self.same} |"


def cpu_of(command: list[str]) -> float:
    """Run a command that has to succeed, and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **THREADS}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def by_mbrs(binaries: Path, model: str, source: Path, count: int, folder: Path) -> tuple[Row, list[str]]:
    """Run mbrs; what it took, and the choices."""
    drawn, chosen = folder / "drawn.txt", folder / "chosen.txt"
    sampling = ["--num_candidates", str(count), "--sampling", "eps", "--epsilon", "0.02"]
    generate = [str(binaries / "mbrs-generate"), str(source), "--output", str(drawn), "--model", model, *sampling]
    generation = cpu_of([*generate, "--batch_size", "1", "--quiet"])
    decode = [str(binaries / "mbrs-decode"), str(drawn), "--num_candidates", str(count), "--output", str(chosen)]
    metric = ["--metric", "chrf", "--metric.fastchrf", "true", "--metric.num_workers", "1"]
    decoding = cpu_of([*decode, "--decoder", "mbr", *metric, "--quiet"])
    choices = chosen.read_text(encoding="utf-8").splitlines()
    return Row(count, "mbrs", generation, decoding, len(choices) * count**2), choices


def by_this_package(model: str, source: Path, count: int, folder: Path, theirs: Sequence[str] | None) -> Row:
    """Run this package; what it took, and how many choices equal `theirs`."""
    command = [sys.executable, "-m", "hf_acpmbr", "translate", "--model", model, "--input", str(source), "--quiet"]
    command += ["--num-candidates", str(count), "--format", "jsonl"]
    sampling = cpu_of([*command, "--decoder", "map", "--output", str(folder / f"map.{count}")])
    output = folder / f"mbr.{count}"
    whole = cpu_of([*command, "--decoder", "mbr", "--target", "chrf", "--output", str(output)])
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    calls = sum(sum(record["calls"].values()) for record in records)
    same = ""
    if theirs is not None:
        agreeing = sum(text.strip() == record["text"].strip() for text, record in zip(theirs, records, strict=True))
        same = f"{agreeing} of {len(records)}"
    return Row(count, "hf_acpmbr", sampling, whole - sampling, calls, same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of an encoder-decoder that both libraries load")
    parser.add_argument("--input", type=Path, required=True, help="one source per line; all are sampled together")
    parser.add_argument("--samples", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--mbrs-up-to", type=int, default=4096, metavar="N", help="beyond N, this package runs alone")
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-mbrs", help="of mbrs; made if missing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = [count for count in args.samples if count <= args.mbrs_up_to]
    try:
        binaries = peer_python(args.environment).parent if peer else None
    except Missing as missing:
        print(f"mbrs cannot be compared with: {missing}", file=sys.stderr)
        return 1
    lines = len(args.input.read_text(encoding="utf-8").splitlines())
    print(f"{lines} lines, {args.model.rstrip('/').split('/')[-1]}, one thread\n\n{HEADER}")
    with tempfile.TemporaryDirectory() as name:
        for count in args.samples:
            theirs = None
            if binaries is not None and count in peer:
                row, theirs = by_mbrs(binaries, args.model, args.input, count, Path(name))
                print(row, flush=True)
            print(by_this_package(args.model, args.input, count, Path(name), theirs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
