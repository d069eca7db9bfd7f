"""Trains the embedded utility: a small BLEURT, pre-trained on synthetic pairs, then on BLEURT-20 scores and human MQM.

    python -m evaluation.training.train_utility --translator FOLDER --output FOLDER

`--init FOLDER` starts from an exported utility instead of pre-training. Pairs that were made are kept in the output
folder and used again.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from evaluation.assets import DATA_HELP
from evaluation.training.rated_pairs import RatedPair, RatedPairs, cached_chunks, joined, training_ratings
from evaluation.training.synthetic_pairs import SyntheticPairs
from evaluation.training.trainer import add_training_arguments, prepare_process
from evaluation.training.translation import load, tatoeba
from evaluation.training.utility_network import (
    POSITIONS,
    SIZES,
    build_network,
    export,
    fit,
    load_network,
    translator_vectors,
)
from hf_acpmbr.embedded import TRANSLATOR, UTILITY_FOLDERS


def synthetic_chunks(args: argparse.Namespace) -> list[list[RatedPair]]:
    @cache
    def maker() -> SyntheticPairs:  # it reads the whole corpus, in vain if every chunk has already been made
        return SyntheticPairs(tatoeba("train", args.data), load(args.translator), seed=args.seed)

    return cached_chunks(args.output / "synthetic", args.chunks, lambda k: maker().chunk(k, args.chunk_sentences))


def split_by_reference(pairs: list[RatedPair], held_out: int, seed: int) -> tuple[list[RatedPair], list[RatedPair]]:
    """Split into (train, held out), so that no reference is on both sides."""
    counts = Counter(pair.reference for pair in pairs)
    references = sorted(counts)
    random.Random(seed).shuffle(references)
    before = itertools.accumulate((counts[reference] for reference in references), initial=0)
    kept_out = {reference for reference, number in zip(references, before, strict=False) if number < held_out}
    return (
        [pair for pair in pairs if pair.reference not in kept_out],
        [pair for pair in pairs if pair.reference in kept_out],
    )


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--translator", type=Path, default=TRANSLATOR)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--init", type=Path, help="exported utility to start from, with its vocabulary")
    parser.add_argument("--pieces", type=Path, default=UTILITY_FOLDERS["embedded"] / "spm.model", help="the vocabulary")
    parser.add_argument("--chunks", type=int, default=8, help="chunks of synthetic pairs, the last one held out")
    parser.add_argument("--chunk-sentences", type=int, default=2000)
    parser.add_argument("--held-out", type=int, default=1000, help="rated pairs kept out to watch the training")
    parser.add_argument("--ratings", type=int, default=1_000_000, help="at most this many rated pairs")
    parser.add_argument("--joined", type=int, default=5000, help="texts of several rated segments in a row")
    parser.add_argument("--pretrain-minutes", type=float, default=6.0)
    parser.add_argument("--finetune-minutes", type=float, default=28.0)
    parser.add_argument("--finetune-factor", type=float, default=0.8, help="of the rates of pre-training")
    parser.add_argument("--replay", type=float, default=3.0, help="synthetic pairs per rated one in fine-tuning")
    add_training_arguments(parser, rate=1e-3, muon_rate=0.005)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    args = parse_arguments(given)
    prepare_process(args)
    *chunks, dev = synthetic_chunks(args)
    synthetic = [pair for chunk in chunks for pair in chunk]
    bleurt, mqm = training_ratings(args.data)
    ratings, held_out = split_by_reference(bleurt + mqm, args.held_out, args.seed)
    known = set(bleurt)
    ratings += joined([pair for pair in ratings if pair not in known], args.joined)
    ratings = random.Random(args.seed).sample(ratings, min(len(ratings), args.ratings))
    pieces = args.init / "spm.model" if args.init else args.pieces
    checks = {
        "synthetic": RatedPairs(dev[:3000], pieces, POSITIONS),
        "bleurt": RatedPairs([pair for pair in held_out if pair in known], pieces, POSITIONS),
        "mqm": RatedPairs([pair for pair in held_out if pair not in known], pieces, POSITIONS),
    }
    if args.init:
        network = load_network(args.init)
    else:
        vectors = translator_vectors(pieces, args.translator)
        network = build_network(SIZES["embedded"], len(vectors), vectors)
        args.minutes = args.pretrain_minutes
        fit(network, RatedPairs(synthetic, pieces, POSITIONS), checks, args, args.output / "pretraining")
    replay = random.Random(args.seed).sample(synthetic, min(len(synthetic), int(args.replay * len(ratings))))
    args.minutes = args.finetune_minutes
    args.rate, args.muon_rate = args.finetune_factor * args.rate, args.finetune_factor * args.muon_rate
    fit(network, RatedPairs(ratings + replay, pieces, POSITIONS), checks, args, args.output / "finetuning")
    export(network, pieces, args.output / "model")


if __name__ == "__main__":
    main()
