"""`acpmbr plan`: what a run over a file will cost, from its files, a few of its lines and a short calibration."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..candidates import Candidates, FloatArray
from ..mapping import Decided, decide_texts
from ..mbr import ACPMBR
from ..models import hide_loading_bars
from ..prompting import Prompting
from ..recipe import NAMED
from ..runs.inputs import source_input
from ..signature import model_signature
from ..utilities import Utility
from ._calibration import Cost, Pace, Spent, computed, mean, shares, tried
from ._footprint import Footprint, cache_size, megabytes, refuse_what_does_not_fit
from ._mbr import add_utility_arguments, build_mbr
from .translate import add_generation_arguments, model_of

if TYPE_CHECKING:
    from ..models import LoadedModel

EXACT = "exact MBR"
_LOOKED_AT = 10_000  # lines whose length is known
_EXAMPLES = """\
examples:
  acpmbr plan --input en.txt
  acpmbr plan --model facebook/m2m100_418M --source-language en --target-language de --target bleurt-20 \\
      --distilled auto --input en.txt --no-calibration

First what is known without loading a network: sizes, memory, and the calls that each recipe makes at most. Then the
networks are loaded and candidates are drawn for some lines. A recipe decides as many of these as --seconds allows, so
its calls and its time are those of a run; if that is not even one, they are computed from the pace of some pairs, with
the most calls that it may make and without what the choice itself takes. Time is that of one process, loading included,
without a score cache (cache=FILE).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    source, _ = add_generation_arguments(parser)
    source.add_argument("--lines", type=int, default=8, metavar="K", help="lines to try, over the file (default: 8)")
    calibration = parser.add_argument_group("calibration")
    calibration.add_argument(
        "--no-calibration", action="store_true", help="load no network: only what is known beforehand"
    )
    calibration.add_argument(
        "--pairs", type=int, default=256, metavar="K", help="pairs to score with each utility (default: 256)"
    )
    calibration.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="CPU time to decide lines by each recipe (default: 10)"
    )
    add_utility_arguments(parser)


def run(args: argparse.Namespace) -> int:
    for option in ("lines", "pairs", "batch_size"):
        if getattr(args, option) < 1:
            raise ValueError(f"--{option.replace('_', '-')} must be at least 1, got {getattr(args, option)}")
    if not args.seconds >= 0:
        raise ValueError(f"--seconds must be at least 0, got {args.seconds}")
    if args.input == "-":
        raise ValueError("plan needs --input FILE: it looks at lines all over the file")
    hide_loading_bars(quiet=False)
    looked = _look(args)
    recipes = _recipes(args)
    mbr = next(mbr for mbr in recipes.values() if isinstance(mbr, ACPMBR))
    footprints = _footprints(args, mbr)
    print(_known(args, looked, recipes, footprints), flush=True)
    if args.no_calibration:
        return 0
    refuse_what_does_not_fit(footprints)
    print(_report(args, looked, _calibrate(args, looked.lines, looked.weights, mbr), recipes))
    return 0


@dataclass(frozen=True)
class Looked:
    """Some lines of a file.

    Args:
        lines: with text, of all lengths, in no order, so that the first few stand for all.
        weights: the share of the file's lines that each stands for, by length.
        records: how many lines the file has, blank ones included.
        texts: how many of them have text.
    """

    lines: list[str]
    weights: FloatArray
    records: int
    texts: float


def _look(args: argparse.Namespace) -> Looked:
    """Lines for every length that the file has: of some from all over it, every k-th by length."""
    source = source_input(args.input, args.column)
    checked = source.check()
    if checked is None:
        raise ValueError(f"--input {args.input} is not a file: plan looks at lines all over it")
    step = max(1, checked.records // _LOOKED_AT)
    seen = [record.item for record in source.where(lambda position: position % step == 0)]
    texts = sorted((line for line in seen if line.strip()), key=len)
    if not texts:
        raise ValueError(f"--input {args.input} has no line with text: there is nothing to plan")
    count = min(args.lines, len(texts))
    places = np.linspace(0, len(texts) - 1, count).round().astype(int)
    lines = [texts[place] for place in np.random.default_rng(0).permutation(places)]
    weights = shares([len(line) for line in lines], [len(text) for text in texts])
    return Looked(lines, weights, checked.records, checked.records * len(texts) / len(seen))


def _recipes(args: argparse.Namespace) -> dict[str, ACPMBR | str]:
    """Every named recipe and exact MBR with the given utilities, which they share; or why one does not take them."""
    options = {**vars(args), "recipe": "auto", "set": {}, "seed": None}
    shared = build_mbr(argparse.Namespace(**options, decoder=None))
    for utility in _utilities(shared).values():
        utility.cache = None  # cached pairs would cost nothing, and the plan's own ones would be left in the file
    given = _sampling(args)
    made: dict[str, ACPMBR | str] = {}
    for name in NAMED:
        try:
            made[name] = ACPMBR(target=shared.target, distilled=list(shared.guides), recipe=name, **given)
        except ValueError as error:
            made[name] = str(error)
    made[EXACT] = ACPMBR(target=shared.target, decoder="mbr", **given)
    return made


def _utilities(mbr: ACPMBR) -> dict[str, Utility]:
    names = ["target", *(f"guide {k}" if k > 1 else "guide" for k in range(1, len(mbr.guides) + 1))]
    return {name: each for name, each in zip(names, (mbr.target, *mbr.guides), strict=True) if each is not None}


def _footprints(args: argparse.Namespace, mbr: ACPMBR) -> list[Footprint]:
    from ..models import default_device, model_folder

    dtype = "float32" if args.model == "embedded" and args.dtype == "auto" else args.dtype
    own = None if dtype == "auto" else dtype
    device = args.device or default_device()
    model = Footprint.of_files("model", args.model, device, model_folder(args.model), args.revision, own)
    return [model, *(Footprint.of_utility(role, utility) for role, utility in _utilities(mbr).items())]


def _known(
    args: argparse.Namespace,
    looked: Looked,
    recipes: Mapping[str, ACPMBR | str],
    footprints: list[Footprint],
) -> str:
    """What needs no network."""
    from ..models import load_config, load_tokenizer

    options = {"trust_remote_code": args.trust_remote_code, "revision": args.revision}
    tokenizer, config = load_tokenizer(args.model, **options), load_config(args.model, **options)
    read = Prompting(args.prompt, args.chat, args.too_long).fill(tokenizer, looked.lines)
    tokens = [len(ids) for ids in tokenizer(read, add_special_tokens=not args.chat, verbose=False)["input_ids"]]
    exact = recipes[EXACT]
    assert isinstance(exact, ACPMBR)
    sampling = exact.recipe.sampling
    drawn, rows = sampling.num_candidates, getattr(sampling.sampler, "max_rows", None)
    new = int(args.generate.get("max_new_tokens", args.max_new_tokens))
    cache = cache_size(config, footprints[0].dtype, rows, max(tokens), new)
    text = [
        f"{looked.records:,} lines; {len(tokens)} looked at: {np.mean(tokens):.1f} tokens on average, at most "
        f"{max(tokens)}",
        "",
        "| | network | parameters | weights | dtype | device | free there |\n|---|---|---|---|---|---|---|",
        *map(str, footprints),
        "",
        f"cache of the model: {cache}; a score matrix of {drawn:,} × {drawn:,}: {megabytes(8 * drawn**2)}",
        "",
        f"Per line, at most, if all {drawn:,} candidates are unique:",
        "",
        "| recipe | target calls | guide calls | encodings |\n|---|---|---|---|",
    ]
    for name, mbr in recipes.items():
        cost = mbr if isinstance(mbr, str) else computed(mbr, [(drawn, drawn)])
        text.append(_refused(name, cost) if isinstance(cost, str) else f"| {' | '.join([name, *_counts(cost[0])])} |")
    return "\n".join([*text, ""])


@dataclass(frozen=True)
class Calibrated:
    """What the tried lines gave.

    Args:
        pools, sources: the candidates of each, and the line itself.
        once: start and loading.
        sampling: per line.
        rows: decoder rows, per line.
        paces: of the target and the guides.
    """

    pools: list[Candidates]
    sources: list[str]
    once: Spent
    sampling: Spent
    rows: float
    paces: dict[str, Pace]


def _calibrate(args: argparse.Namespace, lines: list[str], weights: FloatArray, mbr: ACPMBR) -> Calibrated:
    """Load everything that a run loads, sample the lines, and time some pairs."""
    from ..models import model_revision

    started = Spent(time.process_time(), time.process_time())  # the interpreter and imports, which a run needs as well

    def load() -> LoadedModel:
        loaded = model_of(args)
        # A run notes which model and utilities it was made with, by their content.
        model_revision(args.model, trust_remote_code=args.trust_remote_code, revision=args.revision)
        model_signature(loaded.model)
        for utility in _utilities(mbr).values():
            _ = utility.signature
            utility.prepare(lines[:2], lines[:2], lines[0])(np.arange(1), np.arange(1))
        return loaded

    loading, (model, tokenizer, language) = Spent.on(load)
    prompting = Prompting(args.prompt, args.chat, args.too_long)
    generate = {"max_new_tokens": args.max_new_tokens, **language, **args.generate}

    def sample(sources: list[str], number: int = mbr.recipe.sampling.num_candidates) -> Decided:
        drawer = ACPMBR(tokenizer, decoder="map", **{**_sampling(args), "num_candidates": number})
        return decide_texts(drawer, model, sources, prompting=prompting, generate=generate)

    warming, _ = Spent.on(lambda: sample(lines[:1], 2))
    single = [Spent.on(partial(sample, [line])) for line in lines]
    batches = [lines[first : first + args.batch_size] for first in range(0, len(lines), args.batch_size)]
    together, _ = Spent.on(lambda: [sample(batch) for batch in batches])
    faster = together.cpu / sum(spent.cpu for spent, _ in single)  # by decoding lines in batches
    pools = [decision.candidates for _, decided in single for decision in decided.decisions if decision is not None]
    paces = {role: Pace.measured(utility, pools, weights, args.pairs) for role, utility in _utilities(mbr).items()}
    sampling = sum((spent * (weight * faster) for (spent, _), weight in zip(single, weights, strict=True)), Spent())
    rows = float(weights @ np.array([decided.model_rows for _, decided in single]))
    return Calibrated(pools, lines, started + loading + warming, sampling, rows, paces)


def _sampling(args: argparse.Namespace) -> dict[str, Any]:
    flags = {name: getattr(args, name) for name in ("num_candidates", "epsilon", "temperature", "max_rows")}
    return {name: value for name, value in flags.items() if value is not None}


def _report(args: argparse.Namespace, looked: Looked, found: Calibrated, recipes: Mapping[str, ACPMBR | str]) -> str:
    sizes = [len(pool) for pool in found.pools]
    text = [
        f"{len(sizes)} lines tried: {looked.weights @ sizes:.0f} unique of {found.pools[0].total:,} candidates (from "
        f"{min(sizes)} to {max(sizes)}), {found.rows:,.0f} decoder rows and {found.sampling.cpu:.2f} CPU s of sampling "
        "per line",
        f"start and loading, once: {found.once.cpu:.1f} CPU s",
    ]
    for role, pace in found.paces.items():
        encoding = f", {1e3 * pace.per_text.cpu:.2f} per encoded text" if pace.per_text.cpu else ""
        text.append(f"{role} {pace.utility.name}: {1e3 * pace.per_pair.cpu:.3f} CPU ms per pair{encoding}")
    text += ["", "| recipe | target calls | guide calls | encodings | scoring and choice, CPU s | all lines | CPU | |"]
    text.append("|---|---|---|---|---|---|---|---|")
    paces = list(found.paces.values())
    shapes = [(len(pool), pool.total) for pool in found.pools]
    for name, mbr in recipes.items():
        costs = mbr if isinstance(mbr, str) else computed(mbr, shapes, paces)
        if isinstance(mbr, str) or isinstance(costs, str):
            text.append(_refused(name, str(costs)))
            continue
        average = mean(costs, looked.weights)
        cost = tried(mbr, found.pools, found.sources, costs, average, args.batch_size, args.seconds)
        text.append(_row(name, cost or average, found, looked))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return "\n".join([*text, "", f"memory: this process has taken {peak:.0f} MB at most"])


def _counts(cost: Cost) -> list[str]:
    return [f"{count:,.0f}" for count in (*cost.calls, cost.encodings)]


def _row(name: str, cost: Cost, found: Calibrated, looked: Looked) -> str:
    whole = found.once + (found.sampling + cost.spent) * looked.texts
    how = f"{cost.lines} lines decided" if cost.lines else "computed, at most"
    cells = [name, *_counts(cost), f"{cost.spent.cpu:.2f}", _duration(whole.wall), _duration(whole.cpu), how]
    return f"| {' | '.join(cells)} |"


def _refused(name: str, why: str) -> str:
    return f"| {name} | not with these utilities: {why} |"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
