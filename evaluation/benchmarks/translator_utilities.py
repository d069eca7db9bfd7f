"""What a many-to-many translator says about candidates: a reference-free utility, and one on sentence vectors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from evaluation.training.trainer import length_batches
from evaluation.training.translation import Model, Tokenizer, encode, mean_log_likelihoods, pad_rows
from hf_acpmbr.generation.fingerprint import model_signature
from hf_acpmbr.scoring import Statistics, Utility
from hf_acpmbr.scoring.utility import Kernel, TextTable

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class SourceLikelihood(Utility):
    """Reference-free: log p(source | candidate) per source token, by translating backwards.

    Args:
        model: a translator that knows both directions.
        tokenizer: its M2M100 tokenizer.
        source_language: what was translated.
        target_language: what the candidates are in.
    """

    name = "source-likelihood"
    needs_source = True
    needs_reference = False

    def __init__(self, model: Model, tokenizer: Tokenizer, source_language: str, target_language: str) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.source_language, self.target_language = source_language, target_language
        self.parameters = model.num_parameters()

    def settings(self) -> dict[str, object]:
        """Name the network and its weights; its tokenizer belongs to it."""
        languages = {"source_language": self.source_language, "target_language": self.target_language}
        return {"model": model_signature(self.model), **languages}

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        def score(hypotheses: Ints, references: Ints, sources: Ints) -> Floats:
            candidates = [table.texts[k] for k in hypotheses]
            wanted = [table.sources[k] for k in sources]
            languages = self.target_language, self.source_language  # backwards
            return np.asarray(mean_log_likelihoods(self.model, self.tokenizer, candidates, wanted, *languages))

        return score


class EncoderCosine(Utility):
    """Cosine of the means of the encoder's last states; each text is encoded once.

    Args:
        model: a translator.
        tokenizer: its M2M100 tokenizer.
        language: what the texts are in.
    """

    name = "encoder-cosine"
    symmetric = True
    has_vectors = True

    def __init__(self, model: Model, tokenizer: Tokenizer, language: str) -> None:
        super().__init__()
        self.model, self.tokenizer, self.language = model, tokenizer, language
        self.encoder = model.get_encoder()
        self.parameters = self.encoder.num_parameters()

    def settings(self) -> dict[str, object]:
        return {"model": model_signature(self.model), "language": self.language}

    def kernel(self, table: TextTable, statistics: Statistics) -> _Cosines:
        return _Cosines(self._encoded(encode(self.tokenizer, table.texts, self.language)))

    @torch.inference_mode()
    def _encoded(self, rows: list[list[int]], batch_tokens: int = 4096) -> Floats:
        """Return (n, D) unit vectors."""
        vectors = np.empty((len(rows), self.encoder.config.d_model))
        for batch in length_batches(np.array([[len(row)] for row in rows]), batch_tokens, seed=0, epoch=0):
            ids = pad_rows([rows[k] for k in batch], int(self.tokenizer.pad_token_id))
            mask = pad_rows([[1] * len(rows[k]) for k in batch], 0)
            states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            vectors[batch] = (states * mask[:, :, None]).sum(1).double().numpy()
        return _unit(vectors)


class _Cosines:
    def __init__(self, table: Floats) -> None:
        self.table = table

    def __call__(self, hypotheses: Ints, references: Ints, sources: Ints) -> Floats:
        return np.asarray(np.einsum("kd,kd->k", self.table[hypotheses], self.table[references]))

    def vectors(self, texts: Ints) -> Floats:
        return self.table[texts]

    def vector_scores(self, hypotheses: Ints, vectors: Floats) -> Floats:
        """Return (k, K) cosines with vectors of any length."""
        return np.asarray(self.table[hypotheses] @ _unit(vectors).T)


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
