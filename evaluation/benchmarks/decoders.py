"""All decoders on the same candidates: `python -m evaluation.benchmarks.decoders`.

For every decoder and budget: the regret (expected target utility lost against full MBR, × 100), how often the choice is
full MBR's, the calls of target and guide, their cost as a share of full MBR's (guide calls count by the guide's size)
and CPU seconds for a source, averaged over sources and seeds. A ● marks the Pareto front: no other row has both a lower
cost and a lower regret. The picture shows the same.

Decoders that need another kind of utility get it where the set has one, and are judged by the target like all others:
`qe` and `qe-filter` the translator's likelihood of the source given the candidate, `centroid` its sentence vectors.
Their calls stand in the guide's column. A vector utility counts the texts that it encodes: comparing vectors costs next
to nothing.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.benchmarks.decoder_sets import Case, CaseSet, Missing, embedded, stored_matrices, strings
from evaluation.benchmarks.decoders_plot import plot
from hf_acpmbr.completion import ALS, AgreementALS, ConvergenceWarning, load_completer
from hf_acpmbr.decoding import ACPMBR, PMBR, Decoder, decoder_class
from hf_acpmbr.observation import Budget, balanced, load_observation


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


def methods() -> Iterator[tuple[str, str, Decoder]]:
    """(family, setting, decoder), cheap settings and dear ones."""

    def by_name(name: str, *options: dict[str, Any]) -> Iterator[tuple[str, str, Decoder]]:
        for chosen in options:
            setting = ", ".join(f"{key}={value}" for key, value in chosen.items())
            yield name, setting, decoder_class(name)(**chosen)

    yield from by_name("mbr", {})
    yield from by_name("n-by-s", *({"num_references": s} for s in (2, 8, 32, 128)))
    yield from by_name("pruning", *({"alpha": a} for a in (0.8, 0.9, 0.99)))
    yield from by_name("halving", *({"reduction": r} for r in (512, 128, 32, 16)))
    for rate in (512, 64, 16):
        yield "pmbr", f"r={rate}", PMBR(ALS(), balanced, Budget(reduction=rate))
    for rate, guide_rate, gamma in ((1024, 64, 1.0), (128, 8, 0.3), (32, 2, 0.1)):
        budgets = Budget(reduction=rate), (Budget(reduction=guide_rate),)
        yield "acpmbr", f"r={rate}, r′={guide_rate}", ACPMBR(AgreementALS(agreement=gamma), balanced, *budgets)
        transfer, adaptive = load_completer("transfer"), load_observation("adaptive")
        yield "acpmbr transfer", f"r={rate}, r′={guide_rate}", ACPMBR(transfer, balanced, *budgets)
        yield "acpmbr adaptive", f"r={rate}, r′={guide_rate}", ACPMBR(transfer, adaptive, *budgets)
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


def utilities_for(decoder: Decoder, case: Case) -> tuple[Any, Any]:
    """(target, guide) that a decoder is given."""
    if decoder.name == "centroid":
        return case.vectors, case.guide
    if decoder.name == "qe":
        return case.quality, case.guide
    return case.target, case.quality if decoder.name == "qe-filter" else case.guide


def measure(decoder: Decoder, cases: CaseSet, seeds: int) -> dict[str, float]:
    """Averages over sources and seeds."""
    runs = []
    for case in cases.cases:
        expected, n = case.expected, len(case.candidates)
        given = utilities_for(decoder, case)
        helper = given[1] if given[0] is case.target else given[0]
        for seed in range(seeds):
            start = time.process_time()
            decision = decoder.decode(
                case.candidates, target=given[0], guides=[given[1]], source=case.source, seed=seed
            )
            seconds = time.process_time() - start
            regret = 100 * (expected.max() - expected[decision.index])
            target, other = (decision.calls.get(utility.name, 0) for utility in (case.target, helper))
            guide = n if helper is case.vectors else other
            cost = (target + case.price(helper) * guide) / n**2
            runs.append((cost, regret, float(decision.index == expected.argmax()), target, guide, seconds))
    means = np.mean(runs, axis=0)
    error = float(np.std([run[1] for run in runs]) / np.sqrt(len(runs)))
    names = ("cost", "regret", "agreement", "target_calls", "guide_calls", "seconds")
    return {**dict(zip(names, means.tolist(), strict=True)), "error": error}


def benchmark(cases: CaseSet, seeds: int) -> tuple[list[Row], dict[str, str]]:
    rows, left_out = [], {}
    for family, setting, decoder in methods():
        reason = obstacle(decoder, cases)
        if reason is not None:
            left_out[family] = reason
            continue
        rows.append(Row(family, setting, **measure(decoder, cases, seeds)))
    return mark_front(rows), left_out


def mark_front(rows: Sequence[Row]) -> list[Row]:
    """Pareto front of cost and regret: a row is on it if no other is at most as dear and at most as bad, and better."""

    def beaten(row: Row) -> bool:
        return any(
            other.cost <= row.cost
            and other.regret <= row.regret
            and (other.cost, other.regret) != (row.cost, row.regret)
            for other in rows
        )

    return [Row(**{**vars(row), "front": not beaten(row)}) for row in rows]


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
    parser.add_argument("--sets", nargs="+", default=["matrices", "strings", "embedded"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lists", type=int, default=4, help="sources with strings")
    parser.add_argument("--candidates", type=int, default=512, help="samples for each source with strings")
    parser.add_argument("--embedded-candidates", type=int, default=256)
    parser.add_argument("--plot", type=Path, help="write the picture here (.png, .svg or .pdf)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    makers: dict[str, Callable[[], CaseSet]] = {
        "matrices": stored_matrices,
        "strings": lambda: strings(arguments.lists, arguments.candidates),
        "embedded": lambda: embedded(arguments.embedded_candidates),
    }
    results = []
    for name in arguments.sets:
        try:
            cases = makers[name]()
        except Missing as reason:
            print(f"\n{name}: left out, {reason}")
            continue
        rows, left_out = benchmark(cases, arguments.seeds)
        show(cases, rows, left_out, arguments.seeds)
        results.append((cases.name, rows))
    if arguments.plot and results:
        plot(results, arguments.plot)
        print(f"\nwrote {arguments.plot}")


if __name__ == "__main__":
    main()
