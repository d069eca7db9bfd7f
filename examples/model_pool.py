"""Candidates of several models, or of several sources that mean the same, in one pool with weights.

The expected utility is then over the mixture of the models (https://arxiv.org/abs/2503.05318). By default the models
are the embedded translator and copies of it with a little noise on the weights, as samples of one posterior would be:

    python examples/model_pool.py
    python examples/model_pool.py --model Helsinki-NLP/opus-mt-en-de --model Helsinki-NLP/opus-mt-tc-big-en-de
"""

from __future__ import annotations

import argparse
import copy

import torch

from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.generation.corpus import decide_texts
from hf_acpmbr.generation.models import load_model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", action="append", help="hub id or folder; repeatable")
parser.add_argument("--weight", action="append", type=float, help="of each model; default: the first counts double")
parser.add_argument("--noise", type=float, default=0.05, help="of the copies, in standard deviations of each tensor")
parser.add_argument("--target", default="chrf", help="utility that decides")
parser.add_argument("--num-candidates", type=int, default=64, help="of each model")
parser.add_argument("--max-new-tokens", type=int, default=64)
args = parser.parse_args()

models = [load_model(name) for name in args.model or ["embedded"]]
if not args.model:
    torch.manual_seed(0)
    for _ in range(2):
        noisy = copy.deepcopy(models[0].model)
        with torch.no_grad():
            for tensor in noisy.parameters():
                tensor += args.noise * tensor.std(correction=0) * torch.randn_like(tensor)
        models.append(models[0]._replace(model=noisy))
weights = args.weight or [2.0] + [1.0] * (len(models) - 1)


def draw(sources: list[str]) -> list[list[Candidates]]:
    """Draw candidates of each model for each source."""
    drawn = []
    for model, tokenizer, language in models:
        # "map" takes the most probable candidate and scores nothing: all that is wanted here are its candidates.
        sampler = ACPMBR(tokenizer, decoder="map", num_candidates=args.num_candidates)
        decided = decide_texts(sampler, model, sources, generate={"max_new_tokens": args.max_new_tokens, **language})
        drawn.append([decision.candidates for decision in decided.decisions if decision is not None])
    return drawn


mbr = ACPMBR(target=args.target, decoder="mbr")
sources = ["The old man told the children a long story.", "Nobody knew why the train was late."]
for k, pools in enumerate(zip(*draw(sources), strict=True)):
    pool = Candidates.pool(pools, weights)
    sizes = " + ".join(str(len(each)) for each in pools)
    print(f"{sources[k]}\n  several models: {mbr.rerank(pool).text} ({sizes} unique, {len(pool)} in the pool)")
    print(f"  the first alone: {mbr.rerank(pools[0]).text}")

# Several sources of one meaning: the same pool, of one model.
meaning = ["Nobody knew why the train was late.", "No one knew why the train came too late."]
pool = Candidates.pool(draw(meaning)[0])
print(f"several sources: {mbr.rerank(pool).text} ({len(pool)} in the pool)")
