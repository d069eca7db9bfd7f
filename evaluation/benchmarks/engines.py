"""Candidates from this package beside CTranslate2's: `python -m evaluation.benchmarks.engines --model FOLDER`.

CPU seconds on one thread, in one run, for a translation model such as Helsinki-NLP/opus-mt-en-fr (`pip install
ctranslate2`). CTranslate2 has no ε, so it samples among its 50 most probable tokens. Two shares say what is left to
gain here: of the time, how much is spent in forward passes; and how long the same matrix products would take by
themselves, at the speed of the output layer's, which is the hardware's limit.

`--causal FOLDER` compares with plain `generate` and vLLM instead, on a decoder-only model and a prompt of random
tokens, in the environment that `make test-vllm` makes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

import torch
from transformers import AutoTokenizer

from evaluation.benchmarks.measures import cpu_seconds, shares
from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.models import load_model

SENTENCES = (
    "Tom is reading a book.",
    "I don't know where she lives, but I can ask my brother.",
    "The weather is nice today.",
)
HARD = (
    "Come to think of it, the old man muttered, half the fools in this godforsaken village would sooner sell their "
    "own grandmothers than let a stranger set foot in the mill after dark."
)
CHUNK = 128  # hypotheses per call of CTranslate2


def causal(folder: str, samples: int, new_tokens: int) -> None:
    """Print a row per engine for prompts of 20 and of 500 tokens."""
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="4", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    from vllm import LLM, SamplingParams

    model, tokenizer, _ = load_model(folder, device="cpu")
    engine = LLM(folder, dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=samples, seed=0)
    torch.set_num_threads(1)
    mbr = ACPMBR(tokenizer, decoder="map", num_candidates=samples, max_rows=samples)
    settings = SamplingParams(n=samples, temperature=1.0, min_p=0.02, max_tokens=new_tokens)
    plain = {"do_sample": True, "top_k": 0, "epsilon_cutoff": 0.02, "num_return_sequences": samples}
    print("| prompt | engine | CPU s |\n|---|---|---|")
    for tokens in (20, 500):
        ids = torch.randint(100, 40_000, (1, tokens), generator=torch.Generator().manual_seed(tokens))
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": new_tokens}
        ways = {
            "here": lambda given=given: model.generate(**given, custom_generate=mbr, return_dict_in_generate=True),
            "generate": lambda given=given: model.generate(**given, **plain),
            "vLLM": lambda ids=ids: engine.generate([{"prompt_token_ids": ids[0].tolist()}], settings, use_tqdm=False),
        }
        for name, draw in ways.items():
            seconds, drawn = cpu_seconds(draw)
            different = f", {len(drawn.decisions[0].candidates)} different" if name == "here" else ""
            print(f"| {tokens} tokens, N={samples} | {name}{different} | {seconds:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id of a Marian model")
    parser.add_argument("--causal", metavar="FOLDER", help="a decoder-only model: beside vLLM (128 samples, 16 tokens)")
    parser.add_argument(
        "--samples", type=int, nargs=2, default=(64, 1024), help="per easy sentence, and of the hard one"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if (args.model is None) == (args.causal is None):
        parser.error("give --model or --causal")
    if args.causal:
        causal(args.causal, 128, 16)
        return
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    cases = [("three sentences", SENTENCES, args.samples[0]), ("one hard sentence", (HARD,), args.samples[1])]
    print("| | engine | CPU s | in forward passes | matrix products alone |\n|---|---|---|---|---|")
    for kernels in ("default", "onednn"):
        model = load_model(args.model, device="cpu", cpu_kernels=kernels).model
        for case, sentences, n in cases:
            inputs = tokenizer(list(sentences), return_tensors="pt", padding=True)
            draw = partial(model.generate, **inputs, custom_generate=ACPMBR(tokenizer, decoder="map", num_candidates=n))
            draw(max_new_tokens=2)  # what is made once
            found = shares(model, partial(draw, max_new_tokens=64))
            here = f"here, cpu_kernels={kernels} | {found.seconds:.2f} | {found.forward:.0%} | {found.products:.0%}"
            print(f"| {case}, N={n:,} | {here} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("float32", "int8"):
            path = TransformersConverter(args.model).convert(str(Path(folder) / precision), quantization=precision)
            engine = ctranslate2.Translator(path, device="cpu", intra_threads=1, inter_threads=1)
            for case, sentences, n in cases:
                words = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(list(sentences))["input_ids"]]
                settings = {"beam_size": 1, "sampling_topk": 50, "num_hypotheses": min(n, CHUNK), "return_scores": True}
                draw = partial(engine.translate_batch, words, **settings)
                seconds = sum(cpu_seconds(draw)[0] for _ in range(-(-n // CHUNK)))
                print(f"| {case}, N={n:,} | CTranslate2 {precision} | {seconds:.2f} | | |", flush=True)


if __name__ == "__main__":
    main()
