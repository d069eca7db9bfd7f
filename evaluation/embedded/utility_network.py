"""BLEURT networks of small sizes: building, regression loss, and export in the public checkpoints' format."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import RemBertConfig, RemBertForSequenceClassification

from evaluation.embedded.rated_pairs import PairBatch, RatedPairs
from evaluation.embedded.training import Trainer

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


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    feed_forward: int
    heads: int
    embedding: int


# Matrix parameters of the layers, which are the cost of a token: 2.4M, 0.59M (a quarter) and 0.25M (a tenth).
SIZES = {
    "embedded": Size(layers=6, width=192, feed_forward=672, heads=6, embedding=64),
    "embedded-d1": Size(layers=4, width=128, feed_forward=320, heads=4, embedding=24),
    "embedded-d2": Size(layers=3, width=96, feed_forward=240, heads=3, embedding=16),
}


def build_network(size: Size, pieces: int = PIECES) -> RemBertForSequenceClassification:
    """BLEURT-20's architecture, RemBERT with a regression head, for a vocabulary of `pieces`."""
    network = RemBertForSequenceClassification(
        RemBertConfig(
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
    return network


def predict(network: RemBertForSequenceClassification, batch: PairBatch) -> torch.Tensor:
    """(B,) scores."""
    inputs = {"input_ids": batch.ids, "token_type_ids": batch.segments, "attention_mask": batch.mask}
    return network(**inputs).logits.squeeze(-1)


def squared_error(network: RemBertForSequenceClassification, batch: PairBatch) -> tuple[torch.Tensor, int]:
    """Sum of the squared errors on a 0–10 scale, and how many there are."""
    return (100 * (predict(network, batch) - batch.scores).square()).sum(), len(batch.scores)


def correlation(network: RemBertForSequenceClassification, data: RatedPairs, name: str) -> dict[str, float]:
    """Pearson correlation and mean squared error (on a 0–100 scale) over rated pairs."""
    scores = np.empty(len(data))
    for indices in data.plan(seed=0, epoch=0, batch_tokens=8192):
        scores[indices] = predict(network, data.batch(indices)).double().numpy()
    error = float(np.mean(np.square(100 * (scores - data.scores))))
    return {f"pearson_{name}": float(np.corrcoef(scores, data.scores)[0, 1]), f"mse_{name}": error}


def fit(
    network: RemBertForSequenceClassification,
    train: RatedPairs,
    held_out: dict[str, RatedPairs],
    args: argparse.Namespace,
    folder: Path,
) -> None:
    """Train to the end of the budget in `args`, with checkpoint and curve in `folder`."""
    print(f"{len(train)} pairs, {train.lengths.sum()} tokens an epoch", flush=True)
    Trainer(network, lambda batch: squared_error(network, batch), args).run(
        lambda epoch: train.plan(args.seed, epoch, args.batch_tokens),
        train.batch,
        lambda: {k: v for name, data in held_out.items() for k, v in correlation(network, data, name).items()},
        folder,
    )


def export(network: RemBertForSequenceClassification, pieces: Path, folder: Path) -> None:
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
