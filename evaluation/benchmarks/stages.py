"""Where the time of the whole job goes, stage by stage: `python -m evaluation.benchmarks.stages`.

For each N, per source and in CPU seconds of one thread: sampling, and scoring with the choice. What limits a stage is
the time of its networks' own forward passes, measured in place: the columns "in forward passes" say which share of the
stage that is, so 100% is the limit; what the choice itself takes is a part of the rest. Unique candidates and scored
pairs say how the work grows with N. The models are the embedded ones, one source after the other.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import torch

from evaluation.benchmarks.measures import ForwardTime, cpu_seconds
from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.corpus import decide_texts
from hf_acpmbr.generation.models import load_model
from hf_acpmbr.metrics.network import NetworkUtility

LINES = (
    "The children are playing in the garden.",
    "My neighbor gave me an interesting book about the history of our town.",
    "If it had not rained yesterday, we would have gone to the lake with our friends.",
    "He forgot his keys.",
)
HEADER = (
    "| N | unique | pairs scored | sampling, CPU s | in forward passes | scoring, choice, CPU s | in forward passes |"
    "\n|---|---|---|---|---|---|---|"
)


@dataclasses.dataclass(frozen=True)
class Stages:
    """Means over the sources; `*_share` are the parts of CPU seconds inside the networks' own forward passes."""

    count: int
    unique: float
    pairs: float
    sampling: float
    sampling_share: float
    scoring: float
    scoring_share: float

    def __str__(self) -> str:
        sampling = f"{self.sampling:.2f} | {self.sampling_share:.0%}"
        scoring = f"{self.scoring:.2f} | {self.scoring_share:.0%}"
        return f"| {self.count:,} | {self.unique:,.0f} | {self.pairs:,.0f} | {sampling} | {scoring} |"


def measure(lines: Sequence[str], mbr: ACPMBR, count: int) -> Stages:
    """Measure the stages for N = `count`; the sampler runs apart from `mbr`, which chooses among what it drew."""
    model, tokenizer, generate = load_model("embedded", source_language="en", target_language="de", device="cpu")
    sampler = ACPMBR(tokenizer, decoder="map", num_candidates=count)
    with ForwardTime(model) as forward:
        sampling, drawn = cpu_seconds(lambda: decide_texts(sampler, model, list(lines), generate=generate))
    pools = [decision.candidates for decision in drawn.decisions if decision is not None]
    used = [utility for utility in (mbr.target, *mbr.guides) if isinstance(utility, NetworkUtility)]
    with ForwardTime(*(utility.network for utility in used)) as inside:
        scoring, decisions = cpu_seconds(lambda: [mbr.rerank(pool) for pool in pools])
    n = len(lines)
    work = sum(len(pool) for pool in pools) / n, sum(decision.total_calls for decision in decisions) / n
    return Stages(count, *work, sampling / n, forward.seconds / sampling, scoring / n, inside.seconds / scoring)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[64, 256, 1024], help="N")
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--sources", type=int, default=len(LINES), help="number of built-in sentences")
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    mbr = ACPMBR(target="embedded", distilled="embedded-d1", recipe=args.recipe)
    mbr.rerank(["warm", "up"])
    print(HEADER)
    for count in args.candidates:
        print(measure(LINES[: args.sources], mbr, count), flush=True)


if __name__ == "__main__":
    main()
