"""Cosine of sentence vectors (Reimers & Gurevych 2019, https://aclanthology.org/D19-1410).

The library sentence-transformers, an extra of this package, makes the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..candidates import FloatArray, IntArray
from ..config import integer, one_of, optional
from ..scoring.checkpoints import naming
from ..scoring.utility import SENTENCE_TOKENS, Kernel, Statistics, TextTable
from .network import NetworkUtility
from .tokenization import NO_LIMIT, position_limit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_POOLINGS = ("mean", "cls", "max")
_WIDTH = 768  # numbers of a vector, about


class EmbeddingCosine(NetworkUtility["SentenceTransformer"]):
    """Cosine similarity of sentence vectors, −1 to 1; N + M encodings serve N·M pairs.

    A checkpoint of sentence-transformers is used as its own files say (pooling, dense layers, longest input, prompt);
    of a plain encoder the mean of the last states is the vector.

    Args:
        checkpoint: hub id or folder of an encoder.
        pooling: "mean", "cls" or "max" over the last states; default: the checkpoint's own, else "mean".
        prefix: text put before every input (such as "query: " for E5); default: the checkpoint's own, else none.
        max_length: longest input in tokens; default: the checkpoint's own.
        options: see `NetworkUtility`.
    """

    encodes_texts = True

    symmetric = True
    can_aggregate = True
    has_vectors = True

    def __init__(
        self,
        checkpoint: str,
        *,
        pooling: str | None = None,
        prefix: str | None = None,
        max_length: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(checkpoint, **options)
        self.pooling, self.prefix = optional(one_of(*_POOLINGS))("pooling", pooling), prefix
        self.max_length = optional(integer(3))("max_length", max_length)

    def prices(self) -> tuple[float, float]:
        return _WIDTH / SENTENCE_TOKENS, float(self.parameters)

    def load(self) -> SentenceTransformer:
        try:
            from sentence_transformers import SentenceTransformer
            from sentence_transformers.sentence_transformer.modules import Pooling
        except ImportError as error:
            raise ImportError(
                f"embedding-cosine needs the library sentence-transformers from version 6 on ({error}), this package's "
                "extra 'sentence-transformers': pip install 'sentence-transformers>=6'"
            ) from error
        with naming(self.folder):
            network = SentenceTransformer(
                str(self.folder), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"}
            )
        encoder = getattr(network[0], "auto_model", None)
        if encoder is None:
            raise ValueError(f"{self.checkpoint} has no transformers encoder: embedding-cosine needs one")
        if self.pooling is not None:
            places = [k for k, module in enumerate(network) if isinstance(module, Pooling)]
            if not places:
                raise ValueError(f"{self.checkpoint} pools no token states: leave pooling= away")
            network[places[0]] = Pooling(network[places[0]].embedding_dimension, self.pooling)
        longest = self.max_length or network.max_seq_length or NO_LIMIT
        network.max_seq_length = min(longest, position_limit(None, encoder.config))
        return network

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        return _CosineKernel(self, table.texts, statistics)


class _CosineKernel:
    def __init__(self, utility: EmbeddingCosine, texts: Sequence[str], statistics: Statistics) -> None:
        self.texts, self.prefix, self.network = texts, utility.prefix, utility.network
        # For the lengths; the library itself tokenizes the texts again.
        cut = {"truncation": True, "max_length": self.network.max_seq_length}
        rows = self.network.tokenizer(list(texts), **cut)["input_ids"] if texts else []
        self.states = utility.of_each_text([len(row) for row in rows], self._encode, statistics)

    def _encode(self, texts: IntArray) -> torch.Tensor:
        """Return unit vectors: what the library's `encode` makes of one batch."""
        batch = [self.texts[k] for k in texts]
        options = {"batch_size": len(batch), "show_progress_bar": False, "convert_to_tensor": True}
        return torch.nn.functional.normalize(self.network.encode(batch, prompt=self.prefix, **options).float(), dim=-1)

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        texts, inverse = np.unique(np.concatenate([hypotheses, references]), return_inverse=True)
        vectors = self.vectors(texts)
        h, r = np.split(inverse.reshape(-1), 2)
        if hypotheses.size > texts.size**2 // 4:
            return np.asarray((vectors @ vectors.T)[h, r])
        return np.asarray(np.einsum("kd,kd->k", vectors[h], vectors[r]))

    def vectors(self, texts: IntArray) -> FloatArray:
        """Return (k, D) unit vectors."""
        return np.asarray(torch.stack(self.states.get(texts)).cpu().double().numpy())

    def vector_scores(self, hypotheses: IntArray, vectors: FloatArray) -> FloatArray:
        """Return (k, K) cosines with given vectors of any length."""
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(self.vectors(hypotheses) @ (vectors / np.maximum(norms, 1e-12)).T)
