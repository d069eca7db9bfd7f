"""Which decoder chooses best at which cost: `python -m evaluation.benchmarks.selection`.

For guides that are good, weak, random or missing: the expected target utility that the choice loses against full MBR's
(regret × 100), target and guide scores per drawn candidate, what the decoder expected to lose (× 100), and CPU time of
everything but the scores. Methods without a guide get twice the target scores of those with one, so that a guide of a
sixteenth of the target's cost makes both about equal. Means over sources and seeds; intervals are 95%, over the means
of sources. The picture shows regret against cost, with a guide that costs a sixteenth.

The settings of `rounds` were chosen on `matrices/` and every second source of the embedded models; `pools_fr-en/` was
looked at while the method was designed, the other sources of the embedded models were kept aside.

Results are kept in a JSON file, and a second call goes on where the first was interrupted.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.assets import BUILTIN, DATA_OR_BUILTIN_HELP, find
from evaluation.benchmarks.matrices import MatrixCase, load_cases, stored
from evaluation.benchmarks.measures import cpu_seconds, mean_and_error
from hf_acpmbr.completion import ALS, AgreementALS, ConvergenceWarning
from hf_acpmbr.completion.observation import Balanced
from hf_acpmbr.completion.transfer import Transfer
from hf_acpmbr.decoding import (
    PMBR,
    AgreementPMBR,
    CoarseToFine,
    Decoder,
    DistilledMBR,
    HalvingMBR,
    NByS,
    PruningMBR,
    RoundsMBR,
)
from hf_acpmbr.recipe import Budget
from hf_acpmbr.scoring import MatrixUtility

Measured = dict[str, float]
Results = dict[str, Measured]
# Guide scores per target score.
GUIDE_SHARE = 16
KINDS = ("none", "good", "weak", "random")
LEVELS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
REGRETS = (0.0005, 0.001, 0.003, 0.005)
# What the picture counts a guide score as, in target scores, and the lines that it has, the default's first.
PRICE = 1 / GUIDE_SHARE
LINES = {
    "max_regret": "the default",
    "halving": "halving",
    "pruning": "pruning",
    "pmbr": "PMBR (ALS)",
    "ac-als": "AC-PMBR (AC-ALS)",
}


def target_scores(level: float, guided: bool) -> Budget:
    return Budget(scores_per_row=level if guided else 2 * level)


def guide_scores(level: float) -> tuple[Budget, ...]:
    return (Budget(scores_per_row=GUIDE_SHARE * level),)


# name → (decoder at a level, with and without a guide). A level is target scores per candidate.
DECODERS: dict[str, Callable[[float, bool], Decoder]] = {
    "rounds": lambda k, guided: RoundsMBR(target_scores(k, guided), guide_scores(k)),
    "halving": lambda k, guided: HalvingMBR(target_scores(k, guided)),
    "pmbr": lambda k, guided: PMBR(ALS(), budget=target_scores(k, guided)),
    "ac-als": lambda k, guided: AgreementPMBR(
        AgreementALS(), Balanced(), target_scores(k, guided), guide_budgets=guide_scores(k)
    ),
    "transfer": lambda k, guided: AgreementPMBR(
        Transfer(), Balanced(), target_scores(k, guided), guide_budgets=guide_scores(k)
    ),
    "coarse-to-fine": lambda k, guided: CoarseToFine(int(8 * k), int(GUIDE_SHARE * k), 128),
}
GUIDED, UNGUIDED = ("ac-als", "transfer", "coarse-to-fine"), ("halving", "pmbr")


def tasks(kind: str) -> Iterator[tuple[str, str, Callable[[], Decoder]]]:
    """Yield (method, setting, decoder) for all that is measured with a guide of this kind."""
    guided = kind != "none"
    for name, make in DECODERS.items():
        if name not in (UNGUIDED if guided else GUIDED):
            for level in LEVELS:
                yield name, f"{level:g}", partial(make, level, guided)
    for bound in REGRETS:
        stops = partial(RoundsMBR, target_scores(32, guided), guide_scores(32), max_regret=bound)
        yield "max_regret", f"{bound:g}", stops
    if guided:
        yield "distilled-mbr", "all", DistilledMBR
        return
    for references in (2, 8, 32, 128):
        yield "n-by-s", f"{references}", partial(NByS, references)
    for alpha in (0.9, 0.99):
        for start in (4, 16):
            schedule = tuple(start * 2**step for step in range(5))
            yield "pruning", f"{alpha:g}/{start}", partial(PruningMBR, alpha, schedule)


def measured(case: MatrixCase, kind: str, make: Callable[[], Decoder], seed: int) -> Measured:
    candidates, drawn = case.candidates, float(case.counts.sum())
    proxy = None if kind == "none" else case.guide(kind, seed)
    decoder = make()
    target = MatrixUtility(case.target, candidates.texts, name="target")
    guides = [] if proxy is None else [MatrixUtility(proxy, candidates.texts, name="guide")]
    wanted = target if "target" in decoder.needs else None
    spent, decision = cpu_seconds(lambda: decoder.decode(candidates, None, wanted, guides, seed=seed))
    found = {
        "regret": case.regret(decision.index),
        "target": decision.calls.get("target", 0) / drawn,
        "guide": decision.calls.get("guide", 0) / drawn,
        "cpu": spent,
    }
    if decision.expected_regret is not None:
        found["stated"] = 100 * decision.expected_regret
    return found


def collect(
    cases: Sequence[MatrixCase], kinds: Sequence[str], seeds: int, file: Path, methods: Sequence[str] = ()
) -> Results:
    """Measure what the file does not have yet, for some methods or all."""
    results: Results = json.loads(file.read_text()) if file.is_file() else {}
    for case in cases:
        for kind in kinds:
            if kind == "weak" and "weak" not in case.guides:
                continue
            for name, setting, make in tasks(kind):
                if methods and name not in methods:
                    continue
                for seed in range(seeds):
                    key = f"{name}|{setting}|{kind}|{case.name}|{seed}"
                    if key not in results:
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore", ConvergenceWarning)
                            results[key] = measured(case, kind, make, seed)
        file.write_text(json.dumps(results))
        print(f"{case.name}: {len(case.target)} unique candidates", flush=True)
    return results


def by_source(results: Results, cases: set[str]) -> dict[tuple[str, str, str], dict[str, Measured]]:
    """Group as (method, setting, kind) → source → means over seeds."""
    grouped: dict[tuple[str, str, str], dict[str, list[Measured]]] = {}
    for key, values in results.items():
        name, setting, kind, case, _ = key.split("|")
        if case in cases:
            grouped.setdefault((name, setting, kind), {}).setdefault(case, []).append(values)
    return {task: {case: _means(runs) for case, runs in sources.items()} for task, sources in grouped.items()}


def table(results: Results, cases: set[str]) -> str:
    """Write one line per method and setting: regret with its interval, its difference from `rounds`, and its cost."""
    grouped = by_source(results, cases)
    head = f"{'method':<15}{'setting':>8} {'regret × 100':>17} {'− rounds':>17} {'target':>8} {'guide':>8}"
    lines = [f"{len(cases)} sources"]
    for kind in KINDS:
        if not any(task[2] == kind for task in grouped):
            continue
        lines += ["", f"guide: {kind}", f"{head} {'stated':>7} {'CPU ms':>8}"]
        for (name, setting, of), sources in grouped.items():
            if of != kind:
                continue
            mean = _means(sources.values())
            regrets = interval([each["regret"] for each in sources.values()])
            rounds, paired = grouped.get(("rounds", setting, kind)), ""
            if rounds is not None and name != "rounds":
                paired = interval([each["regret"] - rounds[case]["regret"] for case, each in sources.items()])
            stated = f"{mean['stated']:.3f}" if "stated" in mean else ""
            lines.append(
                f"{name:<15}{setting:>8} {regrets:>17} {paired:>17} {mean['target']:>8.2f} "
                f"{mean['guide']:>8.1f} {stated:>7} {1000 * mean['cpu']:>8.1f}"
            )
    return "\n".join(lines)


def _means(runs: Collection[Measured]) -> Measured:
    """Average what all runs have: not every decision states a regret."""
    return {m: float(np.mean([run[m] for run in runs])) for m in set.intersection(*map(set, runs))}


def interval(values: Sequence[float]) -> str:
    """Write the mean and half of its 95% interval."""
    mean, error = mean_and_error(values)
    return f"{mean:.3f} ± {1.96 * error:.3f}"


def picture(results: Results, cases: set[str], file: Path) -> None:
    """Draw regret against cost, readable on a phone: with a good guide solid, without a guide dashed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grouped = by_source(results, cases)
    figure, axes = plt.subplots(figsize=(4.8, 4.6), layout="constrained")
    names = [name for name in LINES if any(task[0] == name for task in grouped)]
    for k, (name, kind) in enumerate((name, kind) for name in names for kind in ("none", "good")):
        means = [_means(each.values()) for (of, _, with_), each in grouped.items() if (of, with_) == (name, kind)]
        if means:
            x, y = zip(*sorted((mean["target"] + PRICE * mean["guide"], mean["regret"]) for mean in means), strict=True)
            label = LINES[name] if kind == "none" or name in GUIDED else f"{LINES[name]}, guided"
            look: dict[str, Any] = {
                "color": f"C{names.index(name)}",
                "linewidth": 2.6 if k == 0 else 1.4,
                "markersize": 4,
            }
            axes.plot(x, y, "--" if kind == "none" else "-", marker="o", label=label, **look)
    axes.set_xscale("log")
    axes.set_xticks(LEVELS, [f"{level:g}" for level in LEVELS])
    axes.minorticks_off()
    axes.set_yscale("symlog", linthresh=0.01)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="cost: target scores per candidate", ylabel="expected utility lost × 100", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=10)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=160)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--matrices", nargs="*", default=[], help="further folders, such as `matrices` makes")
    parser.add_argument("--guides", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--methods", nargs="+", default=[], help="only these, such as rounds or halving (default: all)")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("selection.json"))
    parser.add_argument("--picture", type=Path, default=Path("selection.png"))
    options = parser.parse_args(arguments)
    cases = load_cases(options.data)
    if options.data != BUILTIN:
        cases += stored(find("pools_fr-en", "", options.data))
    cases += [case for folder in options.matrices for case in stored(Path(folder))]
    results = collect(cases, options.guides, options.seeds, options.results, options.methods)
    names = {case.name for case in cases}
    print(table(results, names))
    picture(results, names, options.picture)


if __name__ == "__main__":
    main()
