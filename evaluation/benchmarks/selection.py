"""Which completion and which observation choose best at which budget: `python -m evaluation.benchmarks.selection`.

For target rates r and guides that are good, weak or random: the completed matrix's MSE (scores × 100), the regret of
the choice against full MBR (× 100), the rank of the chosen candidate and how often it is MBR's own. Means over matrices
and seeds with 95% intervals over the seeds. All methods that take masks get the same uniform ones; rates are taken over
the unique matrix. Transfer is also told how often every candidate was drawn, as the decoders tell it. At equal cost: a
guide at r′ = r/16 costs about as much as the target at r (the paper's BLEURT-20-D3), so the methods without a guide
score the target at r/2. DistilledMBR scores the whole matrix with the guide, whatever r is.

Results are kept in a JSON file and a second call goes on where the first was interrupted.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evaluation.assets import DATA_OR_BUILTIN_HELP
from evaluation.benchmarks.matrices import MatrixCase, load_cases, masked
from evaluation.benchmarks.measures import Floats
from hf_acpmbr.completion import ALS, AgreementALS, Completion, ConvergenceWarning
from hf_acpmbr.completion.transfer import Transfer
from hf_acpmbr.decoding import AgreementPMBR, HalvingMBR
from hf_acpmbr.observation import Adaptive, Budget
from hf_acpmbr.utilities import MatrixUtility

Measured = dict[str, float | None]
GUIDE_SHARE = 16
MEASURES = ("mse", "regret", "rank", "same")
UNGUIDED = ("als", "als centred", "halving")
METHODS = (*UNGUIDED, "ac-als", "ac-als centred", "distilled mbr", "transfer", "transfer+adaptive")


def measures(case: MatrixCase, chosen: int, matrix: npt.NDArray[np.floating] | None) -> Measured:
    truth = case.expected
    return {
        "mse": None if matrix is None else case.error(matrix),
        "regret": case.regret(chosen),
        "rank": float(1 + np.count_nonzero(truth > truth[chosen])),
        "same": float(truth[chosen] == truth.max()),
    }


def by_mask(case: MatrixCase, name: str, rate: int, guide: Floats | None, seed: int) -> Measured:
    target = masked(case.target, rate if guide is not None else rate / 2, 2 * seed)
    helper = None if guide is None else masked(guide, max(1, rate / GUIDE_SHARE), 2 * seed + 1)
    kind, _, centred = name.partition(" ")
    if kind == "transfer":
        completion: Completion = Transfer().complete(target, None, helper, row_features=case.candidates.features)
    elif kind == "ac-als":
        gamma = 1.0 if rate >= 512 else 0.1  # as the paper tuned it, at r = 1024 and r = 32
        completion = AgreementALS(center=bool(centred), agreement=gamma).complete(target, None, helper)
    else:
        completion = ALS(center=bool(centred)).complete(target)
    chosen = int(np.argmax(completion.expected(case.counts)))
    return measures(case, chosen, completion.matrix)


def by_decoder(case: MatrixCase, rate: int, guide: Floats | None, seed: int) -> Measured:
    """Halving without a guide, adaptive AC-PMBR with one."""
    candidates = case.candidates
    drawn = candidates.total**2 / case.target.size  # budgets count the drawn pairs
    target = MatrixUtility(case.target, candidates.texts)
    if guide is None:
        halving = HalvingMBR(Budget(reduction=max(1.0, rate / 2 * drawn)))
        return measures(case, halving.decode(candidates, target=target, seed=seed).index, None)
    guided = Budget(reduction=max(1.0, rate / GUIDE_SHARE * drawn))
    decoder = AgreementPMBR(Transfer(), Adaptive(), Budget(reduction=rate * drawn), (guided,))
    helper = MatrixUtility(guide, candidates.texts, name="guide")
    decision = decoder.decode(candidates, None, target, helper, seed=seed, full_matrix=case.target)
    return measures(case, decision.index, decision.matrix)


def run(case: MatrixCase, name: str, rate: int, kind: str, seed: int) -> Measured:
    guide = None if name in UNGUIDED else case.guide(kind, seed)
    if name == "distilled mbr" and guide is not None:
        return measures(case, int(np.argmax(guide @ case.counts)), guide)
    if name in ("halving", "transfer+adaptive"):
        return by_decoder(case, rate, guide, seed)
    return by_mask(case, name, rate, guide, seed)


def jobs(
    cases: list[MatrixCase], rates: list[int], kinds: list[str], seeds: int
) -> Iterator[tuple[MatrixCase, str, int, str, int]]:
    for seed in range(seeds):
        for kind in kinds:
            for rate in rates:
                for name in METHODS:
                    if name not in UNGUIDED or kind == kinds[0]:
                        yield from ((case, name, rate, kind, seed) for case in cases)


def collect(cases: list[MatrixCase], rates: list[int], kinds: list[str], seeds: int, file: Path) -> dict[str, Measured]:
    """All results by key, those in `file` taken from there; written after every seed, guide, rate and method."""
    results: dict[str, Measured] = json.loads(file.read_text()) if file.is_file() else {}
    last = ""
    for case, name, rate, kind, seed in jobs(cases, rates, kinds, seeds):
        key = "|".join([name, str(rate), "-" if name in UNGUIDED else kind, case.name, str(seed)])
        if key in results:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            results[key] = run(case, name, rate, kind, seed)
        if last != (last := f"{name}{rate}{kind}{seed}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(results))
    file.write_text(json.dumps(results))
    return results


def summary(
    results: dict[str, Measured], name: str, rate: int, kind: str, measure: str
) -> tuple[float, float, int] | None:
    """Mean over matrices and seeds, half a 95% interval over the seeds, and the number of seeds."""
    by_seed: dict[str, list[float]] = {}
    for key, values in results.items():
        method, r, guide, _, seed = key.split("|")
        value = values[measure]
        if (method, r) == (name, str(rate)) and guide in ("-", kind) and value is not None:
            by_seed.setdefault(seed, []).append(value)
    if not by_seed:
        return None
    means = np.array([np.mean(v) for v in by_seed.values()])
    half = 1.96 * means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else float("nan")
    return float(means.mean()), float(half), len(means)


def table(results: dict[str, Measured], rates: list[int], kinds: list[str]) -> str:
    lines = []
    for kind in kinds:
        for rate in rates:
            lines.append(f"\n{kind} guide, target at r = {rate}, guide at r′ = {max(1, rate // GUIDE_SHARE)}")
            lines.append(f"{'method':<18} {'MSE':>16} {'regret × 100':>16} {'rank':>14} {'P(= MBR)':>13} {'seeds':>6}")
            for name in METHODS:
                cells = [summary(results, name, rate, kind, measure) for measure in MEASURES]
                shown = [f"{c[0]:.2f} ± {c[1]:.2f}" if c else "–" for c in cells]
                seeds = cells[1][2] if cells[1] else 0
                lines.append(f"{name:<18} {shown[0]:>16} {shown[1]:>16} {shown[2]:>14} {shown[3]:>13} {seeds:>6}")
    return "\n".join(lines)


def picture(results: dict[str, Measured], rates: list[int], kinds: list[str], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(kinds), figsize=(5 * len(kinds), 7), sharex=True, sharey="row", squeeze=False)
    for column, kind in enumerate(kinds):
        for row, (measure, label) in enumerate((("regret", "regret × 100"), ("mse", "MSE (scores × 100)"))):
            axis = axes[row][column]
            for k, name in enumerate(METHODS):
                points = [(r, summary(results, name, r, kind, measure)) for r in rates]
                drawn = [(r, *cell[:2]) for r, cell in points if cell]
                if drawn:
                    x, y, half = (np.array(values) for values in zip(*drawn, strict=True))
                    axis.errorbar(x, y, half, label=name, color=f"C{k}", marker="o", markersize=3, capsize=2)
            axis.set(xscale="log", yscale="log" if measure == "mse" else "linear", ylabel=label)
            axis.set_title(f"{kind} guide") if row == 0 else axis.set_xlabel("target reduction rate r")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--rates", type=int, nargs="+", default=[16, 32, 128, 512, 1024, 4096])
    parser.add_argument("--guides", nargs="+", default=["good", "weak", "random"], choices=["good", "weak", "random"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=Path("selection.json"))
    parser.add_argument("--picture", type=Path, default=Path("selection.png"))
    options = parser.parse_args(arguments)
    cases = load_cases(options.data)
    print(f"{len(cases)} matrices: {', '.join(case.name for case in cases)}")
    results = collect(cases, options.rates, options.guides, options.seeds, options.results)
    print(table(results, options.rates, options.guides))
    picture(results, options.rates, options.guides, options.picture)


if __name__ == "__main__":
    main()
