"""What the completion costs and how well it completes: `python -m evaluation.benchmarks.completion`.

1. AC-ALS against a direct implementation that materialises N×M×d, same masks, start and sweeps, in one run (CPU time).
2. How time and memory grow from N = 256 to 8,192.
3. On real score matrices (`--data`): MSE on a 0–100 scale and regret of ALS and AC-ALS, centred and not, and of
   transfer, at the paper's Low and High and between; rates are taken over the unique matrix, so that rows hold as few
   scores as in the paper.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import torch

from evaluation.assets import DATA_OR_BUILTIN_HELP
from evaluation.benchmarks.matrices import MatrixCase, load_cases, masked
from evaluation.benchmarks.measures import Floats, cpu_seconds, mean_and_error
from hf_acpmbr.completion import ALS, AgreementALS, ConvergenceWarning
from hf_acpmbr.completion.base import Completer
from hf_acpmbr.completion.observation import Uniform
from hf_acpmbr.completion.transfer import Transfer
from hf_acpmbr.matrix import ObservedScores

RANK, LAMBDA, SWEEPS = 8, 0.1, 30
# r, r′, PMBR's r at equal cost, γ
SETTINGS = {"low": (32, 2, 16, 0.1), "between": (128, 8, 64, 0.3), "high": (1024, 64, 512, 1.0)}


def synthetic(n: int, rates: tuple[int, ...], seed: int = 0) -> list[ObservedScores]:
    """Observe entries of a noisy low-rank N×N matrix in [0, 1], without building it: one mask per rate."""
    random = np.random.default_rng(seed)
    u, v = random.normal(size=(n, RANK)), random.normal(size=(n, RANK))
    observed = []
    for k, rate in enumerate(rates):
        pairs = Uniform().mask((n, n), n * n // rate, seed + k)
        values = 0.6 + 0.03 * np.einsum("kd,kd->k", u[pairs.rows], v[pairs.columns])
        observed.append(ObservedScores(pairs, values + 0.02 * random.normal(size=len(pairs))))
    return observed


def direct(target: ObservedScores, guide: ObservedScores, gamma: float, init: tuple[Floats, Floats]) -> Floats:
    """Run AC-ALS as one would first write it in torch: each half-sweep builds masked factors as an (N, M, d) array."""
    scores = [torch.from_numpy(o.dense(fill=0.0)) for o in (target, guide)]
    masks = [torch.from_numpy(np.isfinite(o.dense()).astype(float)) for o in (target, guide)]
    rows = [torch.from_numpy(init[0])] * 2
    columns = [torch.from_numpy(init[1])] * 2
    ridge = (LAMBDA + gamma) * torch.eye(RANK, dtype=torch.float64)

    def half(o: torch.Tensor, w: torch.Tensor, fixed: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
        masked = w[:, :, None] * fixed
        left = masked.mT @ masked + ridge
        right = masked.mT @ o[:, :, None] + gamma * pull[:, :, None]
        return torch.cholesky_solve(right, torch.linalg.cholesky(left)).squeeze(-1)

    for _ in range(SWEEPS):
        rows[1] = half(scores[1], masks[1], columns[1], rows[0])
        rows[0] = half(scores[0], masks[0], columns[0], rows[1])
        columns[1] = half(scores[1].T, masks[1].T, rows[1], columns[0])
        columns[0] = half(scores[0].T, masks[0].T, rows[0], columns[1])
    return np.asarray((rows[0] @ columns[0].T).numpy())


def compare_with_direct(n: int) -> None:
    print(f"AC-ALS against a direct N×M×d implementation, N = M = {n}, d = {RANK}, {SWEEPS} sweeps, CPU seconds")
    print(f"{'setting':>8} {'r':>5} {'r′':>4} {'direct':>9} {'ours':>8} {'ratio':>7} {'largest difference':>19}")
    for name, (rate, guide_rate, _, gamma) in SETTINGS.items():
        target, guide = synthetic(n, (rate, guide_rate))
        random = np.random.default_rng(1)
        init = np.abs(random.normal(0, 0.4, (n, RANK))), np.abs(random.normal(0, 0.4, (n, RANK)))
        solver = AgreementALS(RANK, LAMBDA, SWEEPS, tolerance=0, center=False, agreement=gamma)
        solver.solve(target, [guide], init=init)  # warm up
        ours, completion = cpu_seconds(partial(solver.solve, target, [guide], init=init))
        slow, matrix = cpu_seconds(partial(direct, target, guide, gamma, init))
        difference = np.abs(completion.matrix - matrix).max()
        print(f"{name:>8} {rate:>5} {guide_rate:>4} {slow:>9.2f} {ours:>8.3f} {slow / ours:>6.0f}× {difference:>19.1e}")


def growth(sizes: list[int]) -> None:
    """Run each size in a process of its own, so that its peak memory is its own."""
    print(f"\nHow AC-ALS grows at r = 1024, r′ = 64, {SWEEPS} sweeps (memory: the process's peak, libraries included)")
    print(f"{'N = M':>7} {'target':>10} {'guide':>11} {'CPU s':>8} {'µs / guide score / sweep':>25} {'memory MB':>10}")
    for n in sizes:
        command = [sys.executable, "-m", "evaluation.benchmarks.completion", "--one-size", str(n)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="", flush=True)


def one_size(n: int) -> None:
    target, guide = synthetic(n, (1024, 64))
    solver = AgreementALS(RANK, LAMBDA, SWEEPS, tolerance=0, agreement=1.0)
    seconds, completion = cpu_seconds(lambda: solver.solve(target, [guide]))
    completion.expected()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    each = 1e6 * seconds / len(guide) / SWEEPS
    print(f"{n:>7} {len(target):>10,} {len(guide):>11,} {seconds:>8.2f} {each:>25.2f} {memory:>10.0f}")


def full_matrices(cases: list[MatrixCase], seeds: int) -> None:
    heading = f"{len(cases)} matrices ({cases[0].name}, …), {seeds} seeds"
    print(f"\n{heading}, rates over the unique matrix; ± standard error")
    print(f"{'setting':>8} {'method':<18} {'r':>5} {'r′':>4} {'MSE':>16} {'regret × 100':>16}")
    for name, (rate, guide_rate, pmbr_rate, gamma) in SETTINGS.items():
        methods: dict[str, tuple[Completer, int, int | None]] = {
            "ALS": (ALS(center=False), pmbr_rate, None),
            "ALS centred": (ALS(), pmbr_rate, None),
            "AC-ALS": (AgreementALS(agreement=gamma, center=False), rate, guide_rate),
            "AC-ALS centred": (AgreementALS(agreement=gamma), rate, guide_rate),
            "transfer": (Transfer(), rate, guide_rate),
        }
        for method, (completer, r, r_guide) in methods.items():
            runs = [measure(case, completer, r, r_guide, seed) for case in cases for seed in range(seeds)]
            mean, error = mean_and_error(runs)
            print(
                f"{name:>8} {method:<18} {r:>5} {r_guide or '':>4} {mean[0]:>9.2f} ± {error[0]:<5.2f}"
                f"{mean[1]:>8.2f} ± {error[1]:.2f}"
            )


def measure(
    case: MatrixCase, completer: Completer, rate: int, guide_rate: int | None, seed: int
) -> tuple[float, float]:
    """Return the MSE on a 0–100 scale, and regret × 100."""
    guides = [] if guide_rate is None else [masked(case.guides["good"], guide_rate, 2 * seed + 1)]
    completion = completer.solve(masked(case.target, rate, 2 * seed), guides)
    chosen = int(completion.expected(case.counts).argmax())
    return case.error(completion.matrix), case.regret(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="N = M of the comparison (default 1024)")
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--one-size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if options.one_size:
        one_size(options.one_size)
        return
    cases = load_cases(options.data)  # first: what is missing is said before minutes are spent
    compare_with_direct(options.size)
    growth(options.sizes)
    full_matrices(cases, options.seeds)


if __name__ == "__main__":
    main()
