"""Scores the embedded translator on Tatoeba's test sentences, both directions, as Markdown and JSON.

    python -m evaluation.training.report_translator --output evaluation/training/results

Rows: greedy, beam 5, MAP (the most probable of the samples) and MBR with each utility over the same ε-samples, all
compared with beam 5 by sacreBLEU's paired bootstrap. MBR is the package's default, which leaves out most of a network's
scores.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sacrebleu import BLEU, CHRF

from evaluation.assets import DATA_HELP
from evaluation.report.significance import paired_bootstrap
from evaluation.training.translation import Model, Tokenizer, load, tatoeba, translate
from hf_acpmbr import ACPMBR
from hf_acpmbr.embedded import TRANSLATOR

BATCH = 8
BASELINE = "beam 5"
Outputs = dict[str, tuple[list[str], float]]  # translations and seconds of each kind of search


def search_rows(model: Model, tokenizer: Tokenizer, sources: list[str], languages: tuple[str, str]) -> Outputs:
    """Translate by greedy and beam search; texts and seconds of each."""
    result: Outputs = {}
    for name, beams in (("greedy", 1), (BASELINE, 5)):
        start = time.perf_counter()
        result[name] = translate(model, tokenizer, sources, *languages, beams=beams), time.perf_counter() - start
    return result


def sampling_rows(
    model: Model, tokenizer: Tokenizer, sources: list[str], languages: tuple[str, str], samples: int
) -> Outputs:
    """Translate by MAP and by MBR with each utility over the same ε-samples; seconds include the sampling."""
    sampler = ACPMBR(tokenizer, decoder="map", num_candidates=samples)
    rerankers = {f"MBR, {name}, {samples} samples": ACPMBR(tokenizer, target=name) for name in ("chrf", "embedded")}
    likely = f"MAP of {samples} samples"
    texts = {name: [""] * len(sources) for name in (likely, *rerankers)}
    seconds = dict.fromkeys(texts, 0.0)
    tokenizer.src_lang = languages[0]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(order), BATCH):
        chosen = order[first : first + BATCH]
        inputs = tokenizer([sources[i] for i in chosen], return_tensors="pt", padding=True)
        start = time.perf_counter()
        output = model.generate(
            **inputs,
            forced_bos_token_id=tokenizer.get_lang_id(languages[1]),
            max_new_tokens=2 * inputs["input_ids"].shape[1] + 10,
            custom_generate=sampler,
            return_dict_in_generate=True,
        )
        spent = time.perf_counter() - start
        for name in texts:
            seconds[name] += spent
        for k, i in enumerate(chosen):
            texts[likely][i] = output.texts[k][0]
        for name, reranker in rerankers.items():
            start = time.perf_counter()
            for k, i in enumerate(chosen):
                texts[name][i] = reranker.rerank(output.candidates[k]).text
            seconds[name] += time.perf_counter() - start
    return {name: (texts[name], seconds[name]) for name in texts}


def table_rows(outputs: Outputs, references: list[str]) -> list[dict[str, Any]]:
    """Score each output by BLEU and chrF, with its difference from beam search and how likely it is chance alone."""
    names = [BASELINE, *(name for name in outputs if name != BASELINE)]
    systems = [(name, outputs[name][0]) for name in names]
    rows: dict[str, dict[str, Any]] = {name: {"search": name} for name in outputs}
    for label, metric in (("BLEU", BLEU()), ("chrF", CHRF())):
        found = paired_bootstrap(systems, metric, references)
        for name, comparison in zip(names, found, strict=True):
            difference = comparison.score - found[0].score
            rows[name] |= {label: comparison.score, f"Δ{label}": difference, f"p {label}": comparison.p_value}
    for name in outputs:
        rows[name]["seconds"] = outputs[name][1]
    return list(rows.values())


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """Write the table; p-values stand behind the differences."""
    lines = ["| direction | search | BLEU | (Δ, p) | chrF | (Δ, p) | seconds |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row["direction"], row["search"]]
        for label in ("BLEU", "chrF"):
            p = row[f"p {label}"]
            cells += [f"{row[label]:.1f}", "" if p is None else f"{row[f'Δ{label}']:+.1f}, {p:.3f}"]
        lines.append("| " + " | ".join([*cells, f"{row['seconds']:.0f}"]) + " |")
    return lines


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
    rows, examples = [], {}
    for side, languages in ((0, ("en", "de")), (1, ("de", "en"))):
        sources, references = [pair[side] for pair in pairs], [pair[1 - side] for pair in pairs]
        outputs = {"source copied": (sources, 0.0), **search_rows(model, tokenizer, sources, languages)}
        if args.samples:
            outputs |= sampling_rows(model, tokenizer, sources, languages, args.samples)
        for row in table_rows(outputs, references):
            rows.append({"direction": "→".join(languages), **row})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
        shown = [name for name in outputs if name == BASELINE or name.startswith("MBR")]
        examples["→".join(languages)] = [
            {"source": sources[i], "reference": references[i], **{name: outputs[name][0][i] for name in shown}}
            for i in range(min(20, len(sources)))
        ]
    signatures = [str(metric.get_signature()) for metric in (BLEU(references=[["a"]]), CHRF(references=[["a"]]))]
    title = f"Tatoeba test, {len(pairs)} sentences, {args.threads} thread(s). Differences from {BASELINE} (bootstrap)."
    title += " MBR: the package's default decoder."
    lines = [title, "", *markdown(rows), "", *signatures]
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "translator.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = {"sentences": len(pairs), "signatures": signatures, "rows": rows, "examples": examples}
    text = json.dumps(record, indent=2, ensure_ascii=False)
    (args.output / "translator.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
