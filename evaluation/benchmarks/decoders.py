"""All decoders on the same candidates: `python -m evaluation.benchmarks.decoders`.

For every decoder and budget: the regret (expected target utility lost against full MBR, × 100), how often the choice is
full MBR's, the calls of target and guide, their cost as a share of full MBR's (guide calls count by the guide's size)
and CPU seconds per source, averaged over sources and seeds. A ● marks the Pareto front: no other row has both a lower
cost and a lower regret. The picture shows the same.

Decoders that need a reference-free utility or one on sentence vectors (`qe`, `qe-filter`, `centroid`) are left out.
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

import numpy as np

from evaluation.assets import BUILTIN, DATA_OR_BUILTIN_HELP
from evaluation.benchmarks.candidate_lists import candidate_lists
from evaluation.benchmarks.matrices import load_cases
from evaluation.benchmarks.measures import Floats, cpu_seconds, full_matrix, mean_and_error, regret
from hf_acpmbr import ACPMBR, Candidates, load_utility
from hf_acpmbr.completion import ALS, AgreementALS, ConvergenceWarning
from hf_acpmbr.completion.observation import Balanced
from hf_acpmbr.completion.transfer import Transfer
from hf_acpmbr.decoding import DECODERS, PMBR, AgreementPMBR, Decoder
from hf_acpmbr.recipe import Budget
from hf_acpmbr.scoring import MatrixUtility, Utility

SENTENCES = [
    "The old man was sitting on a bench in the park.",
    "I would like to know when the next train leaves.",
    "She has never told anyone what happened that night.",
    "If it does not rain tomorrow, we will go swimming.",
]
# Okabe and Ito's colours, which people with any colour vision can tell apart; shapes differ as well.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p", "d", "8", "H"]
# Lower regrets are drawn here, because 0 has no place on a logarithmic axis.
FLOOR = 1e-3


@dataclass(frozen=True)
class Case:
    """One source: what was drawn, who judges, and what full MBR would know."""

    candidates: Candidates
    target: Utility
    guide: Utility
    matrix: Floats
    source: str | None = None

    @property
    def expected(self) -> Floats:
        """Return (n,) the target's expected utilities; more is better, and 1 is the utility's scale."""
        sign = 1.0 if self.target.higher_is_better else -1.0
        return np.asarray(sign * (self.matrix @ self.candidates.weights) / self.target.scale)

    def regret(self, chosen: int) -> float:
        return regret(self.expected, chosen)

    @property
    def price(self) -> float:
        """Return what a guide call costs in target calls: by its network's size, 1 for string metrics."""
        return self.guide.parameters / self.target.parameters if self.target.parameters else 1.0


@dataclass(frozen=True)
class CaseSet:
    """Cases of one kind: `name` is printed."""

    name: str
    cases: Sequence[Case]


def matrices(data: str | None) -> CaseSet:
    """Load full matrices of a target and a guide half its size (real ones: BERTScore with 12 and 6 layers)."""
    cases = []
    for stored in load_cases(data):
        candidates = stored.candidates
        target = MatrixUtility(stored.target, candidates.texts, name="target", parameters=12)
        guide = MatrixUtility(stored.guides["good"], candidates.texts, name="guide", parameters=6)
        cases.append(Case(candidates, target, guide, target.matrix))
    return CaseSet("made-up matrices (builtin)" if data == BUILTIN else "stored matrices (BERTScore)", cases)


def strings(number: int, count: int, data: str | None) -> CaseSet:
    """Score strings by chrF; the guide is sentence BLEU, which is about as cheap, so its calls count in full."""
    target, guide = load_utility("chrf"), load_utility("bleu")
    cases = []
    for entry in candidate_lists(number, count, data=data):
        candidates = Candidates.from_texts(entry.texts, logprobs=entry.logprobs)
        matrix = full_matrix(target, candidates.texts, source=entry.source)
        cases.append(Case(candidates, target, guide, matrix, entry.source))
    return CaseSet(f"strings ({'builtin' if data == BUILTIN else 'pools'}; chrF; guide BLEU)", cases)


def embedded(count: int) -> CaseSet:
    """Sample the embedded translator; the embedded utility judges, and its distilled version guides."""
    from hf_acpmbr.embedded import load_translator

    model, tokenizer = load_translator()
    target, guide = load_utility("embedded"), load_utility("embedded-d1")
    return CaseSet("embedded models (guide: its distilled version)", sampled(model, tokenizer, target, guide, count))


def sampled(model: Any, tokenizer: Any, target: Utility, guide: Utility, count: int) -> list[Case]:
    """Draw `count` samples of each sentence by a many-to-many translator."""
    tokenizer.src_lang = "en"
    draw = ACPMBR(tokenizer, decoder="map", num_candidates=count)
    cases = []
    for sentence in SENTENCES:
        output = model.generate(
            **tokenizer(sentence, return_tensors="pt"),
            forced_bos_token_id=tokenizer.get_lang_id("de"),
            max_new_tokens=64,
            custom_generate=draw,
            return_dict_in_generate=True,
        )
        candidates = output.candidates[0]
        matrix = full_matrix(target, candidates.texts, source=sentence)
        cases.append(Case(candidates, target, guide, matrix, sentence))
    return cases


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
    """Yield (family, setting, decoder), cheap settings and expensive ones."""

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
    yield from by_name("model-based", {})
    yield from by_name("map", {})
    yield from by_name("ensemble", {}, {"method": "rank"})
    yield from by_name("diverse", {"size": 4})


def obstacle(decoder: Decoder, cases: CaseSet) -> str | None:
    """Say why a decoder cannot run on this set; None if it can."""
    case = cases.cases[0]
    if decoder.name == "aggregation" and not case.target.can_aggregate:
        return "the target cannot average references"
    if "logprobs" in decoder.needs and case.candidates.logprobs is None:
        return "log-probabilities are not known"
    return None


def measure(decoder: Decoder, cases: CaseSet, seeds: int) -> dict[str, float]:
    """Average over sources and seeds."""
    runs = []
    for case in cases.cases:
        expected, n = case.expected, len(case.candidates)
        given = case.target if "target" in decoder.needs else None
        guides = [case.guide] if "guide" in decoder.needs else []
        for seed in range(seeds):
            work = partial(decoder.decode, case.candidates, None, given, guides, source=case.source, seed=seed)
            seconds, decision = cpu_seconds(work)
            target, guide = (decision.calls.get(utility.name, 0) for utility in (case.target, case.guide))
            cost = (target + case.price * guide) / n**2
            same = float(decision.index == expected.argmax())
            runs.append((cost, case.regret(decision.index), same, target, guide, seconds))
    means, errors = mean_and_error(runs)
    names = ("cost", "regret", "agreement", "target_calls", "guide_calls", "seconds")
    return {**dict(zip(names, means.tolist(), strict=True)), "error": float(errors[1])}


def benchmark(cases: CaseSet, seeds: int) -> tuple[list[Row], dict[str, str]]:
    rows, left_out = [], {}
    for family, setting, decoder in methods():
        reason = obstacle(decoder, cases)
        if reason is None:
            rows.append(Row(family, setting, front=False, **measure(decoder, cases, seeds)))
        else:
            left_out[family] = reason
    return mark_front(rows), left_out


def mark_front(rows: Sequence[Row]) -> list[Row]:
    """Mark the Pareto front: the rows that no other one beats in cost or regret without losing in the other."""

    def beats(other: Row, row: Row) -> bool:
        no_worse = other.cost <= row.cost and other.regret <= row.regret
        return no_worse and (other.cost, other.regret) != (row.cost, row.regret)

    return [dataclasses.replace(row, front=not any(beats(other, row) for other in rows)) for row in rows]


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


def plot(results: Sequence[tuple[str, Sequence[Row]]], path: Path) -> None:
    """Draw regret against cost, one panel per set of problems, the Pareto front marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    families = list(dict.fromkeys(row.family for _, rows in results for row in rows))
    figure, panels = pyplot.subplots(1, len(results), figsize=(6.2 * len(results), 5.2), squeeze=False)
    for panel, (name, rows) in zip(panels[0], results, strict=True):
        front = sorted((row.cost, max(row.regret, FLOOR)) for row in rows if row.front and row.cost > 0)
        if front:
            panel.step(*zip(*front, strict=True), where="post", color="#999999", linewidth=5, alpha=0.35, zorder=0)
        for k, family in enumerate(families):
            own = sorted((row for row in rows if row.family == family and row.cost > 0), key=lambda row: row.cost)
            if not own:
                continue
            colour, marker = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
            costs, regrets = [row.cost for row in own], [max(row.regret, FLOOR) for row in own]
            panel.plot(costs, regrets, color=colour, marker=marker, linewidth=1, markersize=6, label=family)
            best = [(row.cost, max(row.regret, FLOOR)) for row in own if row.front]
            if best:
                panel.scatter(*zip(*best, strict=True), s=150, facecolors="none", edgecolors=colour, linewidths=1.8)
        panel.set(xscale="log", yscale="log", title=name, xlabel="cost as a share of full MBR")
        panel.title.set_fontsize(9)
        panel.grid(alpha=0.25, which="both")
    panels[0][0].set_ylabel("regret × 100 (ringed: Pareto front)")
    handles = {
        text: handle for panel in panels[0] for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    figure.subplots_adjust(bottom=0.24, left=0.07, right=0.99, top=0.93)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["matrices", "strings", "embedded"], choices=SETS)
    parser.add_argument("--data", help=f"for matrices and strings: {DATA_OR_BUILTIN_HELP}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lists", type=int, default=4, help="number of sources with strings")
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
