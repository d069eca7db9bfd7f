"""One ready case of every utility class, on tiny checkpoints: for the contracts and for signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hf_acpmbr.scoring import MatrixUtility, Utility, as_utility, load_utility

from .checkpoints import SENTENCES, write_bleurt, write_comet, write_encoder, write_metricx

TEXTS = ["", *SENTENCES[:7]]
SOURCES = SENTENCES[8:]

MODULE = """
import datasets
import evaluate


class Lengths(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")})
        return evaluate.MetricInfo(description="lengths", citation="none", inputs_description="", features=features)

    def _compute(self, predictions, references, power=1):
        values = [abs(len(p) - len(r)) ** power for p, r in zip(predictions, references)]
        return {"total": sum(values), "lengths": values, "halves": [value / 2 for value in values]}
"""


def length_difference(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    return [float(abs(len(h) - len(r))) for h, r in zip(hypotheses, references, strict=True)]


def shared_words(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] = ()) -> list[float]:
    return [float(len({*h.split()} & {*r.split()})) for h, r in zip(hypotheses, references, strict=True)]


def write_script(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"{folder.name}.py"
    script.write_text(MODULE)
    return script


@dataclass
class Case:
    """How to make one utility.

    make: from a folder for its files and further options.
    changes: for each option that can change a score, values other than the default.
    tolerance: how far scores may differ between batches.
    needs: a library that scoring needs and that need not be installed.
    """

    make: Callable[..., Utility]
    changes: dict[str, list[Any]] = field(default_factory=dict)
    tolerance: float = 0.0
    needs: str = "hf_acpmbr"


def network(write: Callable[..., Path], load: Callable[..., Utility], **fixed: Any) -> Callable[..., Utility]:
    """A utility over a checkpoint that is written to the folder once."""

    def make(folder: Path, **options: Any) -> Utility:
        path = folder / "checkpoint"
        if not path.exists():
            write(path)
        return load(str(path), **{**fixed, **options})

    return make


def by_checkpoint(name: str) -> Callable[..., Utility]:
    def load(path: str, **options: Any) -> Utility:
        return load_utility(name, **{"checkpoint": path, **options})

    return load


def by_path(path: str, **options: Any) -> Utility:
    return load_utility(path, **options)


def matrix(folder: Path, **options: Any) -> Utility:
    values = np.random.default_rng(0).normal(size=(len(TEXTS), len(TEXTS)))
    return MatrixUtility(**{"matrix": values, "hypotheses": TEXTS, "references": TEXTS, **options})


def function(folder: Path, **options: Any) -> Utility:
    given = {"function": length_difference, "name": "length_difference", "version": "0", **options}
    return as_utility(given.pop("function"), **given)


def module(folder: Path, **options: Any) -> Utility:
    script = folder / "lengths" / "lengths.py"
    if not script.exists():
        write_script(script.parent)
    from hf_acpmbr.scoring.adapters import EvaluateUtility

    if "module" in options:
        return EvaluateUtility(**{"output_key": "lengths", **options})
    return load_utility(str(script), **{"output_key": "lengths", "trust_remote_code": True, **options})


NETWORK = {"dtype": ["bfloat16"], "name": ["other name"]}
FUNCTION = {
    "function": [shared_words],
    "name": ["another", "a b"],
    "version": ["1", "2"],
    "higher_is_better": [False],
    "scale": [1.0, 100.0],
    "symmetric": [True],
    "needs_source": [True],
}
CASES: dict[str, Case] = {
    "chrf": Case(
        lambda folder, **options: load_utility("chrf", **options),
        {
            "char_order": [4],
            "word_order": [1, 2],
            "beta": [1, 3],
            "lowercase": [True],
            "whitespace": [True],
            "eps_smoothing": [True],
        },
    ),
    "chrf-f1": Case(lambda folder, **options: load_utility("chrf++", beta=1, **options)),
    "bleu": Case(
        lambda folder, **options: load_utility("bleu", **options),
        {
            "tokenize": ["char", "intl"],
            "lowercase": [True],
            "max_ngram_order": [2],
            "smooth_method": ["floor", "add-k", "none"],
            "smooth_value": [],  # not without a method: tests/scoring/test_signatures.py
        },
    ),
    "ter": Case(
        lambda folder, **options: load_utility("ter", **options),
        {key: [True] for key in ("normalized", "no_punct", "asian_support", "case_sensitive")},
    ),
    "embedded": Case(lambda folder, **options: load_utility("embedded", **options), tolerance=1e-5),
    "bleurt": Case(network(write_bleurt, by_path), {**NETWORK, "max_length": [20]}, tolerance=1e-5),
    "comet": Case(
        network(lambda path: write_comet(path, 6, class_identifier="regression_metric"), by_checkpoint("comet")),
        {**NETWORK, "reference_free": [True]},
        tolerance=1e-5,
    ),
    "comet-qe": Case(
        network(lambda path: write_comet(path, 4, class_identifier="referenceless_regression_metric"), by_path),
        tolerance=1e-5,
    ),
    "unite": Case(
        network(
            lambda path: write_comet(path, 1, class_identifier="unified_metric", input_segments=["mt", "src", "ref"]),
            by_path,
        ),
        {**NETWORK, "reference_free": [True]},
        tolerance=1e-5,
    ),
    "mt-ref": Case(
        network(
            lambda path: write_comet(path, 1, class_identifier="unified_metric", input_segments=["mt", "ref"]), by_path
        ),
        tolerance=1e-5,
    ),
    "xcomet": Case(
        network(lambda path: write_comet(path, 1, tags=4, class_identifier="xcomet_metric", word_layer=1), by_path),
        tolerance=1e-5,
    ),
    "metricx": Case(
        network(write_metricx, by_path, score_token=7),
        {**NETWORK, "version": [23], "reference_free": [True], "score_token": [8]},
        tolerance=1e-4,
    ),
    "bertscore": Case(
        network(write_encoder, by_checkpoint("bertscore")),
        {**NETWORK, "layer": [1, 2], "output": ["recall"], "idf": [True], "baseline": [0.0, 0.3]},
        tolerance=1e-5,
    ),
    "embedding": Case(
        network(write_encoder, by_checkpoint("embedding-cosine")),
        {**NETWORK, "pooling": ["cls", "max"], "prefix": ["", "query: ", "query:"], "max_length": [10]},
        tolerance=1e-5,
        needs="sentence_transformers",
    ),
    "function": Case(function, FUNCTION),
    "evaluate": Case(
        module,
        {
            "output_key": ["halves"],
            "higher_is_better": [False],
            "scale": [1.0, 5.0],
            "symmetric": [True],
            "compute_options": [{"power": 2}, {"power": 3}],
        },
    ),
    "matrix": Case(
        matrix,
        {
            "matrix": [np.zeros((len(TEXTS), len(TEXTS)))],
            "hypotheses": [[f"h{text}" for text in TEXTS]],
            "references": [[f"r{text}" for text in TEXTS]],
            "name": ["stored"],
            "higher_is_better": [False],
            "symmetric": [True],
            "scale": [100.0],
        },
    ),
}
