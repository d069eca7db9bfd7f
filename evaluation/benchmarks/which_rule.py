"""Which rule chooses the best translations: `python -m evaluation.benchmarks.which_rule --output FOLDER`.

Sentences of Tatoeba's test set, both directions, by the embedded translator: greedy and beam search, the most probable
sample, MBR with each utility, and expected chrF plus a weight times the log-probability, with beam search's translation
added to the samples. All choose among the same ε-samples. Judged by metrics against the real references: BLEU, chrF and
TER on the corpus, `embedded` × 100 as a mean. Differences from beam search have 95% intervals of a paired bootstrap
over sentences; "both" is the mean of the two directions. The texts are written too.
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
from evaluation.training.translation import Model, Tokenizer, encode, load, mean_log_likelihoods, tatoeba, translate
from hf_acpmbr import ACPMBR, Candidates, load_utility
from hf_acpmbr.embedded import TRANSLATOR
from hf_acpmbr.files import write_atomically

BATCH = 8
BEAM = "beam 5"
METRICS = {"BLEU": "bleu", "chrF": "chrf", "TER": "ter", "embedded": ""}
Outputs: TypeAlias = dict[str, list[str]]  # the translations of each row
Scores: TypeAlias = dict[str, npt.NDArray[np.float64]]  # of each row, by the whole corpus and by each resample of it


def draw(
    model: Model, tokenizer: Tokenizer, sources: list[str], languages: tuple[str, str], samples: int
) -> list[Candidates]:
    """Draw ε-samples of each source, those of similar length together."""
    sampler = ACPMBR(tokenizer, decoder="map", num_candidates=samples)
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


def with_text(pool: Candidates, text: str, logprob: float) -> Candidates:
    """Add a text as if it had been drawn once more."""
    counts, logprobs = pool.counts.tolist(), np.asarray(pool.logprobs).tolist()
    if text in pool.texts:
        counts[pool.texts.index(text)] += 1
        return Candidates(pool.texts, np.array(counts), logprobs=np.array(logprobs))
    return Candidates((*pool.texts, text), np.array([*counts, 1]), logprobs=np.array([*logprobs, logprob]))


def translations(
    model: Model, tokenizer: Tokenizer, sources: list[str], languages: tuple[str, str], args: argparse.Namespace
) -> Outputs:
    """Translate in every way."""
    found: Outputs = {
        "greedy": translate(model, tokenizer, sources, *languages),
        BEAM: translate(model, tokenizer, sources, *languages, beams=5),
    }
    pools = draw(model, tokenizer, sources, languages, args.samples)
    found[f"most probable of {args.samples}"] = [ACPMBR(decoder="map").rerank(pool).text for pool in pools]
    for name in args.utilities:
        mbr = ACPMBR(target=name, decoder="mbr" if name == "chrf" else None)
        found[f"MBR, {name}"] = [mbr.rerank(pool, source).text for pool, source in zip(pools, sources, strict=True)]
    means = mean_log_likelihoods(model, tokenizer, sources, found[BEAM], *languages)
    sizes = [len(ids) - 1 for ids in encode(tokenizer, found[BEAM], languages[1])]  # the language token is given
    beams = zip(pools, found[BEAM], (means * sizes).tolist(), strict=True)
    chrf = ACPMBR(target="chrf", decoder="mbr")
    decisions = [chrf.rerank(with_text(*beam)) for beam in beams]
    for weight in args.weights:
        rule = f"chrF + {weight:g} × log-probability, {BEAM} added"
        judged = [d.expected + weight * np.asarray(d.candidates.logprobs) for d in decisions]
        found[rule] = [d.candidates.texts[int(j.argmax())] for d, j in zip(decisions, judged, strict=True)]
    return found


def judged(outputs: Outputs, references: list[str], resamples: int) -> dict[str, Scores]:
    """Score every row by every metric, on the corpus and on the same resamples of its sentences."""
    utility, found = load_utility("embedded"), dict[str, Scores]()
    for label, name in METRICS.items():
        found[label] = {}
        for row, texts in outputs.items():
            values = texts if name else 100 * utility.score(texts, references)
            found[label][row] = resampled(values, name, references, resamples)
    return found


def table(title: str, scores: dict[str, Scores]) -> list[str]:
    """Write scores, and differences from beam search with their intervals; * marks those without 0."""
    lines = [f"| {title} | {' | '.join(METRICS)} |", "|---" * (1 + len(METRICS)) + "|"]
    for row in scores["BLEU"]:
        cells = []
        for label in METRICS:
            values, beam = scores[label][row], scores[label][BEAM]
            low, high = np.quantile(values[1:] - beam[1:], (0.025, 0.975))
            mark = "*" if low > 0 or high < 0 else ""
            change = f" ({values[0] - beam[0]:+.1f}{mark}; {low:+.1f} to {high:+.1f})" if row != BEAM else ""
            cells.append(f"{values[0]:.1f}{change}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return [*lines, ""]


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, tokenizer = load(args.model)
    pairs = tatoeba("test", args.data)[: args.sentences]
    parts, record = [], dict[str, Any]()
    lines = [f"Tatoeba test, {len(pairs)} sentences in each direction, {args.samples} samples (ε = 0.02).", ""]
    for side, languages in ((0, ("en", "de")), (1, ("de", "en"))):
        sources, references = [pair[side] for pair in pairs], [pair[1 - side] for pair in pairs]
        outputs = translations(model, tokenizer, sources, languages, args)
        parts.append(judged(outputs, references, args.resamples))
        lines += table("→".join(languages), parts[-1])
        record["→".join(languages)] = {"sources": sources, "references": references, **outputs}
        lines += table("→".join(languages), parts[-1])
    rows = {label: zip(*(part[label].items() for part in parts), strict=True) for label in METRICS}
    both = {label: {row: (one + other) / 2 for (row, one), (_, other) in pair} for label, pair in rows.items()}
    lines += table("both", both)
    print("\n".join(lines))
    if args.output:
        text = json.dumps(record, indent=1, ensure_ascii=False)
        write_atomically(args.output / "which_rule.json", text + "\n")
        write_atomically(args.output / "which_rule.md", "\n".join(lines))


def main(given: Sequence[str] | None = None) -> None:
    parser = Parser(prog="evaluation.benchmarks.which_rule", description=__doc__)
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--model", type=Path, default=TRANSLATOR)
    parser.add_argument("--output", type=Path, help="folder for table and texts")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--utilities", nargs="+", default=["chrf"], help="of MBR alone, such as chrf and embedded")
    parser.add_argument("--weights", type=float, nargs="*", default=[1.5], help="of the log-probability (total nats)")
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    parser.add_argument("--threads", type=int, default=1)
    run_command(parser, run, given)


if __name__ == "__main__":
    main()
