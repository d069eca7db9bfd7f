"""How far the default is from what is possible: `python -m evaluation.benchmarks.oracle`.

An oracle knows the mean of every candidate and how much its differences from the best one vary, and so which depths (at
least 1) lose least for their calls: those with the least Σ depth + λ · gap · P(the mean difference is above 0). It must
then find the best by these scores: differences from the best, added to what the best is above the average candidate and
pulled towards that by their errors. λ is chosen for each matrix, on some seeds, as the cheapest that loses at most what
the default promises, and judged on other seeds. With a guide the scores are target − β · guide, and its own are free.
No bound: its depths are fixed beforehand, where rounds go on by what they have seen.

The constant budget is the smallest that loses no more than the default on all matrices together.
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


class Oracle:
    """What is known of one matrix, with a kind of guide or None, and what is chosen by the scores it asks for."""

    def __init__(self, case: MatrixCase, guide: str | None) -> None:
        self.case, self.shares = case, case.candidates.weights
        gap = case.expected.max() - case.expected
        self.best, self.spread = int(gap.argmin()), float(gap.var())
        self.unknown = self._from_best(case.target)
        self.known = -gap - self.unknown @ self.shares  # what a text's score against itself adds
        if guide is not None:
            other = self._from_best(case.guides[guide])
            first, second = (each - each.mean(axis=0) - (each @ self.shares)[:, None] for each in (self.unknown, other))
            slope = float((first * second).sum() / np.square(second).sum())
            self.known, self.unknown = self.known + slope * other @ self.shares, self.unknown - slope * other
        self.variance = np.square(self.unknown - (self.unknown @ self.shares)[:, None]) @ self.shares
        self.leading = -self.unknown.mean(axis=0)  # the best against the average candidate
        self.depths = np.unique(np.geomspace(1, len(gap), 60).astype(np.int64))
        likely = ndtr(-gap[:, None] / np.sqrt(np.maximum(self.variance, 1e-18))[:, None] * np.sqrt(self.depths))
        self.loss = 100 * gap[:, None] * np.where(self.depths == len(gap), 0.0, likely)

    def _from_best(self, matrix: Floats) -> Floats:
        """Return differences from the best; a text's score against itself is like its others."""
        others = (matrix @ self.shares - self.shares * matrix.diagonal()) / (1 - self.shares)
        filled = np.where(np.eye(len(matrix), dtype=bool), others[:, None], matrix)
        return np.asarray(filled - filled[self.best])

    def choose(self, worth: float, seed: int) -> tuple[float, float]:
        """Return regret × 100 and calls per candidate drawn."""
        arrivals = np.random.default_rng(seed).exponential(size=len(self.shares)) / self.shares
        order = np.argsort(arrivals)
        depth = self.depths[np.argmin(self.depths + worth * self.loss, axis=1)]
        depth[self.best] = depth.max()
        found = self.known - self.known.mean()
        for d in np.unique(depth):  # the deepest are last, with the best among them
            rows = np.flatnonzero(depth == d)
            weights = weights_of_first(self.shares[order], arrivals[order], int(d))
            found[rows] += self.unknown[np.ix_(rows, order[:d])] @ weights
        found += weights @ self.leading[order[: len(weights)]]
        variance = self.variance.copy()
        variance[self.best] = np.square(self.leading - self.leading @ self.shares) @ self.shares
        found *= self.spread / (self.spread + variance * (1 / depth - 1 / len(order)))
        return self.case.regret(int(found.argmax())), float(depth.sum() / self.case.counts.sum())


def least(oracle: Oracle, seeds: int) -> tuple[float, float]:
    """Tune on `seeds` seeds and judge on as many others: mean regret × 100 and calls per candidate drawn."""
    for worth in WORTHS:
        if np.mean([oracle.choose(worth, seed)[0] for seed in range(seeds)]) <= BOUND:
            break
    lost, calls = np.mean([oracle.choose(worth, seed) for seed in range(seeds, 2 * seeds)], axis=0)
    return float(lost), float(calls)


def compare(cases: Sequence[MatrixCase], seeds: int) -> None:
    """Print what the default and the oracle lose and call, then constant budgets until one loses as little."""

    def rounds(case: MatrixCase, decoder: RoundsMBR, price: float | None) -> Floats:
        return np.asarray(np.mean([measured(case, seed, decoder, price) for seed in range(seeds)], axis=0)[[0, 2]])

    print(f"{'':<26}{'lost':>8}{'calls':>8}{'oracle lost':>13}{'calls':>8}{'ratio':>8}")
    reached, spent = np.inf, np.nan
    for name, guide, price in (("good guide, free", "good", 0.0), ("no guide", None, None)):
        rows = np.array([[*rounds(case, DEFAULT, price), *least(Oracle(case, guide), 10 * seeds)] for case in cases])
        (reached, spent, lost, calls), ratio = rows.mean(axis=0), np.exp(np.log(rows[:, 1] / rows[:, 3]).mean())
        print(f"{name:<26}{reached:>8.3f}{spent:>8.2f}{lost:>13.3f}{calls:>8.2f}{ratio:>8.2f}", flush=True)
    for k in CONSTANTS:
        lost, calls = np.mean([rounds(case, RoundsMBR(Budget(scores_per_row=k)), None) for case in cases], axis=0)
        print(f"{f'constant budget of {k}':<26}{lost:>8.3f}{calls:>8.2f}{calls / spent:>29.2f}", flush=True)
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
