"""All decoders on the same candidates: `python -m evaluation.benchmarks.decoders`.

For every decoder and budget: the regret (expected target utility lost against full MBR, × 100), how often the choice is
full MBR's, the calls of target and guide, their cost as a share of full MBR's (guide calls count by the guide's size)
and CPU seconds per source, averaged over sources and seeds. A ● marks the Pareto front: no other row has both a lower
cost and a lower regret. The picture shows the same.

Decoders that need another kind of utility get it where the set has one, and are judged by the target like all others:
`qe` and `qe-filter` the translator's likelihood of the source given the candidate, `centroid` its sentence vectors.
Their calls stand in the guide's column. A vector utility counts the texts that it encodes: comparing vectors costs next
to nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evaluation.assets import DATA_OR_BUILTIN_HELP
from evaluation.benchmarks.decoder_sets import Case, CaseSet, embedded, matrices, strings
from evaluation.benchmarks.decoders_picture import plot
from evaluation.benchmarks.measures import cpu_seconds, mean_and_error
from hf_acpmbr.budget import Budget
from hf_acpmbr.completion import ALS, AgreementALS, ConvergenceWarning
from hf_acpmbr.completion.observation import Balanced
from hf_acpmbr.completion.transfer import Transfer
from hf_acpmbr.decoding import DECODERS, PMBR, AgreementPMBR, Decoder
from hf_acpmbr.utilities import Utility


@dataclass(frozen=True)
class Row:
    """One decoder with one setting, averaged."""

    family: str
    setting: str
    cost: float
    regret: float
    error: float
    agreement: float
    target_calls: float
    guide_calls: float
    seconds: float
    front: bool = False


SETS: dict[str, Callable[[argparse.Namespace], CaseSet]] = {
    "matrices": lambda options: matrices(options.data),
    "strings": lambda options: strings(options.lists, options.candidates, options.data),
    "embedded": lambda options: embedded(options.embedded_candidates),
}


def methods() -> Iterator[tuple[str, str, Decoder]]:
    """(family, setting, decoder), cheap settings and expensive ones."""

    def by_name(name: str, *options: dict[str, Any]) -> Iterator[tuple[str, str, Decoder]]:
        for chosen in options:
            setting = ", ".join(f"{key}={value}" for key, value in chosen.items())
            yield name, setting, DECODERS.build(name, **chosen)

    yield from by_name("mbr", {})
    yield from by_name("n-by-s", *({"num_references": s} for s in (2, 8, 32, 128)))
    yield from by_name("pruning", *({"alpha": a} for a in (0.8, 0.9, 0.99)))
    for rate in (512, 128, 32, 16):
        yield "halving", f"r={rate}", DECODERS.build("halving", budget=Budget(reduction=rate))
    for rate in (512, 64, 16):
        yield "pmbr", f"r={rate}", PMBR(ALS(), Balanced(), Budget(reduction=rate))
    for rate, guide_rate, gamma in ((1024, 64, 1.0), (128, 8, 0.3), (32, 2, 0.1)):
        budgets, setting = (Budget(reduction=rate), (Budget(reduction=guide_rate),)), f"r={rate}, r′={guide_rate}"
        yield "acpmbr", setting, AgreementPMBR(AgreementALS(agreement=gamma), Balanced(), *budgets)
        yield "acpmbr transfer", setting, AgreementPMBR(Transfer(), Balanced(), *budgets)
        yield "rounds", setting, DECODERS.build("rounds", budget=budgets[0], guide_budgets=budgets[1])
    yield from by_name("distilled-mbr", {})
    yield from by_name("coarse-to-fine", *({"keep": k, "coarse_references": 16} for k in (2, 8, 32)), {"keep": 8})
    yield from by_name("aggregation", {}, {"partitions": 16}, {"fine": 8})
    yield from by_name("centroid", {"centroids": 8}, {"centroids": 64})
    yield from by_name("model-based", {})
    yield from by_name("map", {})
    yield from by_name("qe", {})
    yield from by_name("qe-filter", {"keep": 8}, {"keep": 32})
    yield from by_name("ensemble", {}, {"method": "rank"})
    yield from by_name("diverse", {"size": 4})


def obstacle(decoder: Decoder, cases: CaseSet) -> str | None:
    """Why a decoder cannot run on this set; None if it can."""
    case = cases.cases[0]
    if decoder.name == "aggregation" and not case.target.can_aggregate:
        return "the target cannot average references"
    if decoder.name == "centroid" and case.vectors is None:
        return "there is no utility on sentence vectors"
    if decoder.name in ("qe", "qe-filter") and case.quality is None:
        return "there is no reference-free utility"
    if "logprobs" in decoder.needs and case.candidates.logprobs is None:
        return "log-probabilities are not known"
    return None


def utilities_for(decoder: Decoder, case: Case) -> tuple[Utility | None, list[Utility], Utility]:
    """(target, guides) that a decoder is given, and the one of them whose calls stand in the guide's column."""
    target = {"centroid": case.vectors, "qe": case.quality}.get(decoder.name, case.target)
    guide = case.quality if decoder.name == "qe-filter" else case.guide
    guides = [guide] if "guide" in decoder.needs and guide is not None else []
    helper = guides[0] if guides else case.guide if target is None or target is case.target else target
    return target if "target" in decoder.needs else None, guides, helper


def measure(decoder: Decoder, cases: CaseSet, seeds: int) -> dict[str, float]:
    """Averages over sources and seeds."""
    runs = []
    for case in cases.cases:
        expected, n = case.expected, len(case.candidates)
        given, guides, helper = utilities_for(decoder, case)
        for seed in range(seeds):
            work = partial(decoder.decode, case.candidates, None, given, guides, source=case.source, seed=seed)
            seconds, decision = cpu_seconds(work)
            target, other = (decision.calls.get(utility.name, 0) for utility in (case.target, helper))
            guide = n if helper is case.vectors else other
            cost = (target + case.price(helper) * guide) / n**2
            runs.append(
                (cost, case.regret(decision.index), float(decision.index == expected.argmax()), target, guide, seconds)
            )
    means, errors = mean_and_error(runs)
    names = ("cost", "regret", "agreement", "target_calls", "guide_calls", "seconds")
    return {**dict(zip(names, means.tolist(), strict=True)), "error": float(errors[1])}


def benchmark(cases: CaseSet, seeds: int) -> tuple[list[Row], dict[str, str]]:
    rows, left_out = [], {}
    for family, setting, decoder in methods():
        reason = obstacle(decoder, cases)
        if reason is not None:
            left_out[family] = reason
            continue
        rows.append(Row(family, setting, front=False, **measure(decoder, cases, seeds)))
    return mark_front(rows), left_out


def mark_front(rows: Sequence[Row]) -> list[Row]:
    """Pareto front of cost and regret: a row is on it if no other has at most its cost and regret, and is better."""

    def beaten(row: Row) -> bool:
        return any(
            other.cost <= row.cost
            and other.regret <= row.regret
            and (other.cost, other.regret) != (row.cost, row.regret)
            for other in rows
        )

    return [dataclasses.replace(row, front=not beaten(row)) for row in rows]


def show(cases: CaseSet, rows: Sequence[Row], left_out: dict[str, str], seeds: int) -> None:
    sizes = [len(case.candidates) for case in cases.cases]
    print(f"\n{cases.name}: {len(sizes)} sources, {min(sizes)} to {max(sizes)} unique candidates, {seeds} seeds")
    print(
        f"  {'decoder':<16} {'setting':<28} {'target calls':>12} {'guide calls':>12} {'cost %':>8} "
        f"{'regret × 100':>15} {'= MBR':>6} {'CPU s':>7}"
    )
    for row in rows:
        print(
            f"{'●' if row.front else ' '} {row.family:<16} {row.setting:<28} {row.target_calls:>12,.0f} "
            f"{row.guide_calls:>12,.0f} {100 * row.cost:>8.3f} {row.regret:>8.3f} ± {row.error:<4.3f} "
            f"{row.agreement:>6.0%} {row.seconds:>7.3f}"
        )
    for family, reason in left_out.items():
        print(f"  {family:<16} left out: {reason}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["matrices", "strings", "embedded"], choices=SETS)
    parser.add_argument("--data", help=f"for matrices and strings: {DATA_OR_BUILTIN_HELP}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lists", type=int, default=4, help="sources with strings")
    parser.add_argument("--candidates", type=int, default=512, help="samples per source with strings")
    parser.add_argument("--embedded-candidates", type=int, default=256)
    parser.add_argument("--plot", type=Path, help="write the picture here (.png, .svg or .pdf)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    # All sets first: what is missing is said before minutes are spent.
    sets = [SETS[name](arguments) for name in arguments.sets]
    results = []
    for cases in sets:
        rows, left_out = benchmark(cases, arguments.seeds)
        show(cases, rows, left_out, arguments.seeds)
        results.append((cases.name, rows))
    if arguments.plot:
        plot(results, arguments.plot)
        print(f"\nwrote {arguments.plot}")


if __name__ == "__main__":
    main()
