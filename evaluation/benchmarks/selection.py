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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_acpmbr import Candidates
from hf_acpmbr.completion import ConvergenceWarning, load_completer
from hf_acpmbr.decoding import ACPMBR, Decision, HalvingMBR
from hf_acpmbr.matrix import ObservedScores
from hf_acpmbr.observation import Budget, load_observation, uniform
from hf_acpmbr.utilities import MatrixUtility

Matrix = npt.NDArray[np.float64]
DEFAULT_MATRICES = Path(__file__).resolve().parents[3] / "shared" / "data" / "matrices"
GUIDE_SHARE = 16
MEASURES = ("mse", "regret", "rank", "same")
UNGUIDED = ("als", "als centred", "halving")
METHODS = (*UNGUIDED, "ac-als", "ac-als centred", "distilled mbr", "transfer", "transfer+adaptive")


@dataclass(frozen=True)
class Case:
    """A full target matrix with its guides and how often every candidate was drawn."""

    name: str
    target: Matrix
    guides: dict[str, Matrix]
    counts: npt.NDArray[np.int64]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(map(str, range(len(self.target))))

    def guide(self, kind: str, seed: int) -> Matrix:
        """A random guide has the good one's structure, but its rows and columns belong to other candidates."""
        if kind != "random":
            return self.guides[kind]
        random = np.random.default_rng((seed, 1))
        n, m = self.target.shape
        shuffled: Matrix = self.guides["good"][random.permutation(n)][:, random.permutation(m)]
        return shuffled


def stored(folder: Path) -> list[Case]:
    """Real matrices: .npz files with `target`, `distilled`, `weak` and `counts`."""
    cases = []
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as data:
            guides = {"good": data["distilled"].astype(float), "weak": data["weak"].astype(float)}
            cases.append(Case(file.stem, data["target"].astype(float), guides, data["counts"].astype(np.int64)))
    return cases


def synthetic(size: int = 160) -> list[Case]:
    """Matrices with quality, difficulty, clusters and noise in different shares, where no real ones are at hand."""
    cases = []
    for k, (quality, difficulty, clusters, noise) in enumerate([(8, 4, 5, 3), (3, 6, 8, 4), (5, 5, 2, 7)]):
        random = np.random.default_rng(k)
        parts = [random.normal(size=shape) for shape in (size, size, (size, 6), (size, 6))]

        def build(shares: list[Matrix], scales: tuple[int, ...], random: np.random.Generator) -> Matrix:
            rows, columns, u, v = shares
            low_rank = scales[2] * (u @ v.T) / np.sqrt(6)
            every = scales[0] * rows[:, None] + scales[1] * columns + low_rank
            return np.asarray(0.6 + 0.01 * (every + scales[3] * random.normal(size=(size, size))))

        def blurred(amount: float, parts: list[Matrix], random: np.random.Generator) -> list[Matrix]:
            return [amount * part + np.sqrt(1 - amount**2) * random.normal(size=part.shape) for part in parts]

        scales = (quality, difficulty, clusters, noise)
        guides = {kind: build(blurred(a, parts, random), scales, random) for kind, a in (("good", 0.95), ("weak", 0.6))}
        counts = random.zipf(2.0, size).clip(max=100)
        cases.append(Case(f"synthetic-{k}", build(parts, scales, random), guides, counts))
    return cases


def measures(case: Case, chosen: int, matrix: Matrix | None) -> dict[str, float | None]:
    weights = case.counts / case.counts.sum()
    truth = case.target @ weights
    error = None if matrix is None else float(np.square(matrix - case.target).mean() * 1e4)
    return {
        "mse": error,
        "regret": float(100 * (truth.max() - truth[chosen])),
        "rank": float(1 + np.count_nonzero(truth > truth[chosen])),
        "same": float(truth[chosen] == truth.max()),
    }


def masked(matrix: Matrix, rate: float, seed: int) -> ObservedScores:
    pairs = uniform(matrix.shape, max(1, int(matrix.size / rate)), seed)
    return ObservedScores(pairs, matrix[pairs.rows, pairs.columns])


def by_mask(case: Case, name: str, rate: int, guide: Matrix | None, seed: int) -> dict[str, float | None]:
    kind, _, centred = name.partition(" ")
    options: dict[str, object] = {} if kind == "transfer" else {"center": bool(centred)}
    if kind == "ac-als":
        options["agreement"] = 1.0 if rate >= 512 else 0.1  # as the paper tuned it, at r = 1024 and r = 32
    completer: Any = load_completer({"ac-als": "agreement-als"}.get(kind, kind), **options)
    target = masked(case.target, rate if guide is not None else rate / 2, 2 * seed)
    helper = None if guide is None else masked(guide, max(1, rate / GUIDE_SHARE), 2 * seed + 1)
    known = {"row_features": Candidates(case.texts, case.counts).features} if kind == "transfer" else {}
    completion = completer.complete(target, None, helper, **known)
    return measures(case, int(np.argmax(completion.expected(case.counts))), completion.matrix)


def by_decoder(case: Case, name: str, rate: int, guide: Matrix | None, seed: int) -> dict[str, float | None]:
    texts = case.texts
    candidates = Candidates(texts, case.counts)
    drawn = candidates.total**2 / case.target.size  # budgets count the drawn pairs
    target = MatrixUtility(case.target, texts, texts)
    if name == "halving":
        decision: Decision = HalvingMBR(max(1.0, rate / 2 * drawn)).decode(candidates, None, target, seed=seed)
        return measures(case, decision.index, None)
    budgets = Budget(reduction=rate * drawn), Budget(reduction=max(1.0, rate / GUIDE_SHARE * drawn))
    completer: Any = load_completer("transfer")
    decoder = ACPMBR(completer, load_observation("adaptive"), budgets[0], budgets[1:])
    assert guide is not None
    decision = decoder.decode(
        candidates, None, target, MatrixUtility(guide, texts, texts), seed=seed, full_matrix=case.target
    )
    return measures(case, decision.index, decision.matrix)


def run(case: Case, name: str, rate: int, kind: str, seed: int) -> dict[str, float | None]:
    guide = None if name in UNGUIDED else case.guide(kind, seed)
    if name == "distilled mbr":
        assert guide is not None
        return measures(case, int(np.argmax(guide @ case.counts)), guide)
    if name in ("halving", "transfer+adaptive"):
        return by_decoder(case, name, rate, guide, seed)
    return by_mask(case, name, rate, guide, seed)


def jobs(
    cases: list[Case], rates: list[int], kinds: list[str], seeds: int
) -> Iterator[tuple[Case, str, int, str, int]]:
    for seed in range(seeds):
        for kind in kinds:
            for rate in rates:
                for name in METHODS:
                    if name not in UNGUIDED or kind == kinds[0]:
                        yield from ((case, name, rate, kind, seed) for case in cases)


def collect(
    cases: list[Case], rates: list[int], kinds: list[str], seeds: int, file: Path
) -> dict[str, dict[str, float]]:
    """All results by key, those in `file` taken from there; written after every seed, guide, rate and method."""
    results: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.is_file() else {}
    last = ""
    for case, name, rate, kind, seed in jobs(cases, rates, kinds, seeds):
        key = "|".join([name, str(rate), "-" if name in UNGUIDED else kind, case.name, str(seed)])
        if key in results:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            results[key] = run(case, name, rate, kind, seed)  # type: ignore[assignment]
        if last != (last := f"{name}{rate}{kind}{seed}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(results))
    file.write_text(json.dumps(results))
    return results


def summary(
    results: dict[str, dict[str, float]], name: str, rate: int, kind: str, measure: str
) -> tuple[float, float, int] | None:
    """Mean over matrices and seeds, half a 95% interval over the seeds, and the number of seeds."""
    by_seed: dict[str, list[float]] = {}
    for key, values in results.items():
        method, r, guide, _, seed = key.split("|")
        if (method, r) == (name, str(rate)) and guide in ("-", kind) and values[measure] is not None:
            by_seed.setdefault(seed, []).append(values[measure])
    if not by_seed:
        return None
    means = np.array([np.mean(v) for v in by_seed.values()])
    half = 1.96 * means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else float("nan")
    return float(means.mean()), float(half), len(means)


def table(results: dict[str, dict[str, float]], rates: list[int], kinds: list[str]) -> str:
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


def picture(results: dict[str, dict[str, float]], rates: list[int], kinds: list[str], file: Path) -> None:
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
    parser.add_argument("--matrices", type=Path, default=DEFAULT_MATRICES, help="folder of .npz score matrices")
    parser.add_argument("--rates", type=int, nargs="+", default=[16, 32, 128, 512, 1024, 4096])
    parser.add_argument("--guides", nargs="+", default=["good", "weak", "random"], choices=["good", "weak", "random"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=Path("selection.json"))
    parser.add_argument("--picture", type=Path, default=Path("selection.png"))
    options = parser.parse_args(arguments)
    cases = stored(options.matrices) or synthetic()
    print(f"{len(cases)} matrices: {', '.join(case.name for case in cases)}")
    results = collect(cases, options.rates, options.guides, options.seeds, options.results)
    print(table(results, options.rates, options.guides))
    picture(results, options.rates, options.guides, options.picture)


if __name__ == "__main__":
    main()
