"""When to stop: `python -m evaluation.benchmarks.stopping [default|draws|jobs]`.

default: what the default promises and what it costs. Per kind of made-up matrices (`kinds`, seeds that the method was
not built on) and for the stored ones: what is lost × 100, how often more than is promised, what is stated, and calls
per candidate drawn, those of a guide by its price. Then what constant budgets lose on the stored ones.

draws: draw until sure on the stored pools, taken as so many draws in random order, against constant numbers; with a
picture.

jobs: CPU seconds of `generate`, sampling and scoring, for "auto" and for constant numbers.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.assets import BUILTIN, BUILTIN_SENTENCES, DATA_OR_BUILTIN_HELP, find, read_lines
from evaluation.benchmarks.kinds import KINDS, made_up_kind
from evaluation.benchmarks.matrices import MatrixCase, load_cases, stored
from evaluation.benchmarks.measures import cpu_seconds
from hf_acpmbr import ACPMBR
from hf_acpmbr.decoding import RoundsMBR
from hf_acpmbr.generation.models import EMBEDDED, load_model
from hf_acpmbr.recipe import EVERY_SENTENCE, ON_AVERAGE, Budget
from hf_acpmbr.scoring import MatrixUtility

BOUND = 0.1  # regret × 100 that the default promises
PRICES = (0.0, 1 / 64, 1 / 16, 1 / 4, 1 / 2)
CONSTANTS = (2, 4, 6, 8, 10, 12, 16, 24, 32)
DEFAULT = RoundsMBR(max_regret="auto")
# Constant numbers of draws, and those of whole jobs.
NUMBERS, JOBS = (32, 64, 128, 181, 256, 362, 512), (256, 1024)


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


def measure_default(cases: Sequence[MatrixCase], seeds: int) -> None:
    print(f"{'kind':<26}{'runs':>5}{'lost':>8}{'worst':>7}{'above':>7}{'stated':>8}{'calls':>8}")
    print(line("matrices, no guide", cases, seeds), flush=True)
    for price in PRICES:
        print(line(f"matrices, guide at {price:g}", cases, seeds, price=price), flush=True)
    for kind in KINDS:
        print(line(kind, [made_up_kind(kind, 1000 + seed) for seed in range(10)], 1), flush=True)
    for k in CONSTANTS:
        decoder = RoundsMBR(Budget(scores_per_row=k))
        print(line(f"matrices, {k} per candidate", cases, seeds, decoder), flush=True)


def drawn(case: MatrixCase, seed: int, number: int | str) -> tuple[float, float, float, float]:
    """Take the pool in a random order, `number` of it or until sure: draws, regret × 100, stated × 100, calls."""
    random = np.random.default_rng(seed)
    order = random.permutation(np.repeat(case.candidates.texts, case.counts)).tolist()
    target = MatrixUtility(case.target, case.candidates.texts, price_per_pair=1.0)
    if isinstance(number, int):
        decision = ACPMBR(target=target, seed=seed).rerank(order[:number])
        return number, case.regret(int(decision.text)), np.nan, decision.total_calls
    left = iter(order)
    mbr = ACPMBR(target=target, seed=seed, num_candidates="auto", max_candidates=len(order), sure=number)
    decision = mbr.rerank([next(left)], more=lambda n: list(itertools.islice(left, n)))
    loss = decision.draws
    assert loss is not None
    stated = (decision.expected_regret or 0.0) + loss.expected
    return loss.drawn, case.regret(int(decision.text)), 100 * stated, decision.total_calls


def measure_draws(cases: Sequence[MatrixCase], seeds: int, file: Path) -> None:
    print(f"{'':<16}{'draws':>6}{'lost':>7}{'95%':>6}{'worst':>7}{'source':>7}{'stated':>8}{'calls':>8}")
    means = {}
    for number in (ON_AVERAGE, EVERY_SENTENCE, *NUMBERS):
        found = np.array([[drawn(case, seed, number) for seed in range(seeds)] for case in cases])
        draws, lost, stated, calls = found.reshape(-1, 4).T
        means[number] = draws.mean(), lost.mean()
        worst = f"{np.quantile(lost, 0.95):>6.2f}{lost.max():>7.2f}{found[:, :, 1].mean(axis=1).max():>7.3f}"
        print(f"{number!s:<16}{draws.mean():>6.0f}{lost.mean():>7.3f}{worst}{stated.mean():>8.3f}{calls.mean():>8.0f}")
    picture(means, file)


def picture(means: dict[int | str, tuple[float, float]], file: Path) -> None:
    """Draw loss against draws, readable on a phone."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.8, 3.6), layout="constrained")
    draws, lost = zip(*(means[number] for number in NUMBERS), strict=True)
    axes.plot(draws, lost, "o-", color="C7", label="the same number for each sentence")
    for name, label, look in ((ON_AVERAGE, '"auto"', "C1*"), (EVERY_SENTENCE, '"auto", every sentence', "C0*")):
        axes.plot(*means[name], look, markersize=16, label=label)
    axes.axhline(BOUND, color="black", linestyle=":", linewidth=1, label="the stated loss")
    axes.set_xscale("log")
    axes.set_xticks(NUMBERS, map(str, NUMBERS))
    axes.minorticks_off()
    axes.set(xlabel="samples per sentence, on average", ylabel="expected utility lost × 100", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=10)
    figure.savefig(file, dpi=130)


def measure_jobs(model_name: str, target: str, texts: Sequence[str]) -> None:
    model, tokenizer, language = load_model(model_name)
    inputs = tokenizer(list(texts), return_tensors="pt", padding=True)
    settings: dict[str, Any] = {**inputs, **language, "max_new_tokens": 100, "return_dict_in_generate": True}
    print(f"{model_name}, {target}, {len(texts)} sentences")
    print(f"{'':<8}{'draws':>7}{'CPU s':>8}{'sampling':>10}{'calls':>8}")
    for number in ("auto", *JOBS):
        mbr = ACPMBR(tokenizer, target=target, num_candidates=number)
        seconds, output = cpu_seconds(partial(model.generate, custom_generate=mbr, **settings))
        draws = np.mean([decision.candidates.total for decision in output.decisions])
        calls = sum(decision.total_calls for decision in output.decisions)
        print(f"{number!s:<8}{draws:>7.0f}{seconds:>8.1f}{output.seconds['sampling']:>10.1f}{calls:>8}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="default", choices=("default", "draws", "jobs"))
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--matrices", nargs="*", default=[], help="instead, folders such as `matrices` makes")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--picture", type=Path, default=Path("draws.png"))
    parser.add_argument("--model", default=EMBEDDED, help="of jobs")
    parser.add_argument("--target", default="chrf", help="of jobs")
    parser.add_argument("--sentences", type=int, default=8, help="of jobs: built-in ones, English")
    options = parser.parse_args(arguments)
    if options.what == "jobs":
        texts = [row["en"] for row in read_lines(BUILTIN_SENTENCES)]
        measure_jobs(options.model, options.target, texts[: options.sentences])
        return
    cases = [case for folder in options.matrices for case in stored(Path(folder))] or load_cases(options.data)
    if options.data != BUILTIN and not options.matrices:
        cases += stored(find("pools_fr-en", "", options.data))
    if options.what == "draws":
        measure_draws(cases, options.seeds, options.picture)
    else:
        measure_default(cases, options.seeds)


if __name__ == "__main__":
    main()
