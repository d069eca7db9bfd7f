"""What the default promises and what it costs: `python -m evaluation.benchmarks.stopping`.

Per kind of made-up matrices (`kinds`, seeds that the method was not built on) and for the stored ones: what is lost
× 100, how often more than is promised, what is stated, and calls per candidate drawn, those of a guide by its price.
Then what constant budgets lose on the stored ones, to compare with the default's at an equal loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from evaluation.assets import BUILTIN, DATA_OR_BUILTIN_HELP, find
from evaluation.benchmarks.kinds import KINDS, made_up_kind
from evaluation.benchmarks.matrices import MatrixCase, load_cases, stored
from hf_acpmbr.decoding import RoundsMBR
from hf_acpmbr.recipe import Budget
from hf_acpmbr.scoring import MatrixUtility

BOUND = 0.1  # regret × 100 that the default promises
PRICES = (0.0, 1 / 64, 1 / 16, 1 / 4, 1 / 2)
CONSTANTS = (2, 4, 6, 8, 10, 12, 16, 24, 32)
DEFAULT = RoundsMBR(max_regret="auto")


def measured(case: MatrixCase, seed: int, decoder: RoundsMBR, price: float | None) -> tuple[float, float, float]:
    """Decide once, with the good guide if it has a price: regret × 100, stated × 100, calls per candidate drawn."""
    target = MatrixUtility(case.target, case.candidates.texts, price_per_pair=1.0)
    guides = []
    if price is not None:
        guides = [MatrixUtility(case.guides["good"], case.candidates.texts, name="guide", price_per_pair=price)]
    got = decoder.decode(case.candidates, None, target, guides, seed=seed)
    calls = got.calls["matrix"] + (price or 0.0) * got.calls.get("guide", 0)
    return case.regret(got.index), 100 * (got.expected_regret or 0.0), calls / case.counts.sum()


def line(
    name: str, cases: Sequence[MatrixCase], seeds: int, decoder: RoundsMBR = DEFAULT, price: float | None = None
) -> str:
    found = np.array([measured(case, seed, decoder, price) for case in cases for seed in range(seeds)])
    lost, stated, calls = found.T
    means = (
        f"{lost.mean():>8.3f}{lost.max():>7.2f}{np.mean(lost > BOUND):>7.0%}{stated.mean():>8.3f}{calls.mean():>8.2f}"
    )
    return f"{name:<26}{len(lost):>5}{means}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args(arguments)
    cases = load_cases(options.data)
    if options.data != BUILTIN:
        cases += stored(find("pools_fr-en", "", options.data))
    print(f"{'kind':<26}{'runs':>5}{'lost':>8}{'worst':>7}{'above':>7}{'stated':>8}{'calls':>8}")
    print(line("matrices, no guide", cases, options.seeds), flush=True)
    for price in PRICES:
        print(line(f"matrices, guide at {price:g}", cases, options.seeds, price=price), flush=True)
    for kind in KINDS:
        print(line(kind, [made_up_kind(kind, 1000 + seed) for seed in range(10)], 1), flush=True)
    for k in CONSTANTS:
        decoder = RoundsMBR(Budget(scores_per_row=k))
        print(line(f"matrices, {k} per candidate", cases, options.seeds, decoder), flush=True)


if __name__ == "__main__":
    main()
