"""AC-ALS as METHOD states it, in plain loops and float64: slow, and written without looking at the fast one."""

from __future__ import annotations

import numpy as np


def sweep(matrices, masks, rows, columns, lam, gammas):
    """One sweep; index 0 is the target, 1.. the guides. Returns new (rows, columns)."""
    rows = _half(matrices, masks, rows, columns, lam, gammas)
    columns = _half([o.T for o in matrices], [w.T for w in masks], columns, rows, lam, gammas)
    return rows, columns


def _half(matrices, masks, moving, fixed, lam, gammas):
    old = [f.copy() for f in moving]
    new = [f.copy() for f in moving]
    n, d = moving[0].shape
    for k in range(1, len(matrices)):
        for i in range(n):
            left, right = (lam + gammas[k - 1]) * np.eye(d), gammas[k - 1] * old[0][i]
            for j in range(fixed[0].shape[0]):
                if masks[k][i, j]:
                    left = left + np.outer(fixed[k][j], fixed[k][j])
                    right = right + matrices[k][i, j] * fixed[k][j]
            new[k][i] = np.linalg.solve(left, right)
    for i in range(n):
        left, right = (lam + sum(gammas)) * np.eye(d), np.zeros(d)
        for k, gamma in enumerate(gammas, start=1):
            right = right + gamma * new[k][i]
        for j in range(fixed[0].shape[0]):
            if masks[0][i, j]:
                left = left + np.outer(fixed[0][j], fixed[0][j])
                right = right + matrices[0][i, j] * fixed[0][j]
        new[0][i] = np.linalg.solve(left, right)
    return new


def objective(matrices, masks, rows, columns, lam, gammas):
    total = 0.0
    for o, w, u, v in zip(matrices, masks, rows, columns, strict=True):
        for i in range(o.shape[0]):
            for j in range(o.shape[1]):
                if w[i, j]:
                    total += (o[i, j] - u[i] @ v[j]) ** 2
        total += lam * ((u**2).sum() + (v**2).sum())
    for gamma, u, v in zip(gammas, rows[1:], columns[1:], strict=True):
        total += gamma * (((rows[0] - u) ** 2).sum() + ((columns[0] - v) ** 2).sum())
    return total
