"""Cosine of sentence vectors with any transformers encoder or sentence-transformers checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Kernel, Statistics, TextTable
from .encoding import SpecialTokens, TextVectors, position_limit
from .network import NetworkUtility

if TYPE_CHECKING:
    import torch

_POOLINGS = ("mean", "cls", "max")


class EmbeddingCosine(NetworkUtility):
    """Cosine similarity of sentence vectors, −1 to 1; N + M encodings serve N·M pairs.

    Args:
        checkpoint: hub id or folder of an encoder; `1_Pooling/config.json` of sentence-transformers is obeyed.
        pooling: "mean", "cls" or "max" over the last states; default: the checkpoint's own, else "mean".
        prefix: text put before every input (such as "query: " for E5).
        options: see `NetworkUtility`.
    """

    files = ("*.json", "*/config.json", "*.safetensors", "*.bin", "*.model", "*.txt")
    symmetric = True
    can_aggregate = True
    has_vectors = True
    description = "Cosine similarity of sentence embeddings."
    homepage = "https://www.sbert.net"
    citation = (
        "@inproceedings{reimers-2019-sentence-bert, title = {Sentence-{BERT}: Sentence Embeddings using Siamese "
        "{BERT}-Networks}, author = {Reimers, Nils and Gurevych, Iryna}, booktitle = {Proceedings of EMNLP}, "
        "year = {2019}}"
    )

    def __init__(self, checkpoint: str, *, pooling: str | None = None, prefix: str = "", **options: Any) -> None:
        super().__init__(checkpoint, **options)
        if pooling is not None and pooling not in _POOLINGS:
            raise ValueError(f"pooling={pooling!r} is unknown: choose one of {', '.join(_POOLINGS)}")
        self._pooling, self.prefix = pooling, prefix

    @property
    def pooling(self) -> str:
        """How token states become one vector."""
        if self._pooling is None:
            self._pooling = "mean"
            path = self.folder / "1_Pooling" / "config.json"
            if path.is_file():
                chosen = json.loads(path.read_text(encoding="utf-8"))
                keys = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens"}
                self._pooling = next((name for name, key in keys.items() if chosen.get(key)), "mean")
        return self._pooling

    @property
    def signature(self) -> str:
        return f"{super().signature}|{self.pooling}" + (f"|prefix:{self.prefix.strip()}" if self.prefix else "")

    def load(self) -> torch.nn.Module:
        from transformers import AutoModel

        return AutoModel.from_pretrained(self.folder)  # type: ignore[no-any-return]

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Unit vectors of each text."""
        return _CosineKernel(self, table.texts, statistics)


class _CosineKernel:
    def __init__(self, utility: EmbeddingCosine, texts: Sequence[str], statistics: Statistics) -> None:
        tokens = SpecialTokens(utility.folder)
        special = len(tokens.before) + len(tokens.after)
        limit = position_limit(tokens.tokenizer, utility.network.config) - special
        rows = [tokens.join(row) for row in tokens.encode([utility.prefix + text for text in texts], limit)]
        self.utility = utility
        self.states = TextVectors(utility, rows, tokens.pad_id, self._encode, statistics)

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        texts, inverse = np.unique(np.concatenate([hypotheses, references]), return_inverse=True)
        vectors = self.vectors(texts)
        h, r = np.split(inverse.reshape(-1), 2)
        if hypotheses.size > texts.size**2 // 4:
            return np.asarray((vectors @ vectors.T)[h, r])
        return np.asarray(np.einsum("kd,kd->k", vectors[h], vectors[r]))

    def vectors(self, texts: IntArray) -> FloatArray:
        """(k, D) unit vectors."""
        import torch

        return np.asarray(torch.stack(self.states.get(texts)).double().cpu().numpy())

    def vector_scores(self, hypotheses: IntArray, vectors: FloatArray) -> FloatArray:
        """(k, K) cosines with given vectors of any length."""
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(self.vectors(hypotheses) @ (vectors / np.maximum(norms, 1e-12)).T)

    def aggregate_scores(self, hypotheses: IntArray, references: IntArray, weights: FloatArray) -> FloatArray:
        """(k, K) cosines with weighted mean vectors."""
        return self.vector_scores(hypotheses, weights @ self.vectors(references))

    def _encode(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        import torch

        states = self.utility.network(input_ids=ids, attention_mask=mask).last_hidden_state
        present = mask.bool().unsqueeze(-1)
        if self.utility.pooling == "cls":
            pooled = states[:, 0]
        elif self.utility.pooling == "max":
            pooled = states.masked_fill(~present, -torch.inf).amax(dim=1)
        else:
            pooled = states.masked_fill(~present, 0).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.nn.functional.normalize(pooled.float(), dim=-1)
