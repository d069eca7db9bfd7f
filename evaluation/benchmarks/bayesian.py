"""Bayesian optimisation over candidates with a proxy, written small as a baseline: https://arxiv.org/abs/2411.09694.

A Gaussian process over the candidates, whose kernel compares what the proxy (the guide) says of them, chooses whom the
target scores next by expected improvement.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from evaluation.benchmarks.measures import Floats

_COLUMNS = 32


def choose(target: Floats, proxy: Floats, weights: Floats, calls: int, seed: int) -> tuple[int, int, int]:
    """(chosen row, target calls, guide calls): rows scored in turn against the same `_COLUMNS` drawn columns each."""
    random = np.random.default_rng(seed)
    n, m = target.shape
    columns = random.choice(m, min(_COLUMNS, m), replace=False, p=weights)
    profile = proxy[:, columns]
    prior = profile.mean(axis=1)
    distance = np.square(profile[:, None] - profile[None]).sum(axis=2)
    kernel = np.exp(-0.5 * distance / max(float(np.median(distance)), 1e-12))
    first = np.argsort(-prior)[: max(1, calls // columns.size // 4)]
    seen = list(first)
    while True:
        values = target[np.ix_(seen, columns)].mean(axis=1)
        slope, start = np.polyfit(prior[seen], values, 1) if len(seen) > 2 else (0.0, float(values.mean()))
        left = values - slope * prior[seen] - start
        size = max(float(left.var()), 1e-8)
        inside = np.linalg.inv(kernel[np.ix_(seen, seen)] + 0.05 * np.eye(len(seen)))
        across = kernel[:, seen]
        mean = slope * prior + start + across @ inside @ left
        deviation = np.sqrt(np.maximum(size * (1 - np.einsum("ij,jk,ik->i", across, inside, across)), 1e-12))
        mean[seen] = values
        if (len(seen) + 1) * columns.size > calls or len(seen) == n:
            return int(seen[int(np.argmax(values))]), len(seen) * columns.size, n * columns.size
        gap = (mean - values.max()) / deviation
        improvement = deviation * (gap * ndtr(gap) + np.exp(-0.5 * gap**2) / np.sqrt(2 * np.pi))
        improvement[seen] = -1
        seen.append(int(np.argmax(improvement)))
