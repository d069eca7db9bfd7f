"""Which rule chooses the best translations: `python -m evaluation.benchmarks.which_rule --output FOLDER`.

Sentences of Tatoeba, both directions, by the embedded translator: greedy and beam search, the most probable sample, and
MBR with each utility, with and without a weight on the log-probability (`logprob_weight`) and beam search's translation
among the candidates (`add_beam`). All choose among the same ε-samples. Judged by metrics against the real references:
BLEU, chrF and TER on the corpus, `embedded` × 100 as a mean, and the length in characters. Differences from beam search
have 95% intervals of a paired bootstrap over sentences; "both" is the mean of the two directions.

`--part dev` is for choosing the settings, `--part test` for one last look. Weights are for a utility of 0 to 100.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from evaluation.assets import DATA_HELP
from evaluation.command import Parser, run_command
from evaluation.report.significance import RESAMPLES, resampled
from evaluation.training.translation import Model, Tokenizer, load, tatoeba, translate
from hf_acpmbr import ACPMBR, Candidates, load_utility
from hf_acpmbr.embedded import TRANSLATOR
from hf_acpmbr.files import write_atomically

BATCH = 8
BEAMS = 5
BEAM = f"beam {BEAMS}"
METRICS = {"BLEU": "bleu", "chrF": "chrf", "TER": "ter", "embedded": "", "characters": ""}
Outputs: TypeAlias = dict[str, list[str]]  # the translations of each row
Scores: TypeAlias = dict[str, npt.NDArray[np.float64]]  # of each row, by the whole corpus and by each resample of it


def draw(
    model: Model, tokenizer: Tokenizer, sources: list[str], languages: tuple[str, str], sampler: ACPMBR
) -> list[Candidates]:
    """Draw the sampler's candidates of each source, those of similar length together."""
    tokenizer.src_lang = languages[0]
    pools: dict[int, Candidates] = {}
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(order), BATCH):
        chosen = order[first : first + BATCH]
        inputs = tokenizer([sources[i] for i in chosen], return_tensors="pt", padding=True)
        output = model.generate(
            **inputs,
            forced_bos_token_id=tokenizer.get_lang_id(languages[1]),
            max_new_tokens=2 * inputs["input_ids"].shape[1] + 10,
            custom_generate=sampler,
            return_dict_in_generate=True,
        )
        pools.update(zip(chosen, output.candidates, strict=True))
    return [pools[i] for i in range(len(sources))]


def translations(
    model: Model, tokenizer: Tokenizer, sources: list[str], languages: tuple[str, str], args: argparse.Namespace
) -> Outputs:
    """Translate in every way."""
    found: Outputs = {
        "greedy": translate(model, tokenizer, sources, *languages),
        BEAM: translate(model, tokenizer, sources, *languages, beams=BEAMS),
    }
    drawing: dict[str, Any] = {"num_candidates": args.samples, "epsilon": args.epsilon, "temperature": args.temperature}
    for beams, added in ((0, ""), (BEAMS, f", {BEAM} added")):
        sampler = ACPMBR(tokenizer, decoder="map", add_beam=beams, **drawing)
        pools = draw(model, tokenizer, sources, languages, sampler)
        if not beams:
            found[f"most probable of {args.samples}"] = [sampler.rerank(pool).text for pool in pools]
        for name in args.utilities:
            utility = load_utility(name)
            # Where each text is encoded once, all pairs cost little more than a few.
            full = {"decoder": "mbr"} if utility.encodes_texts else {"recipe": "fast"}
            for weight in args.weights:
                rule: Any = {**full, **({"logprob_weight": weight * utility.scale / 100} if weight else {})}
                decisions = ACPMBR(target=utility, **rule).rerank_many(pools, sources)
                label = f"{name} + {weight:g} × log-probability" if weight else name
                found[f"MBR, {label}{added}"] = [decision.text for decision in decisions]
    return found


def judged(outputs: Outputs, references: list[str], resamples: int) -> dict[str, Scores]:
    """Score every row by every metric, on the corpus and on the same resamples of its sentences."""
    utility, found = load_utility("embedded"), dict[str, Scores]()
    for label, name in METRICS.items():
        found[label] = {}
        for row, texts in outputs.items():
            values: Any = texts
            if label == "characters":
                values = [len(text) for text in texts]
            elif not name:
                values = 100 * utility.score(texts, references)
            found[label][row] = resampled(values, name, references, resamples)
    return found


def compared(scores: dict[str, Scores]) -> dict[str, dict[str, list[float]]]:
    """Return of each row and metric the score, and its difference from beam search with a 95% interval."""
    found: dict[str, dict[str, list[float]]] = {}
    for label, rows in scores.items():
        for row, values in rows.items():
            change = values - rows[BEAM]
            low, high = np.quantile(change[1:], (0.025, 0.975))
            found.setdefault(row, {})[label] = [round(float(x), 2) for x in (values[0], change[0], low, high)]
    return found


def table(title: str, rows: dict[str, dict[str, list[float]]]) -> list[str]:
    """Write scores and differences from beam search; * marks those whose interval leaves out 0."""
    lines = [f"| {title} | {' | '.join(METRICS)} |", "|---" * (1 + len(METRICS)) + "|"]
    for row, metrics in rows.items():
        cells = []
        for value, change, low, high in metrics.values():
            mark = "*" if low > 0 or high < 0 else ""
            cells.append(f"{value:.1f}" + (f" ({change:+.1f}{mark}; {low:+.1f} to {high:+.1f})" if row != BEAM else ""))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return [*lines, ""]


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, tokenizer = load(args.model)
    pairs = tatoeba(args.part, args.data)[: args.sentences]
    drawn = f"{args.samples} samples (ε = {args.epsilon:g}, temperature {args.temperature:g})"
    lines = [f"Tatoeba {args.part}, {len(pairs)} sentences in each direction, {drawn}.", ""]
    parts, texts, numbers = [], dict[str, Any](), dict[str, Any]()
    for side, languages in ((0, ("en", "de")), (1, ("de", "en"))):
        sources, references = [pair[side] for pair in pairs], [pair[1 - side] for pair in pairs]
        outputs = translations(model, tokenizer, sources, languages, args)
        parts.append(judged(outputs, references, args.resamples))
        direction = "→".join(languages)
        texts[direction] = {"sources": sources, "references": references, **outputs}
        numbers[direction] = compared(parts[-1])
    one, other = parts
    means = {metric: {row: (one[metric][row] + other[metric][row]) / 2 for row in one[metric]} for metric in METRICS}
    numbers["both"] = compared(means)
    for title, rows in numbers.items():
        lines += table(title, rows)
    print("\n".join(lines))
    if args.output:
        write_atomically(args.output / f"{args.part}.md", "\n".join(lines))
        for name, record in ((args.part, numbers), (f"{args.part}_texts", texts)):
            write_atomically(args.output / f"{name}.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main(given: Sequence[str] | None = None) -> None:
    parser = Parser(prog="evaluation.benchmarks.which_rule", description=__doc__)
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--model", type=Path, default=TRANSLATOR)
    parser.add_argument("--output", type=Path, help="folder for the table, its numbers and the texts")
    parser.add_argument("--part", choices=("dev", "test"), default="test", help="of Tatoeba")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--epsilon", type=float, default=0.02)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--utilities", nargs="+", default=["chrf"], help="such as chrf and embedded")
    parser.add_argument("--weights", type=float, nargs="+", default=[0, 1.5], help="of the log-probability (nats)")
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    parser.add_argument("--threads", type=int, default=1)
    run_command(parser, run, given)


if __name__ == "__main__":
    main()
