"""Scores the embedded utilities: agreement with BLEURT-20 and human MQM, how often they prefer a translation to itself
with one planted error, and the agreement of the distilled ones with their target.

python -m evaluation.training.report_utility --output evaluation/training/results
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import kendalltau, pearsonr

from evaluation.assets import DATA_HELP
from evaluation.benchmarks.measures import full_matrix
from evaluation.training.planted_errors import Planter
from evaluation.training.rated_pairs import read_ratings
from evaluation.training.translation import sample_translations, tatoeba
from hf_acpmbr import load_utility
from hf_acpmbr.embedded import UTILITY_FOLDERS, load_translator

STRING_METRICS = ("chrf", "bleu")


def rating_rows(data: Path | None, names: list[str], limit: int) -> list[dict[str, object]]:
    """Measure Kendall's τ and Pearson's r of each utility with each kind of rating.

    "shortness" is what a utility that understands nothing reaches: ratings of paragraphs fall with their length. The
    last but one column is τ among the hypotheses of one reference, averaged.
    """
    rows: list[dict[str, object]] = []
    for column in ("bleurt20", "mqm"):
        pairs = read_ratings(data, column, "test")[:limit]
        hypotheses, references = [pair.hypothesis for pair in pairs], [pair.reference for pair in pairs]
        ratings = np.array([pair.score for pair in pairs])
        for name in ("shortness", *names):
            speed = None
            if name == "shortness":
                scores = -np.array([float(len(reference)) for reference in references])
            else:
                start = time.perf_counter()
                scores = load_utility(name).score(hypotheses, references)
                speed = len(pairs) / (time.perf_counter() - start)
            tau, r = float(kendalltau(scores, ratings)[0]), float(pearsonr(scores, ratings)[0])
            row = {"ratings": column, "utility": name, "pairs": len(pairs), "kendall": tau, "pearson": r}
            within = kendall_within(scores, ratings, references)
            rows.append({**row, "kendall of one reference": within, "pairs_per_second": speed})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def kendall_within(scores: np.ndarray, ratings: np.ndarray, references: list[str]) -> float | None:
    """Average over references τ among their hypotheses; None if all have equal scores."""
    numbers = np.unique(references, return_inverse=True)[1]
    groups = [numbers == k for k in np.flatnonzero(np.bincount(numbers) > 1)]
    found = np.array([kendalltau(scores[group], ratings[group])[0] for group in groups])
    return None if np.isnan(found).all() else float(np.nanmean(found))


def planted_rows(data: Path | None, names: list[str], sentences: int, samples: int) -> list[dict[str, object]]:
    """Count how often a human translation has a higher score than the same text with one planted error.

    The references are the text itself, or samples of the translator, as in MBR: then their mean scores are compared.
    """
    model, tokenizer = load_translator()
    torch.manual_seed(0)
    corpus, test = tatoeba("train", data), tatoeba("test", data)[:sentences]
    rows: list[dict[str, object]] = []
    for side, languages in ((1, ("en", "de")), (0, ("de", "en"))):
        rng, planter = random.Random(side), Planter([pair[side] for pair in corpus], languages[1])
        planted = [planter.plant(pair[side], rng) for pair in test]
        pools = sample_translations(model, tokenizer, [pair[1 - side] for pair in test], *languages, samples)
        cases = [(pair[side], error, pool) for pair, error, pool in zip(test, planted, pools, strict=True) if error]
        for name in names:
            utility = load_utility(name)
            sign = 1.0 if utility.higher_is_better else -1.0
            itself = [[text] for text, _, _ in cases]
            for label, references in (("the text itself", itself), ("samples", [pool for *_, pool in cases])):
                flat = [(i, text) for i, texts in enumerate(references) for text in texts]
                wanted = [text for _, text in flat]
                right = utility.score([cases[i][0] for i, _ in flat], wanted)
                wrong = utility.score([cases[i][1].text for i, _ in flat], wanted)
                lead = np.bincount([i for i, _ in flat], sign * (right - wrong), len(cases)) > 0
                kinds = np.array([error.kind for _, error, _ in cases])
                of_kind = {str(kind): float(lead[kinds == kind].mean()) for kind in np.unique(kinds)}
                row = {"language": languages[1], "reference": label, "utility": name, "pairs": len(cases)}
                rows.append({**row, "accuracy": float(lead.mean()), **of_kind})
                print(json.dumps(rows[-1]), flush=True)
    return rows


def matrix_rows(
    pairs: list[tuple[str, str]], names: list[str], sentences: int, samples: int
) -> list[dict[str, object]]:
    """Correlate each utility with the target over the matrices of ε-samples, per sentence and then averaged."""
    model, tokenizer = load_translator()
    torch.manual_seed(0)
    target, guides = load_utility("embedded"), {name: load_utility(name) for name in names}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for side, languages in ((0, ("en", "de")), (1, ("de", "en"))):
        texts = [pair[side] for pair in pairs[side :: len(pairs) // (sentences // 2)]]
        for drawn in sample_translations(model, tokenizer, texts, *languages, samples):
            unique = sorted(set(drawn))
            if len(unique) < 5:
                continue
            truth, off = full_matrix(target, unique), ~np.eye(len(unique), dtype=bool)
            for name, guide in guides.items():
                scores = full_matrix(guide, unique)
                order = kendalltau(scores.mean(1), truth.mean(1))[0]
                found[name].append((float(pearsonr(scores[off], truth[off])[0]), float(order)))
    return [
        {
            "utility": name,
            "matrices": len(values),
            "pearson of entries": float(np.mean([entries for entries, _ in values])),
            "kendall of expected utilities": float(np.nanmean([choices for _, choices in values])),
        }
        for name, values in found.items()
    ]


def markdown(rows: list[dict[str, object]]) -> list[str]:
    """Write dictionaries as a table; what one of them lacks is left empty."""

    def cell(value: object) -> str:
        return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)

    head = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[cell(row.get(key)) for key in head] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *cells)]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--output", type=Path, default=Path("evaluation/training/results"))
    parser.add_argument("--limit", type=int, default=10_000, help="at most this many rated pairs of each kind")
    parser.add_argument("--planted", type=int, default=500, help="sentences of each language that get an error")
    parser.add_argument("--sentences", type=int, default=40, help="sentences whose matrices are compared")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    distilled = [name for name in UTILITY_FOLDERS if name != "embedded"]
    rated = rating_rows(args.data, [*STRING_METRICS, *UTILITY_FOLDERS], args.limit)
    compared = matrix_rows(tatoeba("test", args.data), [*distilled, *STRING_METRICS], args.sentences, args.samples)
    planted = planted_rows(args.data, [*STRING_METRICS[:1], *UTILITY_FOLDERS], args.planted, samples=8)
    lines = ["With the ratings of WMT'23:", "", *markdown(rated)]
    lines += ["", "A human translation before the same with one planted error, Tatoeba test:", "", *markdown(planted)]
    lines += ["", "With the target `embedded` over matrices of the translator's ε-samples:", "", *markdown(compared)]
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "utility.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = json.dumps({"ratings": rated, "planted": planted, "matrices": compared}, indent=2)
    (args.output / "utility.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
