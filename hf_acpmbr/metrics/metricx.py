"""MetricX-23 and MetricX-24 (Juraska et al. 2023, 2024, https://aclanthology.org/2024.wmt-1.35): predicted errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import MT5ForConditionalGeneration

from ..candidates import FloatArray, IntArray
from ..scoring.checkpoints import checkpoint_folder, naming, read_config, read_pieces, read_weights, revision_of
from ..scoring.utility import Kernel, Statistics, TextTable
from .network import NetworkUtility, padded

_TOKENIZER_FILES = ("spiece.model",)
_WORST = 25.0  # the score of the worst translation
_SCORE_TOKEN = 250089  # <extra_id_10> of mT5's vocabulary
# The parts of an input in order, and its tokens at most (the end-of-text token takes one place before it is stripped).
_LAYOUTS = {24: (("source", "candidate", "reference"), 1535), 23: (("candidate", "reference", "source"), 1023)}


class MetricX(NetworkUtility["MetricXNetwork"]):
    """mT5 that predicts an MQM error score from 0 (perfect) to 25; lower is better.

    Args:
        checkpoint: `google/metricx-24-hybrid-{large,xl,xxl}-v2p6`, `google/metricx-23[-qe]-{large,xl,xxl}-v2p0`, or a
            folder in their format.
        version: 24 or 23; default: from the checkpoint's name.
        reference_free: score without references (quality estimation); default: True for "-qe-" checkpoints.
        tokenizer: folder or hub id with mT5's spiece.model; default: the checkpoint's own, else google/mt5-xl.
        score_token: vocabulary id whose logit is the score.
        options: see `NetworkUtility`.
    """

    higher_is_better = False
    scale = _WORST
    half = "bfloat16"  # mT5 overflows in float16
    files = ("*.json", "*.safetensors", "*.bin", "spiece.model")

    def __init__(
        self,
        checkpoint: str,
        *,
        version: int | None = None,
        reference_free: bool | None = None,
        tokenizer: str | None = None,
        score_token: int = _SCORE_TOKEN,
        **options: Any,
    ) -> None:
        super().__init__(checkpoint, **options)
        name = checkpoint.lower()
        self.version = version or (23 if "metricx-23" in name else 24)
        if self.version not in _LAYOUTS:
            raise ValueError(f"version must be 23 or 24, got {version}")
        self.reference_free = "-qe-" in name if reference_free is None else reference_free
        self.needs_reference = not self.reference_free
        self.needs_source = self.version == 24 or self.reference_free
        self.tokenizer = tokenizer
        self.score_token = score_token

    def settings(self) -> dict[str, object]:
        """Return the options; the tokenizer by its content."""
        return {**super().settings(), "tokenizer": revision_of(self.tokenizer_folder(), _TOKENIZER_FILES)}

    def load(self) -> MetricXNetwork:
        """Load the network.

        transformers 5 ties mT5's output matrix to the embeddings whatever config.json says, so the one row of it that
        is needed is taken from the weights file, and scaled (by d_model^-½) only if the checkpoint itself is tied: if
        it says so, or if its file has no output matrix.
        """
        config, weights = read_config(self.folder), read_weights(self.folder)
        tied = "lm_head.weight" not in weights or config.get("tie_word_embeddings", False)
        matrix = weights.get("lm_head.weight", weights.get("shared.weight"))
        if matrix is None or self.score_token >= len(matrix):
            raise ValueError(
                f"{self.folder} has no output for score_token={self.score_token}: is it a MetricX checkpoint?"
            )
        readout = matrix[self.score_token].clone() * (config["d_model"] ** -0.5 if tied else 1.0)
        del weights, matrix
        with naming(self.folder):
            return MetricXNetwork(MT5ForConditionalGeneration.from_pretrained(self.folder), readout)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Encode each text with its label; mT5's pieces never cross a space, so inputs are put together from parts."""
        order, limit = _LAYOUTS[self.version]
        absent = {"source": not self.needs_source, "reference": not self.needs_reference}
        texts = {part: table.sources if part == "source" else table.texts for part in order if not absent.get(part)}
        ids = {part: self.pieces.encode([f"{part}: {text}" for text in texts[part]]) for part in texts}
        sizes = {part: np.array([len(row) for row in rows], dtype=np.int64) for part, rows in ids.items()}

        def scores(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            of = {"source": sources, "candidate": hypotheses, "reference": references}

            def forward(batch: IntArray) -> FloatArray:
                inputs = [[token for part, rows in ids.items() for token in rows[of[part][k]]][:limit] for k in batch]
                return np.asarray(self.network(**padded(inputs, 0, self.device)).cpu().double().numpy())

            lengths = sum((size[of[part]] for part, size in sizes.items()), np.zeros(hypotheses.size, dtype=np.int64))
            return self.score_sequences(np.minimum(lengths, limit), forward, statistics)

        return scores

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.tokenizer_folder() / "spiece.model")

    def tokenizer_folder(self) -> Path:
        if self.tokenizer is None and (self.folder / "spiece.model").is_file():
            return self.folder
        return checkpoint_folder(self.tokenizer or "google/mt5-xl", _TOKENIZER_FILES)


class Pieces:
    """Ids of texts in mT5's vocabulary.

    The vocabulary can spell unknown characters as bytes. MetricX's own program does not: its converted tokenizer has
    one unknown token for each run of them, and so have these ids.

    Args:
        path: spiece.model.
    """

    def __init__(self, path: Path) -> None:
        self.model = read_pieces(path)
        self.unknown = int(self.model.unk_id())
        self.bytes = frozenset(k for k in range(self.model.get_piece_size()) if self.model.is_byte(k))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without an end token."""
        rows = []
        for row in self.model.encode(list(texts)):
            spelled = [token in self.bytes for token in row]
            known = [self.unknown if byte else token for token, byte in zip(row, spelled, strict=True)]
            keep = [not (byte and before) for byte, before in zip(spelled, [False, *spelled], strict=False)]
            rows.append(list(compress(known, keep)))
        return rows


class MetricXNetwork(nn.Module):
    """(ids, mask) → error score of each row, clamped to [0, 25]."""

    def __init__(self, model: MT5ForConditionalGeneration, readout: torch.Tensor) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder
        self.readout = nn.Parameter(readout)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Score (B, L) ids and mask as (B,)."""
        encoded = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        start = torch.zeros(len(input_ids), 1, dtype=torch.long, device=input_ids.device)
        decoded = self.decoder(
            input_ids=start, encoder_hidden_states=encoded, encoder_attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        return cast(torch.Tensor, (decoded[:, 0] @ self.readout).float().clamp(0.0, _WORST))
