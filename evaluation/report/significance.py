"""Paired bootstrap of a run's rows by sacreBLEU: `python -m evaluation.report.significance RUN`.

BLEU, chrF and TER are resampled on the corpus, other metrics as means of sentence scores, all by sacreBLEU's own test
with 1,000 resamples: mean ± half of the 95% interval, and p against the baseline. AC-PMBR is compared with PMBR of the
same block, everything else with full MBR (or MAP where nothing was scored in full), as in the paper's appendix.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric, Score, Signature
from sacrebleu.significance import PairedTest

from evaluation.command import Parser, run_command
from evaluation.report.results import Results, RowResults, open_results

RESAMPLES = 1000
LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """One row and metric.

    Args:
        score: on all sentences.
        mean, interval: of the resamples; half of the 95% interval.
        p_value: against the baseline; None for the baseline itself.
        better: whether the score is on the good side of the baseline's.
    """

    score: float
    mean: float
    interval: float
    p_value: float | None
    better: bool

    @property
    def significant(self) -> bool:
        """Better than the baseline with p < 0.05."""
        return self.better and self.p_value is not None and self.p_value < LEVEL


def corpus_metric(name: str) -> Metric:
    """Make sacrebleu's metric by the name used in the settings."""
    made: dict[str, Any] = {"bleu": BLEU, "chrf": CHRF, "chrf++": lambda: CHRF(word_order=2), "ter": TER}
    metric: Metric = made[name]()
    return metric


class SentenceMean(Metric):
    """A mean of sentence scores in sacrebleu's form; the "hypotheses" are the scores."""

    _SIGNATURE_TYPE = Signature

    def __init__(self, name: str) -> None:
        base: Any = super()
        base.__init__()
        self.label = name
        self.num_refs = 1

    def _extract_corpus_statistics(self, hypotheses: Sequence[str | float], references: object) -> list[list[float]]:
        return [[float(score), 1.0] for score in hypotheses]

    def _compute_score_from_stats(self, stats: list[float]) -> Score:
        return Score(self.label, float(stats[0] / stats[1]))

    def _aggregate_and_compute(self, stats: list[list[float]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _check_corpus_score_args(self, *arguments: object) -> None:
        raise NotImplementedError("only for paired tests")

    _unused: Any = _check_corpus_score_args
    _check_sentence_score_args = _preprocess_segment = _extract_reference_info = _compute_segment_statistics = _unused


def compare(results: Results, resamples: int = RESAMPLES) -> dict[str, dict[str, Comparison]]:
    """Compare the table's rows: {row: {metric: Comparison}}."""
    compared: dict[str, dict[str, Comparison]] = {}
    for group in _groups(results):
        for metric in results.settings.metrics:
            for row, comparison in zip(group, _test(results, group, metric, resamples), strict=True):
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


def _test(results: Results, group: list[RowResults], metric: str, resamples: int) -> list[Comparison]:
    column, higher = f"metric:{metric}", results.higher_is_better(metric)
    if column in group[0].columns:
        scores: list[Any] = [(row.row.key, (row.columns[column] * results.factor(metric)).tolist()) for row in group]
        return paired_bootstrap(scores, SentenceMean(metric), None, higher, resamples)
    texts = [(row.row.key, row.texts) for row in group]
    return paired_bootstrap(texts, corpus_metric(metric), results.references, higher, resamples)


def paired_bootstrap(
    systems: Sequence[tuple[str, Sequence[str]]],
    metric: Metric,
    references: Sequence[str] | None,
    higher_is_better: bool = True,
    resamples: int = RESAMPLES,
) -> list[Comparison]:
    """Run sacreBLEU's paired bootstrap of (name, texts), the first of which is the baseline."""
    given: Any = None if references is None else [references]
    _, scores = PairedTest(list(systems), {"metric": metric}, given, "bs", resamples)()
    found: list[Any] = next(values for name, values in scores.items() if name != "System")
    sign = 1.0 if higher_is_better else -1.0
    return [
        Comparison(r.score, float(r.mean), float(r.ci), r.p_value, sign * (r.score - found[0].score) > 0) for r in found
    ]


def main() -> None:
    from evaluation.report.table import significance_table

    def show(options: argparse.Namespace) -> None:
        for results in open_results(options.run):
            table = significance_table(results, compare(results, options.resamples))
            print(table.render(options.format), end="\n\n")

    parser = Parser(prog="evaluation.report.significance", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--format", choices=("text", "markdown", "latex", "csv"), default="text")
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    run_command(parser, show)


if __name__ == "__main__":
    main()
