"""BLEURT networks of small sizes: building, regression loss, and export in the public checkpoints' format."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import RemBertConfig, RemBertForSequenceClassification

from evaluation.training.bitext import Model
from evaluation.training.rated_pairs import PairBatch, RatedPairs
from evaluation.training.trainer import Trainer

KEPT_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "pad_token_id",
)
PIECES = 4000
POSITIONS = 320
# The ranking loss: differences of scores that count, the lead that is asked for at most, and how soon it is felt.
LEAST_DIFFERENCE, MARGIN, SOFTNESS = 0.02, 0.1, 0.05
RANKING_SHARE = 0.3
# Small differences of human ratings are mostly noise: pairs weigh by their difference, up to this one.
FULL_WEIGHT = 0.2


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    feed_forward: int
    heads: int
    embedding: int


# Matrix parameters of the layers, which are the cost of a token: 1.38M, 0.35M (a quarter) and 0.14M (a tenth).
# Embeddings cost nothing, so the target's are wide.
SIZES = {
    "embedded": Size(layers=4, width=192, feed_forward=512, heads=6, embedding=256),
    "embedded-d1": Size(layers=3, width=112, feed_forward=304, heads=4, embedding=40),
    "embedded-d2": Size(layers=2, width=80, feed_forward=272, heads=4, embedding=24),
}


def build_network(size: Size, pieces: int = PIECES, vectors: torch.Tensor | None = None) -> Model:
    """BLEURT-20's architecture, RemBERT with a regression head, for a vocabulary of `pieces`.

    Args:
        vectors: (pieces, any) what is known of the pieces beforehand; the embeddings start from its main directions.
    """
    settings: Any = RemBertConfig
    network: Model = RemBertForSequenceClassification(
        settings(
            vocab_size=pieces,
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=size.feed_forward,
            input_embedding_size=size.embedding,
            output_embedding_size=size.embedding,
            max_position_embeddings=POSITIONS,
            initializer_range=0.05,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
            num_labels=1,
        )
    )
    # A constant near the ratings' mean to start from: the first steps go into what distinguishes pairs.
    torch.nn.init.zeros_(network.classifier.weight)
    torch.nn.init.constant_(network.classifier.bias, 0.6)
    look_for_equals(network)
    if vectors is not None:
        start_embeddings(network, vectors)
    return network


def look_for_equals(network: Model, layers: int = 2, logit: float = 4.0) -> None:
    """Let the first layers' attention start at equal pieces, wherever they stand.

    From a random start the network needs millions of tokens to find out that it should compare the two sentences.

    Args:
        layers: how many.
        logit: what the first layer gives a pair of equal pieces, about; others get about 0.
    """
    config = network.config
    heads, spread = config.num_attention_heads, config.initializer_range**2
    # Normalised embeddings have the squared length input_embedding_size; every random projection scales it.
    squared = config.input_embedding_size * (config.hidden_size * spread) * (config.hidden_size // heads * spread)
    gain = (logit / (squared / (config.hidden_size // heads) ** 0.5)) ** 0.5
    with torch.no_grad():
        network.rembert.embeddings.position_embeddings.weight.div_(3)
        for layer in network.rembert.encoder.layer[:layers]:
            attention = layer.attention.self
            attention.query.weight.mul_(gain)
            attention.key.weight.copy_(attention.query.weight)


def start_embeddings(network: Model, vectors: torch.Tensor) -> None:
    """The embeddings of pieces with a vector become its main directions, at the spread of the random start.

    Args:
        vectors: (pieces, any); rows of zeros, and directions beyond those that it has, keep their random start.
    """
    weight = network.rembert.embeddings.word_embeddings.weight
    known = vectors.abs().sum(1) > 0
    centred = vectors[known] - vectors[known].mean(0)
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    # Square roots: the first few directions, frequency above all, would rule the similarity of pieces.
    start = centred @ directions[: weight.shape[1]].T / singular[: weight.shape[1]].sqrt()
    with torch.no_grad():
        weight[known, : start.shape[1]] = start * (network.config.initializer_range / start.std())


def translator_vectors(pieces: Path, translator: Path) -> torch.Tensor:
    """(pieces, width) the translator's embedding of every piece, or the mean over the pieces it takes for it."""
    ours = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(translator / "sentencepiece.bpe.model"))
    numbers = json.loads((translator / "vocab.json").read_text(encoding="utf-8"))
    table = load_file(translator / "model.safetensors")["model.shared.weight"].float()
    vectors = torch.zeros(ours.get_piece_size(), table.shape[1])
    for i in range(ours.get_piece_size()):
        piece = ours.id_to_piece(i)
        if ours.is_control(i) or ours.is_unknown(i):
            continue
        parts = [piece] if piece in numbers else theirs.encode(piece.replace("▁", " "), out_type=str)
        known = [numbers[part] for part in parts if part in numbers]
        if known:
            vectors[i] = table[known].mean(0)
    return vectors


def predict(network: Model, batch: PairBatch) -> torch.Tensor:
    """(B,) scores."""
    inputs = {"input_ids": batch.ids, "token_type_ids": batch.segments, "attention_mask": batch.mask}
    scores: torch.Tensor = network(**inputs).logits.squeeze(-1)
    return scores


def training_loss(network: Model, batch: PairBatch) -> tuple[torch.Tensor, int]:
    """Squared errors on a 0–10 scale plus a ranking loss within the groups, summed over the pairs, and their number."""
    scores = predict(network, batch).float()
    squared = (100 * (scores - batch.scores).square()).sum()
    better = batch.scores[:, None] - batch.scores[None]
    ordered = (batch.groups[:, None] == batch.groups[None]) & (better > LEAST_DIFFERENCE)
    if not ordered.any():
        return squared, len(scores)
    # How far the better one of two hypotheses is ahead of where it should be, at most MARGIN.
    ahead = (scores[:, None] - scores[None] - better.clamp(max=MARGIN))[ordered]
    weights = better[ordered].clamp(max=FULL_WEIGHT) / FULL_WEIGHT
    ranking = (weights * torch.nn.functional.softplus(-ahead / SOFTNESS)).mean()
    return squared + RANKING_SHARE * len(scores) * ranking, len(scores)


def ordered_pairs(scores: np.ndarray, wanted: np.ndarray, groups: np.ndarray) -> float:
    """The share of pairs within a group, with scores that differ, whose order is the wanted one."""
    right = total = 0
    for group in np.unique(groups):
        rows = groups == group
        difference = np.subtract.outer(wanted[rows], wanted[rows]) > LEAST_DIFFERENCE
        right += int((np.subtract.outer(scores[rows], scores[rows])[difference] > 0).sum())
        total += int(difference.sum())
    return right / max(1, total)


def correlation(network: Model, data: RatedPairs, name: str) -> dict[str, float]:
    """Pearson correlation, mean squared error (on a 0–100 scale) and pairs in order over rated pairs."""
    scores = np.empty(len(data))
    for indices in data.plan(seed=0, epoch=0, batch_tokens=8192):
        scores[indices] = predict(network, data.batch(indices)).double().numpy()
    error = float(np.mean(np.square(100 * (scores - data.scores))))
    order = ordered_pairs(scores, data.scores, data.groups)
    pearson = float(np.corrcoef(scores, data.scores)[0, 1])
    return {f"pearson_{name}": pearson, f"mse_{name}": error, f"ordered_{name}": order}


def fit(
    network: Model,
    train: RatedPairs,
    held_out: dict[str, RatedPairs],
    args: argparse.Namespace,
    folder: Path,
) -> None:
    """Train to the end of the budget in `args`, with checkpoint and curve in `folder`."""
    print(f"{len(train)} pairs, {train.lengths.sum()} tokens per epoch", flush=True)
    Trainer[PairBatch](network, lambda batch: training_loss(network, batch), args).run(
        lambda epoch: train.plan(args.seed, epoch, args.batch_tokens),
        train.batch,
        lambda: {k: v for name, data in held_out.items() for k, v in correlation(network, data, name).items()},
        folder,
    )


def load_network(folder: Path, size: Size) -> Model:
    """A network with the weights of an exported folder, which must be of this size, in fp32."""
    weights = load_file(folder / "model.safetensors")
    network = build_network(size, len(weights["bleurt.embeddings.word_embeddings.weight"]))
    names = {
        key.replace("embedding_projection.", "embedding_hidden_mapping_in.").replace(
            "bleurt.", "rembert."
        ): value.float()
        for key, value in weights.items()
    }
    network.load_state_dict(names)
    return network


def export(network: Model, pieces: Path, folder: Path) -> None:
    """config.json, fp16 model.safetensors and spm.model under the names of the public PyTorch checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    source = network.config
    config = {"architectures": ["BleurtForSequenceClassification"], "model_type": "bleurt"}
    config |= {"embedding_size": source.input_embedding_size} | {name: getattr(source, name) for name in KEPT_SETTINGS}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {}
    for key, value in network.state_dict().items():
        if not key.endswith("position_ids"):
            name = key.replace("rembert.", "bleurt.").replace("embedding_hidden_mapping_in.", "embedding_projection.")
            weights[name] = value.half().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(pieces, folder / "spm.model")
