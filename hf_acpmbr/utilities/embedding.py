"""Cosine of sentence vectors with any transformers encoder or sentence-transformers checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Kernel, Statistics, TextTable
from .encoding import TextVectors
from .network import NetworkOptions, NetworkUtility
from .sentence_modules import POOLINGS, SentenceModules
from .tokenization import NO_LIMIT, position_limit

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .embedding_network import SentenceEncoder


class EmbeddingCosine(NetworkUtility["SentenceEncoder"]):
    """Cosine similarity of sentence vectors, −1 to 1; N + M encodings serve N·M pairs.

    A sentence-transformers folder is used as its own files say: modules.json (pooling, dense layers), longest input,
    lower case and default prompt.

    Args:
        checkpoint: hub id or folder of an encoder.
        pooling: "mean", "cls" or "max" over the last states; default: the checkpoint's own, else "mean".
        prefix: text put before every input (such as "query: " for E5); default: the checkpoint's own, else none.
        max_length: longest input in tokens; default: the checkpoint's own.
        options: see `NetworkUtility`.
    """

    encodes_texts = True

    files = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt")
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

    def __init__(
        self,
        checkpoint: str,
        *,
        pooling: str | None = None,
        prefix: str | None = None,
        max_length: int | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(checkpoint, **options)
        if pooling is not None and pooling not in POOLINGS:
            raise ValueError(f"pooling={pooling!r} is unknown: choose one of {', '.join(POOLINGS)}")
        if max_length is not None and max_length < 3:
            raise ValueError(f"max_length must be at least 3, got {max_length}")
        self.pooling, self.prefix, self.max_length = pooling, prefix, max_length
        self._modules: SentenceModules | None = None

    @property
    def modules(self) -> SentenceModules:
        """What the checkpoint says about its vectors."""
        if self._modules is None:
            self._modules = SentenceModules.read(self.folder)
        return self._modules

    @property
    def poolings(self) -> tuple[str, ...]:
        """How token states become one vector."""
        return self.modules.pooling if self.pooling is None else (self.pooling,)

    def tokenizer_folder(self) -> Path:
        """Local folder of the encoder and its tokeniser."""
        return self.modules.encoder

    def load(self) -> SentenceEncoder:
        from .embedding_network import sentence_encoder

        return sentence_encoder(self.modules, self.poolings)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Unit vectors of each text."""
        return _CosineKernel(self, table.texts, statistics)


class _CosineKernel:
    def __init__(self, utility: EmbeddingCosine, texts: Sequence[str], statistics: Statistics) -> None:
        modules = utility.modules
        tokens = utility.special_tokens()
        self.utility = utility
        longest = utility.max_length or modules.max_length
        limit = min(longest or NO_LIMIT, position_limit(tokens.tokenizer, utility.network.encoder.config))
        prefix = modules.prompt if utility.prefix is None else utility.prefix
        inputs = [(prefix + text).strip() for text in texts]
        inputs = [text.lower() for text in inputs] if modules.lowercase else inputs
        rows = [tokens.join(row) for row in tokens.encode(inputs, limit - tokens.count)]
        self.states = TextVectors(utility, rows, tokens.pad_id, utility.network, statistics)

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
