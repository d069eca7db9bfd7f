"""How a utility's network starts out: able to find equal pieces, to tell places, and to see each piece's neighbours.

From a random start a small network needs millions of tokens to find out that it should compare the two sentences, and
more to notice their order. So the hidden state has three parts: what a piece is, which sentence it is in, and where it
stands, as waves of its position, of which a rotation is a step to the side. The first two layers start with heads that
look for an equal piece in the other sentence and heads that look one place to the left or right. All of it is only a
start: every weight is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from transformers.models.bert.modeling_bert import BertLayer, BertSelfAttention

from hf_acpmbr.utilities.bleurt import BLEURTNetwork

# Attention logits, about: of equal pieces (in each of the layers), of the other sentence against the same one, and of
# the neighbour against the piece itself. Everything else gets about 0.
EQUAL_LOGITS, OTHER_SENTENCE_LOGIT, NEIGHBOUR_LOGIT = (6.0, 4.0), 1.5, 6.0
SPREAD = 0.05
FASTEST_WAVE = 2.6


@dataclass(frozen=True)
class Parts:
    """How many values of a state say what a piece is, and how many where it stands; one between them: the sentence."""

    content: int
    place: int

    @classmethod
    def of(cls, width: int, head: int, embedding: int) -> Parts:
        """The parts of states of `width`, whose places fit into a head and take at most a third of the embedding."""
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
    config = network.encoder.config
    size, width = network.embeddings.word_embeddings.embedding_dim, int(config.hidden_size)
    head = width // int(config.num_attention_heads)
    inner, outer = Parts.of(size, head, size), Parts.of(width, head, size)
    speeds = FASTEST_WAVE * ((torch.arange(inner.place // 2) + 0.5) / (inner.place // 2)) ** 1.5
    with torch.no_grad():
        _start_embeddings(network, inner, outer, speeds)
        if vectors is not None:
            take_directions(network.embeddings.word_embeddings.weight[:, : inner.content], vectors)
        for layer, logit in zip(cast(Sequence[BertLayer], network.encoder.layer), EQUAL_LOGITS, strict=False):
            _start_attention(cast(BertSelfAttention, layer.attention.self), outer, logit, speeds)
            for dense in (layer.attention.output.dense, layer.output.dense):
                dense.weight[outer.content :] = 0.0  # sentence and place stay as they are


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


def _start_attention(attention: BertSelfAttention, parts: Parts, equal: float, speeds: torch.Tensor) -> None:
    """Half of the heads look for equal pieces, one for the left neighbour, one for the right."""
    query, key, heads = attention.query.weight, attention.key.weight, attention.num_attention_heads
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
    """The embeddings of pieces with a vector become its main directions, at the spread of the random start.

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
