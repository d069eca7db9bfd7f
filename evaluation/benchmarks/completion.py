"""What the completion costs and how well it completes: `python -m evaluation.benchmarks.completion`.

1. AC-ALS against a direct implementation that materialises N×M×d, same masks, start and sweeps, in one run (CPU time).
2. How time and memory grow from N = 256 to 8,192.
3. On real score matrices (a folder of .npz with `target`, `distilled`, `counts`): MSE on a 0–100 scale and regret of
   ALS and AC-ALS, centred and not, at the paper's Low and High; rates are taken over the unique matrix, so that rows
   hold as few scores as in the paper.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_acpmbr.completion import ALS, AgreementALS, ConvergenceWarning
from hf_acpmbr.matrix import ObservedScores, Pairs
from hf_acpmbr.observation import uniform

RANK, LAMBDA, SWEEPS = 8, 0.1, 30
SETTINGS = {"low": (32, 2, 16, 0.1), "high": (1024, 64, 512, 1.0)}  # r, r′, PMBR's r at equal cost, γ
DEFAULT_MATRICES = Path(__file__).resolve().parents[3] / "shared" / "data" / "matrices"


def synthetic(n: int, rates: tuple[int, ...], seed: int = 0) -> list[ObservedScores]:
    """Observed entries of a noisy low-rank N×N matrix in [0, 1], without building it: one mask for each rate."""
    random = np.random.default_rng(seed)
    u, v = random.normal(size=(n, RANK)), random.normal(size=(n, RANK))
    observed = []
    for k, rate in enumerate(rates):
        pairs = uniform((n, n), n * n // rate, seed + k)
        values = 0.6 + 0.03 * np.einsum("kd,kd->k", u[pairs.rows], v[pairs.columns])
        observed.append(ObservedScores(pairs, values + 0.02 * random.normal(size=len(pairs))))
    return observed


def direct(
    target: ObservedScores, guide: ObservedScores, gamma: float, init: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """AC-ALS as one would first write it in torch: every half-sweep builds the masked factors as an (N, M, d) array."""
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
    return (rows[0] @ columns[0].T).numpy()


def cpu_seconds(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    start = time.process_time()
    result = work(*arguments)
    return time.process_time() - start, result


def compare_with_direct(n: int) -> None:
    print(f"AC-ALS against a direct N×M×d implementation, N = M = {n}, d = {RANK}, {SWEEPS} sweeps, CPU seconds")
    print(f"{'setting':>8} {'r':>5} {'r′':>4} {'direct':>9} {'ours':>8} {'ratio':>7} {'largest difference':>19}")
    for name, (rate, guide_rate, _, gamma) in SETTINGS.items():
        target, guide = synthetic(n, (rate, guide_rate))
        random = np.random.default_rng(1)
        init = np.abs(random.normal(0, 0.4, (n, RANK))), np.abs(random.normal(0, 0.4, (n, RANK)))
        solver = AgreementALS(RANK, LAMBDA, gamma, SWEEPS, tolerance=0, center=False)
        solver.complete(target, None, guide, init=init)  # warm up
        ours, completion = cpu_seconds(solver.complete, target, None, guide, None, init)
        slow, matrix = cpu_seconds(direct, target, guide, gamma, init)
        difference = np.abs(completion.matrix - matrix).max()
        print(f"{name:>8} {rate:>5} {guide_rate:>4} {slow:>9.2f} {ours:>8.3f} {slow / ours:>6.0f}× {difference:>19.1e}")


def growth(sizes: list[int]) -> None:
    """Each size in a process of its own, so that its peak memory is its own."""
    print(f"\nHow AC-ALS grows at r = 1024, r′ = 64, {SWEEPS} sweeps (memory: the process's peak, libraries included)")
    print(f"{'N = M':>7} {'target':>10} {'guide':>11} {'CPU s':>8} {'µs / guide score / sweep':>25} {'memory MB':>10}")
    for n in sizes:
        command = [sys.executable, "-m", "evaluation.benchmarks.completion", "--one-size", str(n)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="", flush=True)


def one_size(n: int) -> None:
    target, guide = synthetic(n, (1024, 64))
    solver = AgreementALS(RANK, LAMBDA, 1.0, SWEEPS, tolerance=0)
    seconds, completion = cpu_seconds(solver.complete, target, None, guide)
    completion.expected()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    each = 1e6 * seconds / len(guide) / SWEEPS
    print(f"{n:>7} {len(target):>10,} {len(guide):>11,} {seconds:>8.2f} {each:>25.2f} {memory:>10.0f}")


def real_matrices(folder: Path, seeds: int) -> None:
    files = sorted(folder.glob("*.npz"))
    if not files:
        print(f"\nNo score matrices in {folder}: the table of MSE and regret is left out (--matrices FOLDER)")
        return
    print(f"\n{len(files)} real matrices, {seeds} seeds, rates over the unique matrix; ± is the standard error")
    print(f"{'setting':>8} {'method':<18} {'r':>5} {'r′':>4} {'MSE':>16} {'regret × 100':>16}")
    for name, (rate, guide_rate, pmbr_rate, gamma) in SETTINGS.items():
        methods = {
            "ALS": (ALS(center=False), pmbr_rate, None),
            "ALS centred": (ALS(), pmbr_rate, None),
            "AC-ALS": (AgreementALS(agreement=gamma, center=False), rate, guide_rate),
            "AC-ALS centred": (AgreementALS(agreement=gamma), rate, guide_rate),
        }
        for method, (completer, r, r_guide) in methods.items():
            results = np.array(
                [measure(np.load(file), completer, r, r_guide, seed) for file in files for seed in range(seeds)]
            )
            mean, error = results.mean(0), results.std(0) / np.sqrt(len(results))
            print(
                f"{name:>8} {method:<18} {r:>5} {r_guide or '':>4} {mean[0]:>9.2f} ± {error[0]:<5.2f}"
                f"{mean[1]:>8.2f} ± {error[1]:.2f}"
            )


def measure(
    stored: dict[str, np.ndarray], completer: ALS | AgreementALS, rate: int, guide_rate: int | None, seed: int
) -> tuple[float, float]:
    """MSE on a 0–100 scale, and the expected target utility × 100 that the choice loses against full MBR."""
    target, guide = stored["target"].astype(float), stored["distilled"].astype(float)
    weights = stored["counts"] / stored["counts"].sum()

    def observe(matrix: np.ndarray, r: int, k: int) -> ObservedScores:
        pairs: Pairs = uniform(matrix.shape, max(1, matrix.size // r), 2 * seed + k)
        return ObservedScores(pairs, matrix[pairs.rows, pairs.columns])

    completion = completer.complete(
        observe(target, rate, 0), None, None if guide_rate is None else observe(guide, guide_rate, 1)
    )
    full = target @ weights
    chosen = int(completion.expected(weights).argmax())
    return float(1e4 * np.mean((completion.matrix - target) ** 2)), float(100 * (full.max() - full[chosen]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="N = M of the comparison (default 1024)")
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--matrices", type=Path, default=DEFAULT_MATRICES, help="folder of .npz score matrices")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--one-size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if options.one_size:
        one_size(options.one_size)
        return
    compare_with_direct(options.size)
    growth(options.sizes)
    real_matrices(options.matrices, options.seeds)


if __name__ == "__main__":
    main()
