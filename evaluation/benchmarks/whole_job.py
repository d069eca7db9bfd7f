"""From sources to choices, by mbrs and by this package: `python -m evaluation.benchmarks.whole_job --model FOLDER`.

Both are started as users start them, on the same lines and model, one after the other and with one thread: mbrs by
`mbrs-generate` and `mbrs-decode` (ε-sampling, MBR with chrF, its defaults otherwise) in an environment of its own (see
`peers`), this package by `acpmbr translate --decoder mbr --target chrf`. CPU seconds are those of the started
processes, loading included, which is most of it for few samples. What this package takes for sampling is timed in a run
of its own that chooses without scoring, so its scoring is a difference of two runs and may be lost in their noise. The
two draw their own samples, so their choices agree only as far as the samples do: how many lines agree is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from evaluation.benchmarks.peers import ROOT, THREADS, Missing, peer_python

HEADER = (
    "| N | | generation, CPU s | scoring and choice, CPU s | whole job, CPU s | chrF calls | same choice |\n"
    "|---|---|---|---|---|---|---|"
)


def cpu_of(command: list[str]) -> float:
    """CPU seconds of a command that has to succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **THREADS}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def by_mbrs(binaries: Path, model: str, source: Path, count: int, folder: Path) -> tuple[float, float, list[str]]:
    """CPU seconds of generation and of decoding, and the choices."""
    drawn, chosen = folder / "drawn.txt", folder / "chosen.txt"
    sampling = ["--num_candidates", str(count), "--sampling", "eps", "--epsilon", "0.02"]
    generate = [str(binaries / "mbrs-generate"), str(source), "--output", str(drawn), "--model", model, *sampling]
    generation = cpu_of([*generate, "--batch_size", "1", "--quiet"])
    decode = [str(binaries / "mbrs-decode"), str(drawn), "--num_candidates", str(count), "--output", str(chosen)]
    decoding = cpu_of([*decode, "--decoder", "mbr", "--metric", "chrf", "--metric.num_workers", "1", "--quiet"])
    return generation, decoding, chosen.read_text(encoding="utf-8").splitlines()


def by_this_package(model: str, source: Path, count: int, folder: Path) -> tuple[float, float, int, list[str]]:
    """CPU seconds of sampling alone and of the whole job, calls, and the choices."""
    command = [sys.executable, "-m", "hf_acpmbr", "translate", "--model", model, "--input", str(source), "--quiet"]
    command += ["--num-candidates", str(count), "--format", "jsonl"]
    sampling = cpu_of([*command, "--decoder", "map", "--output", str(folder / f"map.{count}")])
    output = folder / f"mbr.{count}"
    whole = cpu_of([*command, "--decoder", "mbr", "--target", "chrf", "--output", str(output)])
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    calls = sum(sum(record["calls"].values()) for record in records)
    return sampling, whole, calls, [record["text"] for record in records]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of an encoder-decoder that both libraries load")
    parser.add_argument("--input", type=Path, required=True, help="one source per line")
    parser.add_argument("--samples", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-mbrs", help="of mbrs; made on first use")
    args = parser.parse_args()
    try:
        binaries = peer_python(args.environment).parent
    except Missing as missing:
        print(f"mbrs cannot be compared with: {missing}", file=sys.stderr)
        return 1
    lines = len(args.input.read_text(encoding="utf-8").splitlines())
    print(f"{lines} lines, {args.model.rstrip('/').split('/')[-1]}, one thread\n\n{HEADER}")
    with tempfile.TemporaryDirectory() as name:
        for count in args.samples:
            folder = Path(name)
            generation, decoding, theirs = by_mbrs(binaries, args.model, args.input, count, folder)
            sampling, whole, calls, ours = by_this_package(args.model, args.input, count, folder)
            same = sum(a.strip() == b.strip() for a, b in zip(theirs, ours, strict=True))
            cells = f"{generation:.1f} | {decoding:.1f} | {generation + decoding:.1f} | {lines * count**2:,}"
            print(f"| {count} | mbrs | {cells} | |")
            cells = f"{sampling:.1f} | {whole - sampling:.1f} | {whole:.1f} | {calls:,} | {same} of {lines}"
            print(f"| {count} | hf_acpmbr | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
