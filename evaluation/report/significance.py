"""Paired bootstrap of a run's rows, as sacreBLEU's.

BLEU, chrF and TER are resampled on the corpus, other metrics as means of sentence scores, as sacreBLEU's own test does,
with its seed and 1,000 resamples: mean ± half of the 95% interval, and p against the baseline. AC-PMBR is compared with
PMBR of the same block, all else with full MBR (or MAP if nothing was scored in full), as in the paper's appendix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sacrebleu import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from evaluation.report.results import Results, RowResults

RESAMPLES = 1000
SEED = 12345  # sacreBLEU's own
LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """One row and metric."""

    score: float  # on all sentences
    mean: float  # of the resamples
    interval: float  # half of their 95% interval
    p_value: float | None  # against the baseline; None for the baseline itself
    better: bool  # whether the score is on the good side of the baseline's

    @property
    def significant(self) -> bool:
        """Better than the baseline with p < 0.05."""
        return self.better and self.p_value is not None and self.p_value < LEVEL


def corpus_metric(name: str) -> Metric:
    """Make sacrebleu's metric by the name used in the settings."""
    made: dict[str, Any] = {"bleu": BLEU, "chrf": CHRF, "chrf++": lambda: CHRF(word_order=2), "ter": TER}
    metric: Metric = made[name]()
    return metric


def resampled(
    values: Sequence[Any] | npt.NDArray[np.float64],
    metric: str = "",
    references: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
) -> npt.NDArray[np.float64]:
    """Return (1 + resamples,) scores: of all sentences, and of draws with replacement that all systems share.

    Args:
        values: a score of each sentence, to be averaged; or, with a metric, its texts.
        metric: of sacrebleu, on the corpus.
    """
    scorer: Any = corpus_metric(metric) if metric else None
    statistics = np.array(scorer._extract_corpus_statistics(values, [references]) if metric else values)
    draws = np.random.default_rng(SEED).choice(len(values), size=(resamples, len(values)), replace=True)
    if scorer is None:
        return np.array([statistics.mean(), *statistics[draws].mean(1)])
    sums = [statistics.sum(0), *(statistics[chosen].sum(0) for chosen in draws)]
    return np.array([scorer._compute_score_from_stats(list(each)).score for each in sums])


def compare(results: Results, resamples: int = RESAMPLES) -> dict[str, dict[str, Comparison]]:
    """Compare the table's rows: {row: {metric: Comparison}}."""
    compared: dict[str, dict[str, Comparison]] = {}
    for group in _groups(results):
        for metric in results.settings.metrics:
            column, factor = f"metric:{metric}", results.factor(metric)
            if column in group[0].columns:
                scores = [resampled(row.columns[column] * factor, resamples=resamples) for row in group]
            else:
                scores = [resampled(row.texts, metric, results.references, resamples) for row in group]
            tested = paired_bootstrap(scores, results.higher_is_better(metric))
            for row, comparison in zip(group, tested, strict=True):
                compared.setdefault(row.row.key, {})[metric] = comparison
    return compared


def _groups(results: Results) -> list[list[RowResults]]:
    """Group the rows to compare with each other, the baseline first."""
    blocks: dict[str, list[RowResults]] = {}
    for row in results.table:
        blocks.setdefault(row.row.budget, []).append(row)
    rest = blocks.pop("", [])
    rest.sort(key=lambda row: row.row.key != "mbr")
    return [rest, *blocks.values()] if rest else list(blocks.values())


def paired_bootstrap(systems: Sequence[npt.NDArray[np.float64]], higher_is_better: bool = True) -> list[Comparison]:
    """Compare systems, given by what `resampled` returns, with the first of them, as sacreBLEU does."""
    baseline, found = systems[0], list[Comparison]()
    cut = (len(baseline) - 1) // 40  # 2.5% at either end
    for scores in systems:
        ordered, p_value = np.sort(scores[1:]), None
        interval = float(ordered[len(ordered) - cut - 1] - ordered[cut]) / 2
        gain = float(scores[0] - baseline[0])
        if scores is not baseline:
            differences = np.abs(scores[1:] - baseline[1:])
            extreme = int((differences - differences.mean() > abs(gain)).sum())
            p_value = (extreme + 1) / len(scores)
        better = gain > 0 if higher_is_better else gain < 0
        found.append(Comparison(float(scores[0]), float(ordered.mean()), interval, p_value, better))
    return found
