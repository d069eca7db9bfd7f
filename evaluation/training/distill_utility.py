"""Distils the embedded utility: a smaller BLEURT learns the target's scores of pairs of candidates.

    python -m evaluation.training.distill_utility --size embedded-d1 --translator FOLDER --target FOLDER \\
        --output FOLDER

The pairs are two different ε-samples of the translator for one source, as in MBR's matrix, and some pairs of the
ratings' texts for longer ones. `--scores FOLDER` shares them between the sizes.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from evaluation.assets import DATA_HELP
from evaluation.training.rated_pairs import RatedPair, RatedPairs, cached_chunks, training_ratings
from evaluation.training.trainer import add_training_arguments, prepare_process
from evaluation.training.translation import load, sample_translations, tatoeba
from evaluation.training.utility_network import POSITIONS, SIZES, build_network, export, fit
from hf_acpmbr import load_utility
from hf_acpmbr.embedded import TRANSLATOR, UTILITY_FOLDERS
from hf_acpmbr.scoring import Utility

CANDIDATES = 16  # samples per source


def scored_pairs(args: argparse.Namespace, target: Utility, number: int) -> list[RatedPair]:
    """Make one chunk of pairs with the target's scores."""
    rng = random.Random(f"{args.seed}/{number}")
    torch.manual_seed(args.seed * 100_003 + number)
    model, tokenizer = load(args.translator)
    chosen = rng.sample(tatoeba("train", args.data), args.chunk_sentences)
    rows: list[tuple[str, str]] = []
    for side, source, language in ((1, "en", "de"), (0, "de", "en")):
        texts = [pair[1 - side] for pair in chosen[side::2]]
        for samples in sample_translations(model, tokenizer, texts, source, language, CANDIDATES):
            unique = sorted({text for text in samples if text})
            pairs = [(a, b) for a in unique for b in unique]
            rows += rng.sample(pairs, min(args.pairs_per_source, len(pairs)))
    bleurt, mqm = training_ratings(args.data)
    ratings = rng.sample(bleurt + mqm, len(rows) // 20)
    rows += [(pair.hypothesis, pair.reference) for pair in ratings]
    hypotheses, references = (list(column) for column in zip(*rows, strict=True))
    scores = target.score(hypotheses, references)
    triples = zip(references, hypotheses, scores, strict=True)
    return [RatedPair(reference, hypothesis, round(float(score), 4)) for reference, hypothesis, score in triples]


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[name for name in SIZES if name != "embedded"], required=True)
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--translator", type=Path, default=TRANSLATOR)
    parser.add_argument(
        "--target", type=Path, default=UTILITY_FOLDERS["embedded"], help="exported folder of the target"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scores", type=Path, help="folder for the scored pairs (default: OUTPUT/scores)")
    parser.add_argument("--chunks", type=int, default=6, help="chunks of scored pairs, the last one held out")
    parser.add_argument("--chunk-sentences", type=int, default=500)
    parser.add_argument("--pairs-per-source", type=int, default=50)
    add_training_arguments(parser, rate=1e-3, muon_rate=0.006, minutes=8.0)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    args = parse_arguments(given)
    prepare_process(args)
    target = load_utility(str(args.target))
    folder = args.scores or args.output / "scores"
    *chunks, dev = cached_chunks(folder, args.chunks, lambda k: scored_pairs(args, target, k))
    pieces = args.target / "spm.model"
    vectors = load_file(args.target / "model.safetensors")["bleurt.embeddings.word_embeddings.weight"].float()
    network = build_network(SIZES[args.size], len(vectors), vectors)
    train = RatedPairs([pair for chunk in chunks for pair in chunk], pieces, POSITIONS)
    fit(network, train, {"target": RatedPairs(dev[:4000], pieces, POSITIONS)}, args, args.output)
    export(network, pieces, args.output / "model")


if __name__ == "__main__":
    main()
