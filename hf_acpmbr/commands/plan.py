"""`acpmbr plan`: what a run over a file will cost, from a few of its lines and a short calibration on this machine."""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..candidates import Candidates
from ..decoding import PMBR, RoundsMBR
from ..mapping import decide_texts
from ..mbr import ACPMBR
from ..prompting import Prompting
from ..recipe import NAMED
from ..utilities import Utility
from ._mbr import add_utility_arguments, build_mbr
from ._resumable import hide_loading_bars
from ._tables import source_input
from .translate import add_generation_arguments, model_of

if TYPE_CHECKING:
    from ..models import LoadedModel

_EXAMPLES = """\
examples:
  acpmbr plan --input en.txt
  acpmbr plan --model facebook/m2m100_418M --source-language en --target-language de --target bleurt-20 \\
      --distilled auto --input en.txt --lines 8

Calls are at most: decoders that stop early need fewer. Time is sampling and scoring as measured here on the sampled
lines, on one process; completion and reading are not in it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    source, _ = add_generation_arguments(parser)
    source.add_argument("--lines", type=int, default=4, metavar="K", help="lines to try, over the file (default: 4)")
    source.add_argument("--pairs", type=int, default=64, metavar="K", help="pairs to score per utility (default: 64)")
    add_utility_arguments(parser)


@dataclass(frozen=True)
class Pace:
    """What a utility takes on this machine.

    Args:
        per_pair: seconds.
        per_text: seconds for each unique text, where it encodes texts; else 0.
    """

    utility: Utility
    per_pair: float
    per_text: float

    def seconds(self, calls: float, texts: float) -> float:
        return calls * self.per_pair + (texts * self.per_text if calls else 0.0)


@dataclass(frozen=True)
class Sampled:
    """What the tried lines gave.

    Args:
        records: lines of the whole file.
        pools: the candidates of each tried line.
        seconds: of sampling, per line.
        rows: decoder rows, per line.
    """

    records: int
    pools: list[Candidates]
    seconds: float
    rows: float

    @property
    def unique(self) -> float:
        return float(np.mean([len(pool) for pool in self.pools]))


def run(args: argparse.Namespace) -> int:
    for option in ("lines", "pairs", "batch_size"):
        if getattr(args, option) < 1:
            raise ValueError(f"--{option.replace('_', '-')} must be at least 1, got {getattr(args, option)}")
    if args.input == "-":
        raise ValueError("plan needs --input FILE: it looks at lines all over the file")
    hide_loading_bars(quiet=False)
    recipes = {name: _recipe(args, name) for name in NAMED}
    loaded = next(mbr for mbr in recipes.values() if isinstance(mbr, ACPMBR))
    model = model_of(args)
    sampled = _sample(args, model)
    utilities = [utility for utility in (loaded.target, *loaded.guides) if utility is not None]
    paces = [_pace(utility, sampled.pools, args.pairs) for utility in utilities]
    weights = sum(weight.numel() * weight.element_size() for _, weight in model.model.named_parameters())
    print(_report(sampled, paces, recipes, weights))
    return 0


def _recipe(args: argparse.Namespace, name: str) -> ACPMBR | str:
    """The recipe with the given utilities, or why it does not take them."""
    options = {**vars(args), "recipe": name, "decoder": None, "set": {}, "seed": None}
    try:
        return build_mbr(argparse.Namespace(**options))
    except ValueError as error:
        return str(error)


def _sample(args: argparse.Namespace, loaded: LoadedModel) -> Sampled:
    """Draw candidates for lines all over the file."""
    model, tokenizer, language = loaded
    source = source_input(args.input, args.column)
    checked = source.check()
    if checked is None:
        raise ValueError(f"--input {args.input} is not a file: plan looks at lines all over it")
    lines: list[str] = []
    for record in source:
        if record.position >= len(lines) * checked.records // args.lines and record.item.strip():
            lines.append(record.item)
        if len(lines) == args.lines:
            break
    if not lines:
        raise ValueError(f"--input {args.input} has no line with text: there is nothing to plan")
    flags = {name: getattr(args, name) for name in ("num_candidates", "epsilon", "temperature", "max_rows")}
    given = {name: value for name, value in flags.items() if value is not None}
    mbr = ACPMBR(tokenizer, decoder="map", **given)
    prompting = Prompting(args.prompt, args.chat, args.too_long)
    generate = {"max_new_tokens": args.max_new_tokens, **language, **args.generate}
    pools: list[Candidates] = []
    rows = 0
    start = time.perf_counter()
    for first in range(0, len(lines), args.batch_size):
        batch = lines[first : first + args.batch_size]
        decided = decide_texts(mbr, model, batch, prompting=prompting, generate=generate)
        pools += [decision.candidates for decision in decided.decisions if decision is not None]
        rows += decided.model_rows
    seconds = (time.perf_counter() - start) / len(lines)
    return Sampled(checked.records, pools, seconds, rows / len(lines))


def _pace(utility: Utility, pools: list[Candidates], pairs: int) -> Pace:
    """Score random pairs from all pools, after some that load the network; texts are encoded before pairs."""
    texts = [text for pool in pools for text in pool.texts]
    sizes = np.array([len(pool) for pool in pools])
    random = np.random.default_rng(0)
    which = random.integers(0, len(pools), pairs + 4)
    rows, columns = ((np.cumsum(sizes) - sizes)[which] + random.integers(0, sizes[which]) for _ in "rc")
    utility.prepare(texts, texts, "")(rows[:4], columns[:4])
    scorer = utility.prepare(texts, texts, "")
    start = time.perf_counter()
    scorer(rows[4:], columns[4:])
    seconds = time.perf_counter() - start
    if not scorer.statistics.encoded:
        return Pace(utility, seconds / max(scorer.calls, 1), 0.0)
    again, before = time.perf_counter(), scorer.calls
    scorer(columns[4:], rows[4:])  # the same texts, so nothing is encoded
    per_pair = (time.perf_counter() - again) / max(scorer.calls - before, 1)
    return Pace(utility, per_pair, max(seconds - pairs * per_pair, 0.0) / scorer.statistics.encoded)


def _report(sampled: Sampled, paces: list[Pace], recipes: dict[str, ACPMBR | str], weights: int) -> str:
    pools, records = sampled.pools, sampled.records
    drawn = pools[0].total
    lines = [
        f"{len(pools)} of {records:,} lines tried: {sampled.unique:.0f} unique of {drawn:,} candidates "
        f"(from {min(map(len, pools))} to {max(map(len, pools))}), {sampled.rows:,.0f} decoder rows and "
        f"{sampled.seconds:.2f} s of sampling per line",
    ]
    for role, pace in zip(("target", *["guide"] * len(paces)), paces, strict=False):
        encoding = f", {1e3 * pace.per_text:.2f} ms per encoded text" if pace.per_text else ""
        lines.append(
            f"{role} {pace.utility.name}: {1e3 * pace.per_pair:.2f} ms per pair{encoding} on {pace.utility.device}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines.append(
        f"memory: weights of the model {weights / 2**20:.0f} MB, most that this process has taken {peak:.0f} MB"
    )
    lines += ["", "| recipe | target calls | guide calls | encodings | sampling s | scoring s | all lines |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, mbr in recipes.items():
        calls = mbr if isinstance(mbr, str) else _calls(mbr, pools)
        if isinstance(calls, str):
            lines.append(f"| {name} | not with these utilities: {calls} |")
        else:
            lines.append(_row(name, calls, sampled, paces))
    lines.append(_row("exact MBR", [float(np.mean([len(pool) ** 2 for pool in pools]))], sampled, paces[:1]))
    return "\n".join(lines)


def _calls(mbr: ACPMBR, pools: list[Candidates]) -> list[float] | str:
    """At most so many calls of every utility, per line."""
    decoder = mbr.decoder
    if not isinstance(decoder, (PMBR, RoundsMBR)):
        return f"the decoder {decoder.name} has no budget"
    budgets = (decoder.budget, *decoder.budgets_for(len(mbr.guides)))
    shapes = [((len(pool),) * 2, (pool.total,) * 2) for pool in pools]
    covered = [decoder.budget.pairs(*shape) >= shape[0][0] ** 2 for shape in shapes]  # then it is exact MBR
    return [
        float(np.mean([0 if k and exact else b.pairs(*s) for s, exact in zip(shapes, covered, strict=True)]))
        for k, b in enumerate(budgets)
    ]


def _row(name: str, calls: list[float], sampled: Sampled, paces: list[Pace]) -> str:
    used = list(zip(calls, paces, strict=False))
    encodings = sum(sampled.unique for count, pace in used if count and pace.per_text)
    scoring = sum(pace.seconds(count, sampled.unique) for count, pace in used)
    cells = [name, f"{calls[0]:,.0f}", f"{sum(calls[1:]):,.0f}", f"{encodings:,.0f}", f"{sampled.seconds:.2f}"]
    cells += [f"{scoring:.2f}", _duration(sampled.records * (sampled.seconds + scoring))]
    return f"| {' | '.join(cells)} |"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
