"""Sentence vectors of a transformers encoder: pooling and the dense layers of sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from .checkpoints import read_config, read_weights
from .encoding import load_encoder
from .sentence_modules import POOLINGS, SentenceModules


class SentenceEncoder(nn.Module):
    """(ids, mask) → unit vectors.

    Args:
        encoder: transformers' model.
        poolings: how token states become vectors, side by side.
        dense: layers after the pooling.
    """

    def __init__(self, encoder: PreTrainedModel, poolings: tuple[str, ...], dense: nn.Sequential) -> None:
        super().__init__()
        self.encoder, self.poolings, self.dense = encoder, poolings, dense

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, L) ids and mask → (B, D) vectors of length 1."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = torch.cat([pool(states, mask, how) for how in self.poolings], dim=1)
        return nn.functional.normalize(self.dense(pooled).float(), dim=-1)


def sentence_encoder(modules: SentenceModules, poolings: tuple[str, ...]) -> SentenceEncoder:
    """The network of a sentence-transformers folder, or of a plain encoder."""
    dense = nn.Sequential(*(_dense_layer(folder) for folder in modules.dense))
    return SentenceEncoder(load_encoder(modules.encoder), poolings, dense)


def pool(states: torch.Tensor, mask: torch.Tensor, how: str) -> torch.Tensor:
    """(B, L, H) states → (B, H) by "mean", "max" or "cls"."""
    present = mask.bool().unsqueeze(-1)
    if how == "cls":
        return states[:, 0]
    if how == "max":
        return states.masked_fill(~present, -torch.inf).amax(dim=1)
    if how == "mean":
        return states.masked_fill(~present, 0.0).sum(dim=1) / mask.sum(dim=1, keepdim=True).to(states.dtype)
    raise ValueError(f"pooling {how!r} is not supported: expected {', '.join(POOLINGS)}")


def _dense_layer(folder: Path) -> nn.Module:
    """A linear layer with its activation."""
    settings = read_config(folder)
    layer = nn.Linear(int(settings["in_features"]), int(settings["out_features"]), bool(settings["bias"]))
    layer.load_state_dict({key.removeprefix("linear."): value for key, value in read_weights(folder).items()})
    name = str(settings["activation_function"]).rpartition(".")[2]
    return nn.Sequential(layer, getattr(nn, name)())
