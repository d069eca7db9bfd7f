"""BLEURT networks of small sizes: how they start, their loss, and export in the public checkpoints' format.

From a random start a small network needs millions of tokens to find out that it should compare the two sentences, and
more to notice their order. So the hidden state has three parts: what a piece is, which sentence it is in, and where it
stands, as waves of its position, of which a rotation is a step to the side. The first two layers start with heads that
look for an equal piece in the other sentence and heads that look one place to the left or right. All of it is only a
start: every weight is trained.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from evaluation.training.rated_pairs import PairBatch, RatedPairs
from evaluation.training.trainer import Trainer
from hf_acpmbr.metrics.bleurt import BLEURTNetwork, Layer, Residual

SIZE_SETTINGS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
OTHER_SETTINGS = ("hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps")
# The vocabulary's size, and a length at which hardly any pair of paragraphs of WMT's ratings is cut.
PIECES = 4000
POSITIONS = 512
# The ranking loss: differences of scores that count, the lead that is asked for at most, and how soon it is felt.
LEAST_DIFFERENCE, MARGIN, SOFTNESS = 0.02, 0.1, 0.05
# Small differences of human ratings are mostly noise: pairs weigh by their difference, up to this one.
FULL_WEIGHT = 0.2
# Attention logits, about: of equal pieces (in each of the layers), of the other sentence against the same one, and of
# the neighbour against the piece itself. Everything else gets about 0.
EQUAL_LOGITS, OTHER_SENTENCE_LOGIT, NEIGHBOUR_LOGIT = (6.0, 4.0), 1.5, 6.0
# The standard deviation of the random weights, and of the fastest wave of places the angle per step.
SPREAD = 0.05
FASTEST_WAVE = 2.6


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    feed_forward: int
    heads: int
    embedding: int


# Matrix parameters of the layers, which are the cost of a token: 1.38M, 0.34M (a quarter) and 0.14M (a tenth).
# Embeddings cost no time, so the target's are wide; the others' are what the package's 20 MB leave for them.
SIZES = {
    "embedded": Size(layers=4, width=192, feed_forward=512, heads=6, embedding=256),
    "embedded-d1": Size(layers=3, width=112, feed_forward=288, heads=4, embedding=30),
    "embedded-d2": Size(layers=2, width=80, feed_forward=272, heads=4, embedding=32),
}


@dataclass(frozen=True)
class Parts:
    """How many values of a state say what a piece is, and how many where it stands; one between them: the sentence."""

    content: int
    place: int

    @classmethod
    def of(cls, width: int, head: int, embedding: int) -> Parts:
        """Divide states of `width`; places fit into a head and take at most a third of the embedding."""
        place = min(head, embedding // 3) // 2 * 2
        return cls(width - place - 1, place)


def start(network: BLEURTNetwork, vectors: torch.Tensor | None = None) -> None:
    """Set the weights of a new network.

    Args:
        vectors: (pieces, any) what is known of the pieces beforehand; the embeddings start from its main directions.
    """
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=SPREAD)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    # A constant near the ratings' mean to start from: the first steps go into what distinguishes pairs.
    nn.init.zeros_(network.classifier.weight)
    nn.init.constant_(network.classifier.bias, 0.6)
    size, width = network.embeddings.word_embeddings.embedding_dim, int(network.config["hidden_size"])
    head = width // int(network.config["num_attention_heads"])
    inner, outer = Parts.of(size, head, size), Parts.of(width, head, size)
    speeds = FASTEST_WAVE * ((torch.arange(inner.place // 2) + 0.5) / (inner.place // 2)) ** 1.5
    with torch.no_grad():
        _start_embeddings(network, inner, outer, speeds)
        if vectors is not None:
            take_directions(network.embeddings.word_embeddings.weight[:, : inner.content], vectors)
        for layer, logit in zip(cast(Sequence[Layer], network.encoder["layer"]), EQUAL_LOGITS, strict=False):
            _start_attention(layer, outer, logit, speeds)
            for residual in (layer.attention["output"], layer.output):
                cast(Residual, residual).dense.weight[outer.content :] = 0.0  # sentence and place stay as they are


def _start_embeddings(network: BLEURTNetwork, inner: Parts, outer: Parts, speeds: torch.Tensor) -> None:
    embeddings, c = network.embeddings, inner.content
    embeddings.word_embeddings.weight[:, c:] = 0.0
    angles = torch.arange(embeddings.position_embeddings.num_embeddings)[:, None] * speeds
    embeddings.position_embeddings.weight.zero_()
    embeddings.position_embeddings.weight[:, c + 1 :] = SPREAD * 2**0.5 * torch.cat([angles.cos(), angles.sin()], dim=1)
    embeddings.token_type_embeddings.weight.zero_()
    embeddings.token_type_embeddings.weight[:, c] = SPREAD * torch.tensor([1.0, -1.0])
    weight = cast(nn.Linear, embeddings.projection).weight  # the embedding's norm has made every value's size about 1
    weight.zero_()
    nn.init.normal_(weight[: outer.content, :c], std=c**-0.5)
    weight[outer.content :, c:] = torch.eye(1 + inner.place)


def _start_attention(layer: Layer, parts: Parts, equal: float, speeds: torch.Tensor) -> None:
    """Let half of the heads look for equal pieces, one for the left neighbour and one for the right."""
    projections, heads = cast(nn.ModuleDict, layer.attention["self"]), layer.heads
    query, key = (cast(nn.Linear, projections[name]).weight for name in ("query", "key"))
    head, c = len(query) // heads, parts.content
    alike = (equal / (head**0.5 * c)) ** 0.5 * torch.randn(head * (heads // 2), c)
    for k in range(heads // 2):
        rows = slice(head * k, head * (k + 1))
        for weight, side in ((query, -1.0), (key, 1.0)):
            weight[rows] = 0.0
            weight[rows, :c] = alike[rows]
            weight[rows.start] = 0.0
            weight[rows.start, c] = side * (OTHER_SENTENCE_LOGIT * head**0.5) ** 0.5
    gain = (NEIGHBOUR_LOGIT * head**0.5 / (2 * (1 - speeds.cos()).sum())) ** 0.5
    for k, step in ((heads // 2, -1), (heads // 2 + 1, 1)):
        rows = slice(head * k, head * k + parts.place)
        query[head * k : head * (k + 1)] = key[head * k : head * (k + 1)] = 0.0
        cosines, sines = (step * speeds).cos().diag(), (step * speeds).sin().diag()
        query[rows, c + 1 :] = gain * torch.cat([torch.cat([cosines, -sines], 1), torch.cat([sines, cosines], 1)])
        key[rows, c + 1 :] = gain * torch.eye(parts.place)


def take_directions(weight: torch.Tensor, vectors: torch.Tensor) -> None:
    """Set the embeddings of pieces with a vector to its main directions, at the spread of the random start.

    Args:
        weight: (pieces, values), changed in place.
        vectors: (pieces, any); rows of zeros, and directions beyond those that it has, keep their random start.
    """
    known = vectors.abs().sum(1) > 0
    centred = vectors[known] - vectors[known].mean(0)
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    # Square roots: the first few directions, frequency above all, would rule the similarity of pieces.
    found = centred @ directions[: weight.shape[1]].T / singular[: weight.shape[1]].sqrt()
    weight[known, : found.shape[1]] = found * (SPREAD / found.std())


def build_network(size: Size, pieces: int = PIECES, vectors: torch.Tensor | None = None) -> BLEURTNetwork:
    """Build BLEURT-20's architecture for a vocabulary of `pieces`.

    Args:
        vectors: (pieces, any) what is known of the pieces beforehand; the embeddings start from its main directions.
    """
    settings: dict[str, object] = {
        "embedding_size": size.embedding,
        "vocab_size": pieces,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.feed_forward,
        "max_position_embeddings": POSITIONS,
    }
    network = BLEURTNetwork(settings)
    start(network, vectors)
    return network


def translator_vectors(pieces: Path, translator: Path) -> torch.Tensor:
    """Return (pieces, width): the translator's embedding of each piece, or the mean over the pieces it takes for it."""
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


def predict(network: BLEURTNetwork, batch: PairBatch) -> torch.Tensor:
    """Return (B,) scores."""
    scores: torch.Tensor = network(batch.ids, batch.segments, batch.mask)
    return scores


def training_loss(network: BLEURTNetwork, batch: PairBatch) -> tuple[torch.Tensor, int]:
    """Sum squared errors on a 0–10 scale and a ranking loss within the groups over the pairs; also their number."""
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
    return squared + len(scores) * ranking, len(scores)


def correlation(network: BLEURTNetwork, data: RatedPairs, name: str) -> dict[str, float]:
    """Measure the Pearson correlation."""
    scores = np.empty(len(data))
    for indices in data.plan(seed=0, epoch=0, batch_tokens=8192):
        scores[indices] = predict(network, data.batch(indices)).double().numpy()
    return {f"pearson_{name}": float(np.corrcoef(scores, data.scores)[0, 1])}


def fit(
    network: BLEURTNetwork,
    train: RatedPairs,
    held_out: dict[str, RatedPairs],
    args: argparse.Namespace,
    folder: Path,
) -> None:
    """Train to the end of the budget in `args`, with the curve in `folder`."""
    print(f"{len(train)} pairs, {train.lengths.sum()} tokens per epoch", flush=True)
    Trainer[PairBatch](network, lambda batch: training_loss(network, batch), args).run(
        lambda epoch: train.plan(args.seed, epoch, args.batch_tokens),
        train.batch,
        lambda: {k: v for name, data in held_out.items() for k, v in correlation(network, data, name).items()},
        folder,
    )


def load_network(folder: Path) -> BLEURTNetwork:
    """Load the network of an exported folder, in fp32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "model.safetensors")
    return BLEURTNetwork.with_weights(config, {name: value.float() for name, value in weights.items()})


def export(network: BLEURTNetwork, pieces: Path, folder: Path) -> None:
    """Write config.json, fp16 model.safetensors and spm.model with the names of the public PyTorch checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, object] = {"architectures": ["BleurtForSequenceClassification"], "model_type": "bleurt"}
    config["embedding_size"] = network.embeddings.word_embeddings.embedding_dim
    config |= {name: network.config[name] for name in (*SIZE_SETTINGS, *OTHER_SETTINGS)} | {"pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {}
    for key, value in network.state_dict().items():
        name = key.replace("embeddings.projection.", "encoder.embedding_projection.")
        weights[name if name.startswith("classifier.") else f"bleurt.{name}"] = value.half().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(pieces, folder / "spm.model")
