"""MetricX-23 and MetricX-24 (Juraska et al. 2023, 2024, https://aclanthology.org/2024.wmt-1.35): predicted errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn
from transformers import MT5ForConditionalGeneration

from ..candidates import IntArray
from ..scoring.batches import pad
from ..scoring.checkpoints import checkpoint_folder, read_config, read_weights, revision_of
from ..scoring.utility import Kernel, Statistics, TextTable
from .network import NetworkOptions, NetworkUtility, PairNetworkKernel

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TOKENIZER_FILES = ("spiece.model",)
_WORST = 25.0  # the score of the worst translation
_SCORE_TOKEN = 250089  # <extra_id_10> of mT5's vocabulary


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
    description = "MetricX: mT5 that regresses MQM error scores (0 best, 25 worst)."
    homepage = "https://github.com/google-research/metricx"
    citation = (
        "@inproceedings{juraska-etal-2024-metricx, title = {{M}etric{X}-24: The {G}oogle Submission to the {WMT} 2024 "
        "Metrics Shared Task}, author = {Juraska, Juraj and Deutsch, Daniel and Finkelstein, Mara and Freitag, "
        "Markus}, booktitle = {Proceedings of WMT}, year = {2024}}"
    )

    def __init__(
        self,
        checkpoint: str,
        *,
        version: int | None = None,
        reference_free: bool | None = None,
        tokenizer: str | None = None,
        score_token: int = _SCORE_TOKEN,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(checkpoint, **options)
        name = checkpoint.lower()
        self.version = version or (23 if "metricx-23" in name else 24)
        if self.version not in (23, 24):
            raise ValueError(f"version must be 23 or 24, got {version}")
        self.reference_free = "-qe-" in name if reference_free is None else reference_free
        self.needs_reference = not self.reference_free
        self.needs_source = self.version == 24 or self.reference_free
        self.tokenizer = tokenizer
        self.score_token = score_token
        self._pieces: Pieces | None = None

    def settings(self) -> dict[str, object]:
        """The options; the tokeniser by its content."""
        return {**super().settings(), "tokenizer": revision_of(self.tokenizer_folder(), _TOKENIZER_FILES)}

    def load(self) -> MetricXNetwork:
        return metricx_network(self.folder, self.score_token)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Ids of each text with its label; mT5's pieces never cross a space, so inputs are put together from parts."""
        if self._pieces is None:
            self._pieces = Pieces(self.tokenizer_folder() / "spiece.model")
        return _MetricXKernel(self, statistics, self._pieces, table)

    def tokenizer_folder(self) -> Path:
        """Local folder of spiece.model."""
        if self.tokenizer is None and (self.folder / "spiece.model").is_file():
            return self.folder
        return checkpoint_folder(self.tokenizer or "google/mt5-xl", _TOKENIZER_FILES)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_pieces": None}


class Pieces:
    """Ids of texts in mT5's vocabulary.

    The vocabulary can spell unknown characters as bytes. MetricX's own program does not: its converted tokeniser has
    one unknown token for each run of them, and so have these ids.

    Args:
        path: spiece.model.
    """

    def __init__(self, path: Path) -> None:
        import sentencepiece

        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.unknown = int(self.model.unk_id())
        self.bytes = frozenset(k for k in range(self.model.get_piece_size()) if self.model.is_byte(k))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without an end token."""
        rows: list[list[int]] = self.model.encode(list(texts))
        return [self._without_bytes(row) for row in rows] if self.bytes else rows

    def _without_bytes(self, row: list[int]) -> list[int]:
        out: list[int] = []
        previous = False
        for token in row:
            spelled = token in self.bytes
            if not (spelled and previous):
                out.append(self.unknown if spelled else token)
            previous = spelled
        return out


class _MetricXKernel(PairNetworkKernel):
    def __init__(self, utility: MetricX, statistics: Statistics, pieces: Pieces, table: TextTable) -> None:
        super().__init__(utility, statistics)
        version_24 = utility.version == 24
        order = ("source", "candidate", "reference") if version_24 else ("candidate", "reference", "source")
        needed = {"source": utility.needs_source, "candidate": True, "reference": utility.needs_reference}
        self.order = [part for part in order if needed[part]]
        self.ids = {
            part: pieces.encode([f"{part}: {text}" for text in (table.sources if part == "source" else table.texts)])
            for part in self.order
        }
        self.sizes = {part: np.array([len(row) for row in rows], dtype=np.int64) for part, rows in self.ids.items()}
        # The end-of-text token takes one place before it is stripped.
        self.limit = (1536 if version_24 else 1024) - 1

    def lengths(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> IntArray:
        of = {"source": sources, "candidate": hypotheses, "reference": references}
        total = sum((self.sizes[part][of[part]] for part in self.order), np.zeros(hypotheses.size, dtype=np.int64))
        return np.minimum(total, self.limit)

    def forward(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> torch.Tensor:
        of = {"source": sources, "candidate": hypotheses, "reference": references}
        rows = []
        for k in range(hypotheses.size):
            row = [token for part in self.order for token in self.ids[part][of[part][k]]]
            rows.append(row[: self.limit])
        device = self.utility.device
        ids, mask = pad(rows, 0, device), pad([[1] * len(row) for row in rows], 0, device)
        scores: torch.Tensor = self.utility.network(ids, mask)
        return scores


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
        return cast(torch.Tensor, (decoded[:, 0] @ self.readout).float().clamp(0.0, _WORST))


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
