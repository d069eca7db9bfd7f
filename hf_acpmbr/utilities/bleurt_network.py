"""BLEURT's network on transformers' BERT layers, with a factorised embedding and SDPA attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEncoder, BertLayer, BertPooler

from .checkpoints import Fields

_PROJECTION = ("encoder.embedding_projection.", "encoder.embedding_hidden_mapping_in.")


class FactorisedEmbeddings(nn.Module):
    """Word, position and segment embeddings of size E, normalised, then projected to H (if E is given)."""

    def __init__(self, config: BertConfig, embedding_size: int | None) -> None:
        super().__init__()
        size = embedding_size or config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.projection = nn.Identity() if embedding_size is None else nn.Linear(size, config.hidden_size)

    def forward(self, ids: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """(B, L) ids and segments → (B, L, H)."""
        positions = self.position_embeddings.weight[: ids.shape[1]]
        embedded = self.word_embeddings(ids) + self.token_type_embeddings(segments) + positions
        return cast(torch.Tensor, self.projection(self.LayerNorm(embedded)))


class BLEURTNetwork(nn.Module):
    """(ids, segments, mask) → score of each row."""

    def __init__(self, config: BertConfig, embedding_size: int | None) -> None:
        super().__init__()
        self.embeddings = FactorisedEmbeddings(config, embedding_size)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, ids: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(B, L) ids, segments and boolean mask (None: no padding) → (B,) scores."""
        hidden = self.embeddings(ids, segments)
        attended = None if mask is None else mask[:, None, None, :]
        *layers, last = cast(Sequence[BertLayer], self.encoder.layer)
        for layer in layers:
            hidden = attend(layer, hidden, hidden, attended)
        # The score is read off the first position alone.
        hidden = attend(last, hidden[:, :1], hidden, attended)
        return cast(torch.Tensor, self.classifier(self.pooler(hidden)).squeeze(-1))


def attend(layer: BertLayer, asking: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """One BERT layer for some positions only: (B, Q, H) of the asking ones, which attend to all (B, L, H)."""
    attention = layer.attention.self

    def heads(projection: nn.Linear, values: torch.Tensor) -> torch.Tensor:
        split: torch.Tensor = projection(values).unflatten(-1, (attention.num_attention_heads, -1))
        return split.transpose(1, 2)

    context = functional.scaled_dot_product_attention(
        heads(attention.query, asking), heads(attention.key, hidden), heads(attention.value, hidden), attn_mask=mask
    )
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), asking)
    return cast(torch.Tensor, layer.output(layer.intermediate(attended), attended))


def embedding_size(config: Fields) -> int | None:
    """Width of the factorised embeddings; None for older checkpoints, which have none."""
    return config.get("embedding_size") or config.get("input_embedding_size")


def bert_config(config: Fields) -> BertConfig:
    """transformers' BERT configuration from a BLEURT config.json."""
    names = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
        "max_position_embeddings type_vocab_size layer_norm_eps"
    )
    options: Fields = {name: config[name] for name in names.split() if name in config}
    options.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    # Google's gelu is the tanh one in the older, unfactorised checkpoints, whose config.json says "gelu".
    if options.get("hidden_act", "gelu") == "gelu" and not embedding_size(config):
        options["hidden_act"] = "gelu_pytorch_tanh"
    return BertConfig(**options)


def bleurt_network(config: Fields, weights: Mapping[str, torch.Tensor]) -> BLEURTNetwork:
    """The network with the weights of a public checkpoint (keys `bleurt.*`, `classifier.*`)."""
    state: dict[str, torch.Tensor] = {}
    for key, value in weights.items():
        name = key.removeprefix("bleurt.").removeprefix("rembert.")
        for prefix in _PROJECTION:
            name = name.replace(prefix, "embeddings.projection.")
        if not name.endswith("position_ids"):
            state[name] = value
    with torch.device("meta"):
        network = BLEURTNetwork(bert_config(config), embedding_size(config))
    wanted = network.state_dict()
    missing, surplus = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or surplus:
        raise ValueError(
            f"not a BLEURT checkpoint: {len(missing)} weights are missing {missing[:3]}, {len(surplus)} are unknown "
            f"{surplus[:3]}"
        )
    for key, tensor in wanted.items():
        if tensor.shape != state[key].shape:
            raise ValueError(
                f"weight {key} has shape {tuple(state[key].shape)}, config.json says {tuple(tensor.shape)}"
            )
    network.load_state_dict(state, assign=True)
    return network
