"""Full matrices of a target and its guides: real ones from the data folder, or made-up ones asked for by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evaluation.assets import BUILTIN, find
from evaluation.benchmarks.measures import Floats, regret, squared_error
from hf_acpmbr import Candidates
from hf_acpmbr.completion.observation import Uniform
from hf_acpmbr.matrix import ObservedScores

# Shares of quality, difficulty, clusters and noise in the made-up matrices.
SHARES = ((8, 4, 5, 3), (3, 6, 8, 4), (5, 5, 2, 7))


@dataclass(frozen=True)
class MatrixCase:
    """A full target matrix with its guides ("good", maybe "weak"), how often every candidate was drawn, and its
    log-probability where known."""

    name: str
    target: Floats
    guides: dict[str, Floats]
    counts: npt.NDArray[np.int64]
    logprobs: Floats | None = None

    @property
    def candidates(self) -> Candidates:
        return Candidates(tuple(map(str, range(len(self.target)))), self.counts, logprobs=self.logprobs)

    @property
    def expected(self) -> Floats:
        """(n,) the target's expected utilities."""
        return np.asarray(self.target @ self.candidates.weights)

    def guide(self, kind: str, seed: int) -> Floats:
        """A random guide has the good one's structure, but its rows and columns belong to other candidates."""
        if kind != "random":
            return self.guides[kind]
        random = np.random.default_rng((seed, 1))
        n, m = self.target.shape
        return np.asarray(self.guides["good"][random.permutation(n)][:, random.permutation(m)])

    def regret(self, chosen: int) -> float:
        return regret(self.expected, chosen)

    def error(self, matrix: npt.NDArray[np.floating]) -> float:
        return squared_error(matrix, self.target)


def load_cases(data: str | None = None) -> list[MatrixCase]:
    """The matrices of a data folder (default: ACPMBR_DATA), or with "builtin" made-up ones."""
    return made_up() if data == BUILTIN else stored(find("matrices", "", data))


def stored(folder: Path) -> list[MatrixCase]:
    """Real matrices: .npz files with `target`, `distilled`, `counts` and maybe `weak` and `logprobs`."""
    cases = []
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as data:
            arrays = {name: data[name] for name in data.files if data[name].dtype.kind in "fi"}
        guides = {
            kind: arrays[name].astype(float)
            for kind, name in (("good", "distilled"), ("weak", "weak"))
            if name in arrays
        }
        logprobs = arrays["logprobs"].astype(float) if "logprobs" in arrays else None
        target, counts = arrays["target"].astype(float), arrays["counts"].astype(np.int64)
        cases.append(MatrixCase(f"{folder.name}/{file.stem}", target, guides, counts, logprobs))
    return cases


def made_up(size: int = 160) -> list[MatrixCase]:
    """Matrices with quality, difficulty, clusters and noise in different shares."""
    cases = []
    for k, shares in enumerate(SHARES):
        random = np.random.default_rng(k)
        parts = [random.normal(size=shape) for shape in (size, size, (size, 6), (size, 6))]
        guides = {
            kind: _build(_blurred(a, parts, random), shares, random) for kind, a in (("good", 0.95), ("weak", 0.6))
        }
        counts = random.zipf(2.0, size).clip(max=100)
        cases.append(MatrixCase(f"builtin-{k}", _build(parts, shares, random), guides, counts))
    return cases


def _build(parts: list[Floats], shares: tuple[int, ...], random: np.random.Generator) -> Floats:
    rows, columns, u, v = parts
    low_rank = shares[2] * (u @ v.T) / np.sqrt(6)
    every = shares[0] * rows[:, None] + shares[1] * columns + low_rank
    return np.asarray(0.6 + 0.01 * (every + shares[3] * random.normal(size=every.shape)))


def _blurred(amount: float, parts: list[Floats], random: np.random.Generator) -> list[Floats]:
    return [np.asarray(amount * part + np.sqrt(1 - amount**2) * random.normal(size=part.shape)) for part in parts]


def masked(matrix: Floats, rate: float, seed: int) -> ObservedScores:
    """A uniform mask with one in `rate` of the entries."""
    pairs = Uniform().mask((matrix.shape[0], matrix.shape[1]), max(1, int(matrix.size / rate)), seed)
    return ObservedScores(pairs, matrix[pairs.rows, pairs.columns])
