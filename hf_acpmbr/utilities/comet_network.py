"""The networks of Unbabel's COMET family, from their public checkpoints (Lightning .ckpt and hparams.yaml).

An encoder (XLM-R, XLM-R-XL, MiniLM, RemBERT, BERT or DeBERTa), a learnt mix of its layers and a feed-forward
estimator; XCOMET has a word tagger as well.
Own implementation: `unbabel-comet` cannot be installed beside transformers 5.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModel
from transformers.initialization import no_init_weights

from .checkpoints import read_tensors

_IGNORED = ("position_ids", "token_type_ids", "dropout_mask", "dropout_fill")


class LayerMix(nn.Module):
    """γ · Σ_k s_k · layer_k with s = softmax or sparsemax of learnt scalars; each layer may be normalised first."""

    def __init__(self, layers: int, transformation: str, normalise: bool) -> None:
        super().__init__()
        self.scalar_parameters = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(layers)])
        self.gamma = nn.Parameter(torch.ones(1))
        self.transformation, self.normalise = transformation, normalise

    def forward(self, layers: Sequence[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        """K tensors (B, L, H) and a mask (B, L) → (B, L, H)."""
        scalars = torch.cat(list(self.scalar_parameters))
        weights = sparsemax(scalars) if self.transformation == "sparsemax" else torch.softmax(scalars, dim=0)
        mixed = torch.zeros_like(layers[0])
        for weight, layer in zip(weights.tolist(), layers, strict=True):
            if weight:  # sparsemax drops most layers
                mixed += weight * (_normalise_sentences(layer, mask) if self.normalise else layer)
        return self.gamma * mixed


class Estimator(nn.Module):
    """Feed-forward regression; `ff` is numbered as in the checkpoints (linear, activation, dropout, ...)."""

    def __init__(self, width: int, hidden: Sequence[int], activation: str, final: str | None) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        for size in hidden:
            modules += [nn.Linear(width, size), _activation(activation), nn.Dropout(0.0)]
            width = size
        modules.append(nn.Linear(width, 1))
        if final is not None:
            modules.append(_activation(final))
        self.ff = nn.Sequential(*modules)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(B, width) → (B,)."""
        return cast(torch.Tensor, self.ff(features).squeeze(-1))


class CometNetwork(nn.Module):
    """Encoder, layer mix, estimator and tagger; the utilities call its parts.

    Args:
        hparams: the checkpoint's hyper-parameters.
        config: configuration of the encoder.
        blocks: how many vectors of the encoder's width the estimator sees.
        tags: classes of the word tagger; 0 for none.
    """

    def __init__(self, hparams: Mapping[str, Any], config: Any, blocks: int, tags: int = 0) -> None:
        super().__init__()
        self.encoder: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # never used, and not always in the checkpoint
        self.layer = hparams.get("sent_layer", hparams.get("layer", "mix"))
        self.word_layer = int(hparams.get("word_layer", 0))
        self.layerwise_attention = None
        if self.layer == "mix":
            self.layerwise_attention = LayerMix(
                config.num_hidden_layers + 1,
                str(hparams.get("layer_transformation", "softmax")),
                bool(hparams.get("layer_norm", False)),
            )
        width = int(config.hidden_size)
        self.estimator = Estimator(
            width * blocks,
            list(hparams.get("hidden_sizes", (3072, 1024))),
            str(hparams.get("activations", "Tanh")),
            hparams.get("final_activation"),
        )
        self.hidden2tag = nn.Linear(width, tags) if tags else None

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, L) ids, mask and segment types → token states for the sentence score and for the word tags."""
        inputs = {"input_ids": ids, "attention_mask": mask}
        if types is not None:
            inputs["token_type_ids"] = types
        layers = self.encoder(**inputs, output_hidden_states=True).hidden_states
        if self.layerwise_attention is not None:
            return self.layerwise_attention(layers, mask), layers[self.word_layer]
        return layers[int(self.layer)], layers[self.word_layer]


def read_hparams(folder: Path) -> dict[str, Any]:
    """hparams.yaml of a checkpoint, or config.json of those saved with huggingface_hub's mixin (XCOMET-lite)."""
    path = folder / "hparams.yaml"
    if path.is_file():
        import yaml

        hparams: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        # Checkpoints marked so were trained when the option had no effect: they are softmax mixes.
        if hparams.get("layer_transformation") == "sparsemax_patch":
            hparams["layer_transformation"] = "softmax"
        return hparams
    path = folder / "config.json"
    if path.is_file():
        defaults = {"class_identifier": "unified_metric", "layer_transformation": "sparsemax", "layer_norm": True}
        return {**defaults, **json.loads(path.read_text(encoding="utf-8"))}
    raise FileNotFoundError(f"{folder} has neither hparams.yaml nor config.json: is it a COMET checkpoint?")


def load_comet(folder: Path, hparams: Mapping[str, Any], config: Any, blocks: int, tags: int = 0) -> CometNetwork:
    """The network with the checkpoint's weights."""
    files = [folder / "checkpoints" / "model.ckpt", folder / "model.safetensors", folder / "pytorch_model.bin"]
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has no checkpoints/model.ckpt: is it a COMET checkpoint?")
    with no_init_weights():
        network = CometNetwork(hparams, config, blocks, tags)
    weights = {key.replace("encoder.model.", "encoder.", 1): value for key, value in read_tensors(path).items()}
    missing = [key for key in network.state_dict() if key not in weights and not key.endswith(_IGNORED)]
    if missing:
        raise ValueError(
            f"{path} lacks {len(missing)} weights, first {missing[:3]}: it does not fit its hyper-parameters"
        )
    network.load_state_dict(weights, strict=False)
    return network


def sparsemax(scores: torch.Tensor) -> torch.Tensor:
    """Euclidean projection of (n,) scores onto the simplex (Martins & Astudillo 2016, arXiv 1602.02068)."""
    ordered = torch.sort(scores.float(), descending=True).values
    excess = torch.cumsum(ordered, dim=0) - 1.0
    rank = torch.arange(1, len(scores) + 1, device=scores.device)
    support = int((ordered * rank > excess).sum())
    threshold = excess[support - 1] / support
    return (scores.float() - threshold).clamp(min=0.0).to(scores.dtype)


def pool(states: torch.Tensor, mask: torch.Tensor, how: str) -> torch.Tensor:
    """(B, L, H) states → (B, H) by "avg", "max" or "cls"."""
    present = mask.bool().unsqueeze(-1)
    if how == "avg":
        return states.masked_fill(~present, 0.0).sum(dim=1) / mask.sum(dim=1, keepdim=True).to(states.dtype)
    if how == "max":
        return states.masked_fill(~present, -torch.inf).amax(dim=1)
    if how == "cls":
        return states[:, 0]
    raise ValueError(f"pool={how!r} of the checkpoint is not supported: expected avg, max or cls")


def _normalise_sentences(layer: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Zero mean and unit variance over all real tokens and units of each sentence."""
    present = mask.to(layer.dtype).unsqueeze(-1)
    count = mask.sum(dim=1).to(layer.dtype) * layer.shape[-1]
    mean = ((layer * present).sum(dim=(1, 2)) / count).view(-1, 1, 1)
    variance = (((layer * present - mean) * present) ** 2).sum(dim=(1, 2)) / count
    return (layer - mean) / torch.sqrt(variance + 1e-12).view(-1, 1, 1)


def _activation(name: str) -> nn.Module:
    found = getattr(nn, name.title(), None)
    if found is None:
        raise ValueError(f"activation {name!r} of the checkpoint is not supported")
    return cast(nn.Module, found())
