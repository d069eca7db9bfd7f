"""How far the default is from what is possible: `python -m evaluation.benchmarks.oracle`.

An oracle knows the mean of every candidate and how much its differences from the best one vary from pseudo-reference to
pseudo-reference, and so which depths (at least 1) lose least for their calls: those with the least Σ depth + λ · gap ·
P(the mean of so many differences is above 0). Like any rule it then has to find the best by the scores that it asked
for: it takes the candidate whose weighted difference from the best is highest on its own pseudo-references. λ is chosen
for each matrix, on some seeds, as the cheapest that loses at most what the default promises, and judged on other seeds.
With a guide the differences are those of target − β · guide, β by all scores, and the guide's own calls are free.

The constant budget is the smallest that loses no more than the default, on all matrices together.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from evaluation.assets import BUILTIN, DATA_OR_BUILTIN_HELP, find
from evaluation.benchmarks.matrices import MatrixCase, load_cases, stored
from evaluation.benchmarks.measures import Floats
from evaluation.benchmarks.stopping import BOUND, DEFAULT, measured
from hf_acpmbr.decoding import RoundsMBR
from hf_acpmbr.recipe import Budget

# What λ may be: calls that a loss of 0.01 is worth.
WORTHS = np.geomspace(0.1, 1e6, 57)
CONSTANTS = (4, 6, 8, 10, 12, 14, 16, 20, 24, 32)


def weights_of_first(shares: Floats, arrivals: Floats, depth: int) -> Floats:
    """Return (depth,) weights with which scores against the first pseudo-references stand for all.

    Each comes after an exponential time with its share as the rate; from those that came before the next one, the
    others' sum is estimated by 1 / probability (Hájek's estimator).
    """
    seen = shares[:depth]
    if depth == len(shares):
        return seen
    chance = -np.expm1(-seen * arrivals[depth])
    unseen = seen * (1 - chance) / chance
    return np.asarray(seen + (1 - seen.sum()) * unseen / unseen.sum())


def without_own(matrix: Floats, shares: Floats) -> Floats:
    """Put each text's mean score in the place of its score against itself, which tells nothing of others."""
    others = (matrix @ shares - shares * matrix.diagonal()) / (1 - shares)
    return np.where(np.eye(len(matrix), dtype=bool), others[:, None], matrix)


class Oracle:
    """What is known of one matrix, and what is chosen by scores as many as that asks for.

    Args:
        case: the matrix.
        guide: kind of a guide whose scores are all known; None for no guide.
    """

    def __init__(self, case: MatrixCase, guide: str | None) -> None:
        self.case, self.shares = case, case.candidates.weights
        best, gap = int(case.expected.argmax()), case.expected.max() - case.expected
        target = without_own(case.target, self.shares)
        self.unknown = target - target[best]
        self.known = -gap - self.unknown @ self.shares  # what a text's score against itself adds
        if guide is not None:
            other = without_own(case.guides[guide], self.shares)
            other = other - other[best]
            first, second = (each - each.mean(axis=0) - (each @ self.shares)[:, None] for each in (self.unknown, other))
            slope = float((first * second).sum() / np.square(second).sum())
            self.known = self.known + slope * other @ self.shares
            self.unknown = self.unknown - slope * other
        self.deviation = np.sqrt(np.square(self.unknown - (self.unknown @ self.shares)[:, None]) @ self.shares)
        self.gap = gap
        self.depths = np.unique(np.geomspace(1, len(gap), 60).astype(np.int64))
        likely = ndtr(-(gap / np.maximum(self.deviation, 1e-12))[:, None] * np.sqrt(self.depths))
        self.loss = 100 * gap[:, None] * np.where(self.depths == len(gap), 0.0, likely)

    def choose(self, worth: float, seed: int) -> tuple[float, float]:
        """Return regret × 100 and calls per candidate drawn."""
        arrivals = np.random.default_rng(seed).exponential(size=len(self.shares)) / self.shares
        order = np.argsort(arrivals)
        depth = self.depths[np.argmin(self.depths + worth * self.loss, axis=1)]
        depth[self.case.expected.argmax()] = depth.max()
        found = self.known.copy()
        for d in np.unique(depth):
            rows = np.flatnonzero(depth == d)
            weights = weights_of_first(self.shares[order], arrivals[order], int(d))
            found[rows] += self.unknown[np.ix_(rows, order[:d])] @ weights
        error = np.square(self.deviation) * (1 / depth - 1 / len(order))
        spread, usual = float(self.gap.var()), -float(self.gap.mean())
        found = usual + spread / (spread + error) * (found - usual)
        return self.case.regret(int(found.argmax())), depth.sum() / self.case.counts.sum()


def least(oracle: Oracle, seeds: int) -> tuple[float, float]:
    """Tune on `seeds` seeds and judge on as many others: mean regret × 100 and calls per candidate drawn."""
    for worth in WORTHS:
        if np.mean([oracle.choose(worth, seed)[0] for seed in range(seeds)]) <= BOUND:
            break
    judged = np.mean([oracle.choose(worth, seed) for seed in range(seeds, 2 * seeds)], axis=0)
    return float(judged[0]), float(judged[1])


def default(case: MatrixCase, seeds: int, decoder: RoundsMBR, price: float | None) -> tuple[float, float]:
    """Return the mean regret × 100 of rounds and their calls per candidate drawn, those of a guide left out."""
    runs = np.array([measured(case, seed, decoder, price) for seed in range(seeds)])
    return float(runs[:, 0].mean()), float(runs[:, 2].mean())


def compare(cases: Sequence[MatrixCase], seeds: int) -> None:
    print(f"{'':<26}{'lost':>8}{'calls':>8}{'oracle lost':>13}{'calls':>8}{'ratio':>8}")
    for name, guide, price in (("no guide", None, None), ("good guide, free", "good", 0.0)):
        rows = np.array(
            [[*default(case, seeds, DEFAULT, price), *least(Oracle(case, guide), 10 * seeds)] for case in cases]
        )
        ratio = float(np.exp(np.log(rows[:, 1] / rows[:, 3]).mean()))
        lost, calls, its, least_calls = rows.mean(axis=0)
        print(f"{name:<26}{lost:>8.3f}{calls:>8.2f}{its:>13.3f}{least_calls:>8.2f}{ratio:>8.2f}", flush=True)
        if guide is None:
            reached, spent = lost, calls
    for k in CONSTANTS:
        decoder = RoundsMBR(Budget(scores_per_row=k))
        lost, calls = np.mean([default(case, seeds, decoder, None) for case in cases], axis=0)
        print(f"{f'constant budget of {k}':<26}{lost:>8.3f}{calls:>8.2f}{calls / spent:>37.2f}", flush=True)
        if lost <= reached:
            break


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args(arguments)
    cases = load_cases(options.data)
    if options.data != BUILTIN:
        cases += stored(find("pools_fr-en", "", options.data))
    compare(cases, options.seeds)


if __name__ == "__main__":
    main()
