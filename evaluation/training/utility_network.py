"""BLEURT networks of small sizes: building, regression loss, and export in the public checkpoints' format."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from safetensors.torch import load_file, save_file

from evaluation.training.rated_pairs import PairBatch, RatedPairs
from evaluation.training.trainer import Trainer
from evaluation.training.utility_start import start
from hf_acpmbr.utilities.bleurt import BLEURTNetwork, bert_config, bleurt_network

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
POSITIONS = 512
# The ranking loss: differences of scores that count, the lead that is asked for at most, and how soon it is felt.
LEAST_DIFFERENCE, MARGIN, SOFTNESS = 0.02, 0.1, 0.05
RANKING_SHARE = 1.0
# Small differences of human ratings are mostly noise: pairs weigh by their difference, up to this one.
FULL_WEIGHT = 0.2


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


def build_network(size: Size, pieces: int = PIECES, vectors: torch.Tensor | None = None) -> BLEURTNetwork:
    """BLEURT-20's architecture for a vocabulary of `pieces`.

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
    network = BLEURTNetwork(bert_config(settings), size.embedding)
    start(network, vectors)
    return network


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


def predict(network: BLEURTNetwork, batch: PairBatch) -> torch.Tensor:
    """(B,) scores."""
    scores: torch.Tensor = network(batch.ids, batch.segments, batch.mask)
    return scores


def training_loss(network: BLEURTNetwork, batch: PairBatch) -> tuple[torch.Tensor, int]:
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


def correlation(network: BLEURTNetwork, data: RatedPairs, name: str) -> dict[str, float]:
    """Pearson correlation, mean squared error (on a 0–100 scale) and pairs in order over rated pairs."""
    scores = np.empty(len(data))
    for indices in data.plan(seed=0, epoch=0, batch_tokens=8192):
        scores[indices] = predict(network, data.batch(indices)).double().numpy()
    error = float(np.mean(np.square(100 * (scores - data.scores))))
    order = ordered_pairs(scores, data.scores, data.groups)
    pearson = float(np.corrcoef(scores, data.scores)[0, 1])
    return {f"pearson_{name}": pearson, f"mse_{name}": error, f"ordered_{name}": order}


def fit(
    network: BLEURTNetwork,
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


def load_network(folder: Path) -> BLEURTNetwork:
    """A network with the weights of an exported folder, in fp32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "model.safetensors")
    return bleurt_network(config, {name: value.float() for name, value in weights.items()})


def export(network: BLEURTNetwork, pieces: Path, folder: Path) -> None:
    """config.json, fp16 model.safetensors and spm.model under the names of the public PyTorch checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, object] = {"architectures": ["BleurtForSequenceClassification"], "model_type": "bleurt"}
    config["embedding_size"] = network.embeddings.word_embeddings.embedding_dim
    config |= {name: getattr(network.encoder.config, name) for name in KEPT_SETTINGS}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {}
    for key, value in network.state_dict().items():
        name = key.replace("embeddings.projection.", "encoder.embedding_projection.")
        weights[name if name.startswith("classifier.") else f"bleurt.{name}"] = value.half().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(pieces, folder / "spm.model")
