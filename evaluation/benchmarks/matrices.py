"""Full matrices of a target and its guides: real ones from the data folder, or made-up ones asked for by name.

`python -m evaluation.benchmarks.matrices FOLDER` makes some for `selection`: samples of the embedded translator under
the embedded utility and its distilled versions. It takes some seconds per source; a second call makes what is missing.
"""

from __future__ import annotations

import argparse
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from evaluation.assets import BUILTIN, BUILTIN_SENTENCES, DATA_OR_BUILTIN_HELP, find, read_lines
from evaluation.benchmarks.measures import Floats, full_matrix, regret, squared_error
from hf_acpmbr import ACPMBR, Candidates, load_utility
from hf_acpmbr.completion.observation import Uniform
from hf_acpmbr.files import write_atomically
from hf_acpmbr.generation.models import load_model
from hf_acpmbr.matrix import ObservedScores

# Shares of quality, difficulty, clusters and noise in the made-up matrices.
SHARES = ((8, 4, 5, 3), (3, 6, 8, 4), (5, 5, 2, 7))


@dataclass(frozen=True)
class MatrixCase:
    """A full target matrix with its guides ("good", maybe "weak"), and each candidate's count and log-probability."""

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
        """Return (n,) the target's expected utilities."""
        return np.asarray(self.target @ self.candidates.weights)

    def guide(self, kind: str, seed: int) -> Floats:
        """Return a guide; a random one has the good one's structure, with other candidates' rows and columns."""
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
    """Load the matrices of a data folder (default: ACPMBR_DATA), or make some up ("builtin")."""
    return made_up() if data == BUILTIN else stored(find("matrices", "", data))


def stored(folder: Path) -> list[MatrixCase]:
    """Read .npz files with `target`, `distilled`, `counts` and maybe `weak` and `logprobs`."""
    cases = []
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as data:
            arrays = {name: data[name].astype(float) for name in data.files if data[name].dtype.kind in "fi"}
        guides = {kind: arrays[name] for kind, name in (("good", "distilled"), ("weak", "weak")) if name in arrays}
        counts = arrays["counts"].astype(np.int64)
        name = f"{folder.name}/{file.stem}"
        cases.append(MatrixCase(name, arrays["target"], guides, counts, arrays.get("logprobs")))
    return cases


def made_up(size: int = 160) -> list[MatrixCase]:
    """Make matrices with quality, difficulty, clusters and noise in different shares."""
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
    """Observe one in `rate` of the entries, uniformly."""
    pairs = Uniform().mask((matrix.shape[0], matrix.shape[1]), max(1, int(matrix.size / rate)), seed)
    return ObservedScores(pairs, matrix[pairs.rows, pairs.columns])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--sentences", type=int, default=36, help="in each direction")
    parser.add_argument("--num-candidates", type=int, default=128)
    options = parser.parse_args(arguments)
    file = BUILTIN_SENTENCES if options.data == BUILTIN else find("tatoeba", "test.en-de.jsonl.gz", options.data)
    rows = list(read_lines(file))
    options.folder.mkdir(parents=True, exist_ok=True)
    utilities = [load_utility(name) for name in ("embedded", "embedded-d1", "embedded-d2")]
    for seed, (source, target) in enumerate((("en", "de"), ("de", "en"))):
        model, tokenizer, language = load_model("embedded", source_language=source, target_language=target)
        draw = ACPMBR(tokenizer, decoder="map", num_candidates=options.num_candidates)
        texts = [row[source] for row in rows if 25 <= len(row[source]) <= 70]
        order = np.random.default_rng(seed).permutation(len(texts))[: options.sentences]
        for place, k in enumerate(tqdm(order.tolist(), f"{source}-{target}")):
            path = options.folder / f"{source}-{target}-{place:02d}.npz"
            if path.exists():
                continue
            inputs = tokenizer(texts[k], return_tensors="pt")
            output = model.generate(
                **inputs, **language, custom_generate=draw, return_dict_in_generate=True, max_new_tokens=64
            )
            pool = output.candidates[0]
            scores = [full_matrix(utility, pool.texts, source=texts[k]) for utility in utilities]
            arrays = dict(zip(("target", "distilled", "weak"), scores, strict=True), counts=pool.counts)
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays, logprobs=pool.logprobs)
            write_atomically(path, buffer.getvalue())


if __name__ == "__main__":
    main()
