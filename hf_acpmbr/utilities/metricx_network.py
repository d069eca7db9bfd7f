"""MetricX's network: a stock mT5 whose only output is one logit of the first decoder step."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import MT5ForConditionalGeneration

from .checkpoints import read_config, read_weights

WORST = 25.0


class MetricXNetwork(nn.Module):
    """(ids, mask) → error score of each row, clamped to [0, 25]."""

    def __init__(self, model: MT5ForConditionalGeneration, readout: torch.Tensor) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder
        self.readout = nn.Parameter(readout)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, L) ids and mask → (B,) scores."""
        encoded = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        start = torch.zeros(ids.shape[0], 1, dtype=torch.long, device=ids.device)
        decoded = self.decoder(
            input_ids=start, encoder_hidden_states=encoded, encoder_attention_mask=mask, use_cache=False
        ).last_hidden_state
        return cast(torch.Tensor, (decoded[:, 0] @ self.readout).float().clamp(0.0, WORST))


def metricx_network(folder: Path, score_token: int) -> MetricXNetwork:
    """The network from a folder in mT5's format.

    transformers 5 ties mT5's output matrix to the embeddings whatever config.json says, so the one row of it that is
    needed is taken from the weights file, and scaled (by d_model^-½) only if the checkpoint itself is tied: if it says
    so, or if its file has no output matrix.
    """
    config, weights = read_config(folder), read_weights(folder)
    tied = "lm_head.weight" not in weights or config.get("tie_word_embeddings", False)
    matrix = weights.get("lm_head.weight", weights.get("shared.weight"))
    if matrix is None or score_token >= matrix.shape[0]:
        raise ValueError(f"{folder} has no output for score_token={score_token}: is it a MetricX checkpoint?")
    readout = matrix[score_token].clone() * (config["d_model"] ** -0.5 if tied else 1.0)
    del weights, matrix
    return MetricXNetwork(MT5ForConditionalGeneration.from_pretrained(folder), readout)
