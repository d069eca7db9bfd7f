"""Scores the embedded translator on Tatoeba's test sentences, both directions, as Markdown and JSON.

    python -m evaluation.training.report_translator --output evaluation/training/results

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

from evaluation.assets import DATA_HELP
from evaluation.training.bitext import Model, Tokenizer, tatoeba
from evaluation.training.translation import load, translate
from hf_acpmbr import ACPMBR
from hf_acpmbr.embedded import TRANSLATOR

BATCH = 8


def search_rows(
    model: Model, tokenizer: Tokenizer, sources: list[str], languages: tuple[str, str]
) -> dict[str, tuple[list[str], float]]:
    """Translations and seconds of greedy and beam search."""
    result: dict[str, tuple[list[str], float]] = {}
    for name, beams in (("greedy", 1), ("beam 5", 5)):
        start = time.perf_counter()
        result[name] = translate(model, tokenizer, sources, *languages, beams=beams), time.perf_counter() - start
    return result


def sampling_rows(
    model: Model,
    tokenizer: Tokenizer,
    sources: list[str],
    languages: tuple[str, str],
    samples: int,
) -> dict[str, tuple[list[str], float]]:
    """Translations and seconds (sampling included) of MAP and MBR over the same ε-samples."""
    mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=samples)
    most_probable = ACPMBR(tokenizer, decoder="map")
    tokenizer.src_lang = languages[0]
    best, likely = [""] * len(sources), [""] * len(sources)
    seconds = {"sampling": 0.0, "scoring": 0.0}
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(order), BATCH):
        chosen = order[first : first + BATCH]
        inputs = tokenizer([sources[i] for i in chosen], return_tensors="pt", padding=True)
        start = time.perf_counter()
        output = model.generate(
            **inputs,
            forced_bos_token_id=tokenizer.get_lang_id(languages[1]),
            max_new_tokens=2 * inputs["input_ids"].shape[1] + 10,
            custom_generate=mbr,
            return_dict_in_generate=True,
        )
        spent = time.perf_counter() - start
        seconds["sampling"] += output.seconds["sampling"]
        seconds["scoring"] += spent - output.seconds["sampling"]
        for k, i in enumerate(chosen):
            best[i], likely[i] = output.texts[k][0], most_probable.rerank(output.candidates[k]).text
    return {
        f"MAP of {samples} samples": (likely, seconds["sampling"]),
        f"MBR, chrF, {samples} samples": (best, seconds["sampling"] + seconds["scoring"]),
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--model", type=Path, default=TRANSLATOR)
    parser.add_argument("--output", type=Path, default=Path("evaluation/training/results"))
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=64, help="ε-samples for MAP and MBR; 0 leaves these rows out")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, tokenizer = load(args.model)
    pairs = tatoeba("test", args.data)[: args.sentences]
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    rows, examples = [], {}
    for side, languages in ((0, ("en", "de")), (1, ("de", "en"))):
        sources, references = [pair[side] for pair in pairs], [[pair[1 - side] for pair in pairs]]
        outputs = search_rows(model, tokenizer, sources, languages)
        if args.samples:
            outputs |= sampling_rows(model, tokenizer, sources, languages, args.samples)
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
