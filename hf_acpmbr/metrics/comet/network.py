"""The networks of Unbabel's COMET family, from their public checkpoints (Lightning .ckpt and hparams.yaml).

An encoder (XLM-R, XLM-R-XL, MiniLM, RemBERT, BERT or DeBERTa), a learnt mix of its layers and a feed-forward
estimator; XCOMET has a word tagger as well.
Own implementation: `unbabel-comet` cannot be installed beside transformers 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import AutoModel, PretrainedConfig
from transformers.initialization import no_init_weights

from ...scoring.checkpoints import read_weights
from .hparams import CometHparams

_IGNORED = ("position_ids", "token_type_ids", "dropout_mask", "dropout_fill")  # buffers of the original program


class LayerMix(nn.Module):
    """γ · Σ_k s_k · layer_k with s = softmax or sparsemax of learnt scalars; each layer may be normalised first."""

    def __init__(self, layers: int, transformation: str, normalise: bool) -> None:
        super().__init__()
        self.scalar_parameters = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(layers)])
        self.gamma = nn.Parameter(torch.ones(1))
        self.transformation, self.normalise = transformation, normalise

    def forward(self, layers: Sequence[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        """Mix K tensors (B, L, H) under a mask (B, L) into one (B, L, H)."""
        scalars = torch.cat(list(self.scalar_parameters))
        weights = sparsemax(scalars) if self.transformation == "sparsemax" else torch.softmax(scalars, dim=0)
        mixed = torch.zeros_like(layers[0])
        for weight, layer in zip(weights.tolist(), layers, strict=True):
            if weight:  # sparsemax drops most layers
                mixed += weight * (_normalise_sentences(layer, mask) if self.normalise else layer)
        return self.gamma * mixed


class CometNetwork(nn.Module):
    """Encoder, layer mix, estimator and tagger; the utilities call its parts.

    Args:
        hparams: the checkpoint's hyper-parameters.
        config: configuration of the encoder.
        blocks: how many vectors of the encoder's width the estimator sees.
    """

    def __init__(self, hparams: CometHparams, config: PretrainedConfig, blocks: int) -> None:
        super().__init__()
        self.encoder = AutoModel.from_config(config, trust_remote_code=False)
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # never used, and not always in the checkpoint
        self.layer, self.word_layer = hparams.layer, hparams.word_layer
        self.layerwise_attention = None
        if self.layer == "mix":
            layers = int(config.num_hidden_layers) + 1
            self.layerwise_attention = LayerMix(layers, hparams.layer_transformation, hparams.layer_norm)
        width = int(config.hidden_size)
        self.estimator = nn.ModuleDict({"ff": _estimator(width * blocks, hparams)})
        self.hidden2tag = nn.Linear(width, hparams.tags) if hparams.tags else None

    @property
    def regression(self) -> nn.Sequential:
        """The estimator, from feature vectors to (B, 1) scores."""
        return cast(nn.Sequential, self.estimator["ff"])

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode transformers' inputs as (B, L, H) token states for the score, and for the word tags (if any)."""
        layers = self.encoder(**inputs, output_hidden_states=True).hidden_states
        words = layers[self.word_layer if self.hidden2tag is not None else -1]
        if self.layerwise_attention is not None:
            return self.layerwise_attention(layers, inputs["attention_mask"]), words
        return layers[int(self.layer)], words


def load_comet(folder: Path, hparams: CometHparams, config: PretrainedConfig, blocks: int) -> CometNetwork:
    """Make the network with the checkpoint's weights."""
    with no_init_weights():
        network = CometNetwork(hparams, config, blocks)
    weights = {key.replace("encoder.model.", "encoder.", 1): value for key, value in read_weights(folder).items()}
    missing = [key for key in network.state_dict() if key not in weights and not key.endswith(_IGNORED)]
    if missing:
        raise ValueError(
            f"{folder} lacks {len(missing)} weights, first {missing[:3]}: it does not fit its hyper-parameters"
        )
    network.load_state_dict(weights, strict=False)
    return network


def sparsemax(scores: torch.Tensor) -> torch.Tensor:
    """Project (n,) scores onto the simplex (Martins & Astudillo 2016, arXiv 1602.02068)."""
    ordered = torch.sort(scores.float(), descending=True).values
    excess = torch.cumsum(ordered, dim=0) - 1.0
    rank = torch.arange(1, len(scores) + 1, device=scores.device)
    support = int((ordered * rank > excess).sum())
    threshold = excess[support - 1] / support
    return (scores.float() - threshold).clamp(min=0.0).to(scores.dtype)


def _normalise_sentences(layer: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Give all real tokens and units of each sentence together zero mean and unit variance."""
    present = mask.to(layer.dtype).unsqueeze(-1)
    count = mask.sum(dim=1).to(layer.dtype) * layer.shape[-1]
    mean = ((layer * present).sum(dim=(1, 2)) / count).view(-1, 1, 1)
    variance = (((layer * present - mean) * present) ** 2).sum(dim=(1, 2)) / count
    return (layer - mean) / torch.sqrt(variance + 1e-12).view(-1, 1, 1)


def _estimator(width: int, hparams: CometHparams) -> nn.Sequential:
    """Make the feed-forward regression, numbered as in the checkpoints (linear, activation, dropout, ...)."""

    def activation(name: str) -> nn.Module:
        if (found := getattr(nn, name.title(), None)) is None:
            raise ValueError(f"activation {name!r} of the checkpoint is not supported")
        return cast(nn.Module, found())

    modules: list[nn.Module] = []
    for size in hparams.hidden_sizes:
        modules += [nn.Linear(width, size), activation(hparams.activations), nn.Dropout(0.0)]
        width = size
    modules.append(nn.Linear(width, 1))
    if hparams.final_activation is not None:
        modules.append(activation(hparams.final_activation))
    return nn.Sequential(*modules)
