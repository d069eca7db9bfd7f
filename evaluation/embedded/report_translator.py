"""Scores the embedded translator on Tatoeba's test sentences, both directions, as Markdown and JSON.

    python -m evaluation.embedded.report_translator --data ../shared/data/tatoeba --output evaluation/embedded/results

Rows: greedy, beam 5, MAP (the most probable of the samples) and MBR with chrF over the same ε-samples.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import sacrebleu
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100ForConditionalGeneration, M2M100Tokenizer

from evaluation.embedded.bitext import read_pairs
from evaluation.embedded.translation import mean_log_likelihoods, sample_translations, translate
from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.embedded import TRANSLATOR


def map_choices(
    model: M2M100ForConditionalGeneration,
    tokenizer: M2M100Tokenizer,
    sources: list[str],
    samples: list[list[str]],
    languages: tuple[str, str],
) -> list[str]:
    """The sample with the highest total log-probability for each source."""
    rows = [(i, text) for i, texts in enumerate(samples) for text in dict.fromkeys(texts)]
    texts = [text for _, text in rows]
    means = mean_log_likelihoods(model, tokenizer, [sources[i] for i, _ in rows], texts, *languages)
    totals = means * [len(tokenizer.sp_model.encode(text)) + 1 for text in texts]
    best: dict[int, tuple[float, str]] = {}
    for (i, text), total in zip(rows, totals.tolist(), strict=True):
        best[i] = max(best.get(i, (float("-inf"), "")), (total, text))
    return [best[i][1] for i in range(len(sources))]


def systems(
    model: M2M100ForConditionalGeneration,
    tokenizer: M2M100Tokenizer,
    sources: list[str],
    languages: tuple[str, str],
    samples: int,
) -> dict[str, tuple[list[str], float]]:
    """Translations and seconds of every row of the report."""
    result: dict[str, tuple[list[str], float]] = {}
    for name, beams in (("greedy", 1), ("beam 5", 5)):
        start = time.perf_counter()
        result[name] = translate(model, tokenizer, sources, *languages, beams=beams), time.perf_counter() - start
    if samples:
        start = time.perf_counter()
        drawn = sample_translations(model, tokenizer, sources, *languages, samples)
        sampling = time.perf_counter() - start
        chosen = map_choices(model, tokenizer, sources, drawn, languages)
        result[f"MAP of {samples} samples"] = chosen, time.perf_counter() - start
        start = time.perf_counter()
        mbr = ACPMBR(target="chrf", decoder="mbr")
        texts = [mbr.rerank(Candidates.from_texts(texts)).text for texts in drawn]
        result[f"MBR, chrF, {samples} samples"] = texts, time.perf_counter() - start + sampling
    return result


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tatoeba"))
    parser.add_argument("--model", type=Path, default=TRANSLATOR)
    parser.add_argument("--output", type=Path, default=Path("evaluation/embedded/results"))
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=64, help="ε-samples for MAP and MBR; 0 leaves these rows out")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    pairs = read_pairs(args.data / "test.en-de.jsonl.gz")[: args.sentences]
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    rows, examples = [], {}
    for side, languages in ((0, ("en", "de")), (1, ("de", "en"))):
        sources, references = [pair[side] for pair in pairs], [[pair[1 - side] for pair in pairs]]
        outputs = systems(model, tokenizer, sources, languages, args.samples)
        for name, (texts, seconds) in {"source copied": (sources, 0.0), **outputs}.items():
            scores = bleu.corpus_score(texts, references).score, chrf.corpus_score(texts, references).score
            row = {"direction": "→".join(languages), "search": name, "BLEU": scores[0], "chrF": scores[1]}
            rows.append({**row, "seconds": seconds})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
        examples["→".join(languages)] = list(zip(sources[:10], outputs["beam 5"][0][:10], strict=True))
    table = ["| direction | search | BLEU | chrF | seconds |", "|---|---|---|---|---|"]
    table += [
        f"| {row['direction']} | {row['search']} | {row['BLEU']:.1f} | {row['chrF']:.1f} | {row['seconds']:.0f} |"
        for row in rows
    ]
    signatures = [str(metric.get_signature()) for metric in (bleu, chrf)]
    lines = [f"Tatoeba test, {len(pairs)} sentences, {args.threads} thread(s).", "", *table, "", *signatures]
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "translator.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = {"sentences": len(pairs), "signatures": signatures, "rows": rows, "examples": examples}
    text = json.dumps(record, indent=2, ensure_ascii=False)
    (args.output / "translator.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
