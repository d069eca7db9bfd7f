"""BERTScore (Zhang et al. 2020, https://arxiv.org/abs/1904.09675) with any transformers encoder."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Kernel, Statistics, TextTable
from .encoding import TextVectors, load_encoder
from .network import NetworkOptions, NetworkUtility
from .tokenization import position_limit

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from typing_extensions import Unpack

# Layers that the authors found to agree best with human ratings.
LAYERS = {
    "bert-base-uncased": 9,
    "bert-large-uncased": 18,
    "bert-base-multilingual-cased": 9,
    "roberta-base": 10,
    "roberta-large": 17,
    "xlm-roberta-base": 9,
    "xlm-roberta-large": 17,
    "deberta-xlarge-mnli": 40,
}
_COLUMNS_AT_ONCE = 512  # references whose token similarities are held at a time
_SPACE_FIRST = ("roberta", "gpt2")
_OUTPUTS = ("f1", "precision", "recall")


class BERTScore(NetworkUtility["PreTrainedModel"]):
    """Greedy cosine matching of contextual token states: precision, recall or F1 (default).

    Each text is encoded once; a pair costs one small matrix product.

    Args:
        checkpoint: hub id or folder of an encoder.
        layer: whose states to use; default: the authors' choice for the encoder, else the last.
        output: "f1", "precision" or "recall".
        idf: weight tokens by inverse document frequency over the references.
        baseline: score of unrelated texts; if given, scores are rescaled to (score − baseline) / (1 − baseline).
        options: see `NetworkUtility`.
    """

    encodes_texts = True

    description = "BERTScore: greedy matching of contextual token embeddings."
    homepage = "https://github.com/Tiiiger/bert_score"
    citation = (
        "@inproceedings{bert-score, title = {{BERTScore}: Evaluating Text Generation with {BERT}}, author = {Tianyi "
        "Zhang and Varsha Kishore and Felix Wu and Kilian Q. Weinberger and Yoav Artzi}, booktitle = {ICLR}, "
        "year = {2020}}"
    )

    def __init__(
        self,
        checkpoint: str,
        *,
        layer: int | None = None,
        output: str = "f1",
        idf: bool = False,
        baseline: float | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(checkpoint, **options)
        if output not in _OUTPUTS:
            raise ValueError(f"output={output!r} is unknown: choose one of {', '.join(_OUTPUTS)}")
        if layer is not None and layer < 1:
            raise ValueError(f"layer must be at least 1, got {layer}")
        if baseline is not None and not baseline < 1:
            raise ValueError(f"baseline must be below 1, got {baseline}")
        self.layer = layer or LAYERS.get(checkpoint.rstrip("/").split("/")[-1])
        self.output, self.idf, self.baseline = output, idf, baseline
        self.symmetric = output == "f1"
        self.needs_all_references = idf

    def load(self) -> PreTrainedModel:
        return load_encoder(self.folder, self.layer)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Token states of each text."""
        return _BERTScoreKernel(self, table, statistics)


class _BERTScoreKernel:
    def __init__(self, utility: BERTScore, table: TextTable, statistics: Statistics) -> None:
        tokens = utility.special_tokens()
        config = utility.network.config
        # As bert-score: texts are stripped, and those for RoBERTa begin with a space like words inside a text.
        space = " " if config.model_type in _SPACE_FIRST else ""
        texts = [space + text.strip() if text.strip() else "" for text in table.texts]
        if config.model_type == "bert":  # its tokenizer reads accents in composed form, where it is not the fast one
            texts = [unicodedata.normalize("NFC", text) for text in texts]
        self.utility = utility
        self.contents = tokens.encode(texts, position_limit(tokens.tokenizer, config) - tokens.count)
        self.rows = [tokens.join(content) for content in self.contents]
        self.offset = len(tokens.before)
        self.weightless = {*tokens.before, *tokens.after}
        self.frequency = _Frequency(self.contents, table.reference_counts) if utility.idf else None
        self.states = TextVectors(utility, self.rows, tokens.pad_id, self._encode, statistics)

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        import torch

        out = np.zeros(hypotheses.size)
        with torch.inference_mode():
            for row in _by_row(hypotheses):
                for start in range(0, row.size, _COLUMNS_AT_ONCE):
                    pairs = row[start : start + _COLUMNS_AT_ONCE]
                    out[pairs] = self._row(int(hypotheses[pairs[0]]), references[pairs])
        baseline = self.utility.baseline
        return out if baseline is None else (out - baseline) / (1.0 - baseline)

    def _encode(self, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        import torch

        states = self.utility.network(input_ids=ids, attention_mask=mask).last_hidden_state
        states = torch.nn.functional.normalize(states, dim=-1)
        return [row[:size] for row, size in zip(states, mask.sum(dim=1).tolist(), strict=True)]

    def _row(self, hypothesis: int, references: IntArray) -> FloatArray:
        """Scores of one hypothesis against many references: one product over all their tokens."""
        import torch

        own = self.states.get(np.array([hypothesis]))[0]
        theirs = self.states.get(references)
        sizes = torch.tensor([len(state) for state in theirs])
        similarity = own @ torch.cat(theirs).T
        # (L, k, longest): the tokens of each reference side by side; beyond its end nothing can win.
        position = torch.arange(int(sizes.max()))[None, :]
        starts = torch.cumsum(sizes, 0) - sizes
        inside = (position < sizes[:, None]).to(own.device)
        index = (starts[:, None] + position).clamp(max=similarity.shape[1] - 1).to(own.device)
        spread = similarity[:, index].masked_fill(~inside, -torch.inf)
        weights_h = self._weights([hypothesis])
        weights_r = self._weights(references.tolist())
        precision = (spread.amax(dim=2).double() * weights_h.T.to(own.device)).sum(dim=0)
        best = spread.amax(dim=0).double().masked_fill(~inside, 0.0)
        recall = (best * weights_r.to(own.device)).sum(dim=1)
        # An empty text has neither precision nor recall with anything, as in bert-score.
        both = bool(self.contents[hypothesis]) & np.array([bool(self.contents[k]) for k in references.tolist()])
        return self._output(precision.cpu().numpy() * both, recall.cpu().numpy() * both)

    def _output(self, precision: FloatArray, recall: FloatArray) -> FloatArray:
        if self.utility.output == "precision":
            return precision
        if self.utility.output == "recall":
            return recall
        total = precision + recall
        return np.where(total != 0, 2 * precision * recall / np.where(total != 0, total, 1.0), 0.0)

    def _weights(self, texts: Sequence[int]) -> torch.Tensor:
        """(k, longest) share of each token; special tokens weigh nothing, and an empty text has no weights."""
        import torch

        out = torch.zeros(len(texts), max(len(self.rows[k]) for k in texts), dtype=torch.float64)
        for place, k in enumerate(texts):
            content = self.contents[k]
            if content:
                raw = (
                    self.frequency.weights(content) if self.frequency else torch.ones(len(content), dtype=torch.float64)
                )
                raw[[token in self.weightless for token in content]] = 0.0
                out[place, self.offset : self.offset + len(content)] = raw / raw.sum().clamp(min=1e-12)
        return out


class _Frequency:
    """idf(token) = log((n + 1) / (documents with it + 1)) over n references, repeated ones counted as often."""

    def __init__(self, documents: Sequence[Sequence[int]], repeats: IntArray) -> None:
        self.size = int(repeats.sum())
        self.counts: dict[int, int] = {}
        for document, times in zip(documents, repeats.tolist(), strict=True):
            for token in set(document):
                self.counts[token] = self.counts.get(token, 0) + times

    def weights(self, tokens: Sequence[int]) -> torch.Tensor:
        import torch

        counts = torch.tensor([self.counts.get(token, 0) for token in tokens], dtype=torch.float64)
        return torch.log((self.size + 1) / (counts + 1))


def _by_row(rows: IntArray) -> list[IntArray]:
    """Positions of each distinct value."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1) if rows.size else []
