"""What benchmarks and runs measure, once for all: full matrices, regret, the error of a matrix, CPU time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from hf_acpmbr.matrix import Pairs
from hf_acpmbr.scoring import Utility

Floats = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.floating]
T = TypeVar("T")
TRIALS = 5  # of a matrix product, of which the fastest counts


def full_matrix(
    utility: Utility, hypotheses: Sequence[str], references: Sequence[str] | None = None, source: str | None = None
) -> Floats:
    """Score all hypotheses against all references (default: against each other); (n, m)."""
    columns = hypotheses if references is None else references
    pairs = Pairs.full((len(hypotheses), len(columns)))
    return utility.prepare(hypotheses, columns, source)(pairs.rows, pairs.columns).reshape(len(hypotheses), -1)


def regret(expected: Floats, chosen: int, *, higher_is_better: bool = True, scale: float = 1.0) -> float:
    """Return the expected target utility × 100 that a choice loses against full MBR's; `expected` is (n,)."""
    lost = expected.max() - expected[chosen] if higher_is_better else expected[chosen] - expected.min()
    return float(100.0 * lost / scale)


def squared_error(
    matrix: Matrix, truth: Matrix, weights: Floats | None = None, *, scale: float = 1.0, truth_scale: float = 1.0
) -> float:
    """Return the mean squared error on a 0–100 scale.

    Each matrix is divided by the scale that its own utility declares, so that a guide of 0–100 and a target of 0–1 are
    compared on one scale. Nothing is fitted: a guide that is always 5 points too high has an error, as in the paper.

    Args:
        weights: (n,) how much each row and column counts; default: the same.
    """
    squared = np.square(100.0 * (matrix / scale - truth / truth_scale))
    return float(squared.mean() if weights is None else weights @ squared @ weights)


def cpu_seconds(work: Callable[[], T]) -> tuple[float, T]:
    """Run `work`; (CPU seconds of this process, result)."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def mean_and_error(runs: Sequence[float] | Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    """Return the mean over runs and its standard error, column by column (NaN if there is one run)."""
    values = np.asarray(runs, dtype=np.float64)
    n = len(values)
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(n) if n > 1 else np.full(values.shape[1:], np.nan)


@dataclass(frozen=True)
class Shares:
    """CPU seconds of some work; the shares of its forward passes, and of their matrix products at full speed."""

    seconds: float
    forward: float
    products: float


def shares(model: Any, work: Callable[[], object]) -> Shares:
    """Run `work` and see what the model took of its time.

    Full speed is that of the largest matrix product of the work by itself, by the same kernels, measured afterwards.
    """
    operations: Counter[tuple[int, Any]] = Counter()  # by rows and layer
    clock = [0.0]

    def note(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        operations[output.numel() // layer.out_features, layer] += 2 * output.numel() * layer.in_features

    def before(*_: object) -> None:
        clock[0] -= time.process_time()

    def after(*_: object) -> None:
        clock[0] += time.process_time()

    hooks = [layer.register_forward_hook(note) for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    hooks += [model.register_forward_pre_hook(before), model.register_forward_hook(after)]
    try:
        seconds, _ = cpu_seconds(work)
    finally:
        for hook in hooks:
            hook.remove()
    rows, largest = max(operations, key=lambda key: operations[key])
    given = torch.randn(rows, largest.in_features)
    with torch.no_grad():
        fastest = min(cpu_seconds(lambda: largest(given))[0] for _ in range(TRIALS))
    products = sum(operations.values()) / (2 * given.numel() * largest.out_features) * fastest
    return Shares(seconds, clock[0] / seconds, products / seconds)
