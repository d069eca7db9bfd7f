"""`acpmbr plan`: what translating a file will cost, from translating some of its lines."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import TypeAlias

import numpy as np
from scipy.special import stdtrit

from ..candidates import FloatArray, IntArray
from ..runs.formats import Format
from ..runs.inputs import Record, source_input
from ..runs.job import Summary, decided
from .main import one_line_warnings
from .options import add_method_arguments
from .translate import add_generation_arguments, check_generation, translator

Measured: TypeAlias = tuple[float, FloatArray, str]
_FEWEST = 3  # batches: a line through two leaves no error to judge it by
_UPPER = 0.975  # of a two-sided interval of 95%
_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_COLUMNS = {"target calls": 24, "guide calls": 24, "CPU time": 18, "time": 18, "start": 7, "peak memory": 11}
_EXAMPLES = """\
Take the command that you want to run, put "plan" in place of "translate", and leave out the options of the output;
--recipe takes several names. Some of the run's batches are decided for real, once per recipe, each recipe in its own
process. They are spread evenly over all batches sorted by length, the shortest and the longest included.

examples:
  acpmbr plan --input en.txt
  acpmbr plan --input en.txt --target bleurt-20 --distilled auto --recipe fast auto thorough --lines 64
  acpmbr plan --input en.txt --target chrf --decoder mbr

reading the table:
  calls, times   of the whole file: the cost of the tried batches, plus a straight line (cost by length) through them
                 for the others, with the 95% prediction interval of that sum (Student's t); more --lines narrow it
  CPU time       of all threads
  time           by the clock; depends on what else the machine does
  start          interpreter, loading and the first, slower calls: once per process, not included in the times
  peak memory    of that process, with the longest batch; a longer file needs no more

P processes that share the file take start + time / P. Score caches (cache=FILE) are not used: a run may be faster.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("--lines", type=int, default=32, metavar="K", help="how many lines to try (default: 32)")
    add_generation_arguments(parser)
    add_method_arguments(parser, several=True)
    parser.set_defaults(quiet=True)


def run(args: argparse.Namespace) -> int:
    check_generation(args)
    source, size = source_input(args), args.batch_size
    if not source.repeatable:
        source.check()
        raise ValueError("plan needs --input FILE: it tries lines from all over the file")
    lengths = np.array([sum(len(record.item.strip()) for record in batch) for batch in source.batches(size)])
    if not lengths.any():
        raise ValueError(f"--input {args.input} has no line with text: there is nothing to plan")
    tried = choose(lengths, args.lines, size)
    wanted = set(tried.tolist())
    batches = list(source.batches(size, lambda position: position // size in wanted))
    print(
        f"{sum(map(len, batches)):,} lines tried, in {len(tried):,} of {len(lengths):,} batches of {size}: from "
        f"{lengths[tried].min():,} to {lengths[tried].max():,} characters\n"
    )
    widths = [max(len("recipe"), *(len(label) for label, _ in args.recipe)), *_COLUMNS.values()]
    for cells in (["recipe", *_COLUMNS], ["-" * width for width in widths]):
        print(_row(cells, widths))
    for label, recipe in args.recipe:
        start, costs, memory = _in_own_process(argparse.Namespace(**{**vars(args), "recipe": recipe}), batches)
        target, guides, cpu, clock = (extrapolate(column, lengths, tried) for column in costs.T)
        cells = [_count(*target), _count(*guides), _duration(*cpu), _duration(*clock), f"{start:.1f} s", memory]
        print(_row([label, *cells], widths), flush=True)
    return 0


def choose(lengths: IntArray, lines: int, batch_size: int) -> IntArray:
    """Return the places of the batches to try, spread evenly over all batches sorted by length."""
    count = -(-lines // batch_size)
    if count < min(_FEWEST, len(lengths)):
        raise ValueError(f"--lines {lines} is too few: give {_FEWEST * batch_size}, which are {_FEWEST} batches")
    ranks = np.linspace(0, len(lengths) - 1, min(count, len(lengths))).round().astype(int)
    return np.sort(np.argsort(lengths, kind="stable")[ranks])


def extrapolate(costs: FloatArray, lengths: IntArray, tried: IntArray) -> tuple[float, float]:
    """Return the cost of all batches, and how far its 95% prediction interval reaches to either side.

    The model is cost = a + b · length + error, fitted by least squares; what the tried batches cost is known, and the
    interval is that of the sum of the others (Royall 1970, Biometrika 57(2)).

    Args:
        costs, tried: (k,) of the tried batches, and their places among all.
        lengths: (n,) of all batches.
    """
    rest = np.delete(lengths, tried)
    powers = [0, 1] if np.ptp(lengths[tried]) else [0]
    design, wanted = (np.power.outer(some.astype(float), powers) for some in (lengths[tried], rest))
    line = np.linalg.lstsq(design, costs, rcond=None)[0]
    freedom = max(len(costs) - len(powers), 1)  # fewer are tried only where all are
    variance = float(((costs - design @ line) ** 2).sum()) / freedom
    summed = wanted.sum(axis=0)
    spread = float(summed @ np.linalg.pinv(design.T @ design) @ summed) + len(rest)
    margin = float(stdtrit(freedom, _UPPER)) * (variance * spread) ** 0.5
    return float(costs.sum() + max(summed @ line, 0.0)), margin


def _in_own_process(args: argparse.Namespace, batches: Sequence[Sequence[Record[str]]]) -> Measured:
    """Try a recipe in a new process, so that memory and loading are its own and nothing is warm from another one."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(_measured, args, batches, time.time()).result()
        except BrokenProcessPool as error:
            why = "the process that tried the recipe was killed, perhaps out of memory"
            raise ValueError(f"{why}: lower --batch-size or --max-rows") from error
        except KeyboardInterrupt:  # SIGTERM may have reached only this process, which would wait for the other one
            for child in active_children():
                child.terminate()
            raise


@one_line_warnings("plan")
def _measured(args: argparse.Namespace, batches: Sequence[Sequence[Record[str]]], started: float) -> Measured:
    """Return the seconds until the first batch, (batches, 4) calls of target and guides and times, and the memory."""
    import torch

    job = translator(args)
    job.about()  # reads the files of the networks, as a run does to note which they are
    texts = sorted((record for batch in batches for record in batch if record.item.strip()), key=lambda r: len(r.item))
    middle = texts[len(texts) // 2]
    for utility in (job.mbr.target, *job.mbr.guides):
        if utility is not None:
            utility.cache = None  # pairs in it would cost nothing, and those of the plan would be left there
            utility.score([middle.item], [middle.item], [middle.item])  # loads it
    job.decide([middle])
    start, costs = time.time() - started, []
    for batch in batches:
        cpu, clock = time.process_time(), time.perf_counter()
        decided(job, batch, Format(), summary := Summary())
        times = time.process_time() - cpu, time.perf_counter() - clock
        target, *guides = summary.calls.values() or [0]
        costs.append((target, sum(guides), *times))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    memory = {"": peak} | {f" cuda:{k}": torch.cuda.max_memory_allocated(k) for k in range(torch.cuda.device_count())}
    return start, np.array(costs, dtype=float), ",".join(f"{k} {size / 1e9:.2f} GB" for k, size in memory.items())


def _count(total: float, margin: float) -> str:
    return f"{total:,.0f} ± {margin:,.0f}" if margin >= 0.5 else f"{total:,.0f}"


def _duration(seconds: float, margin: float) -> str:
    unit, size = next((each for each in _UNITS if seconds >= 2 * each[1]), _UNITS[-1])
    return f"{seconds / size:.1f} ± {margin / size:.1f} {unit}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"| {' | '.join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))} |"
