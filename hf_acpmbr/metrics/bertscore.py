"""BERTScore (Zhang et al. 2020, https://arxiv.org/abs/1904.09675) with any transformers encoder."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from ..scoring.utility import Kernel, Statistics, TextTable
from .encoding import TextVectors, load_encoder
from .network import NetworkOptions, NetworkUtility
from .tokenization import SpecialTokens, position_limit

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel
    from typing_extensions import Unpack

_COLUMNS_AT_ONCE = 512  # references whose token similarities are held at a time
_SPACE_FIRST = ("RobertaTokenizer", "GPT2Tokenizer")
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
        self.layer = layer or _LAYERS.get(checkpoint.rstrip("/").split("/")[-1])
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
        self.utility = utility
        self.rows = _token_rows(tokens, table.texts, utility.network.config)
        weight = _idf(self.rows, table.reference_counts) if utility.idf else _equal_weights(tokens)
        self.shares = [_shares(row, weight) for row in self.rows]
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
        shares = torch.nn.utils.rnn.pad_sequence([self.shares[k] for k in references.tolist()], batch_first=True)
        precision = (spread.amax(dim=2).double() * self.shares[hypothesis][:, None].to(own.device)).sum(dim=0)
        best = spread.amax(dim=0).double().masked_fill(~inside, 0.0)
        recall = (best * shares.to(own.device)).sum(dim=1)
        # bert-score takes two tokens for an empty text, whose precision and recall are 0 (and so is F1 if they are
        # special ones, which weigh nothing).
        empty = (len(own) == 2) | (sizes.numpy() == 2)
        return self._output(precision.cpu().numpy(), recall.cpu().numpy(), empty)

    def _output(self, precision: FloatArray, recall: FloatArray, empty: npt.NDArray[np.bool_]) -> FloatArray:
        if self.utility.output == "precision":
            return np.where(empty, 0.0, precision)
        if self.utility.output == "recall":
            return np.where(empty, 0.0, recall)
        total = precision + recall
        return np.where(total != 0, 2 * precision * recall / np.where(total != 0, total, 1.0), 0.0)


def _token_rows(tokens: SpecialTokens, texts: Sequence[str], config: PretrainedConfig) -> list[list[int]]:
    """Ids of each text with special tokens, as bert-score makes them.

    Texts are stripped, and those for RoBERTa begin with a space like words inside a text. DeBERTa's positions are
    relative: its texts are cut only where the tokeniser has a limit.
    """
    texts = [text.strip() for text in texts]
    if tokens.splits_words:  # the tokenisers that bert-score uses read accents in composed form
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    if tokens.kind(config.model_type) in _SPACE_FIRST:
        texts = [f" {text}" if text else "" for text in texts]
    absolute = getattr(config, "position_biased_input", True)
    limit = position_limit(tokens.tokenizer, config if absolute else None)
    return [tokens.join(row) for row in tokens.encode(texts, limit - tokens.count)]


def _equal_weights(tokens: SpecialTokens) -> Callable[[int], float]:
    """Every token weighs the same, but for those that begin and separate texts (T5's end of a text is neither)."""
    weightless = tokens.marks
    return lambda token: float(token not in weightless)


def _idf(documents: Sequence[Sequence[int]], repeats: IntArray) -> Callable[[int], float]:
    """idf(token) = log((n + 1) / (documents with it + 1)) over n references, repeated ones counted as often."""
    counts: Counter[int] = Counter()
    for document, times in zip(documents, repeats.tolist(), strict=True):
        for token in set(document):
            counts[token] += times
    size = int(repeats.sum())
    return lambda token: math.log((size + 1) / (counts[token] + 1))


def _shares(row: Sequence[int], weight: Callable[[int], float]) -> torch.Tensor:
    """(L,) weights of a text's tokens with a sum of 1, or all 0."""
    import torch

    raw = torch.tensor([weight(token) for token in row], dtype=torch.float64)
    return raw / raw.sum().clamp(min=1e-12)


def _by_row(rows: IntArray) -> list[IntArray]:
    """Positions of each distinct value."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1) if rows.size else []


# Which layer of an encoder to take: the one that the authors found to agree best with human ratings.
_BY_LAYER = {
    1: "byt5-small",
    2: "blenderbot-400M-distill",
    4: (
        "bert-base-uncased-embedding-relative-key deberta-v3-small distilbert-base-turkish-cased "
        "distilbert-base-uncased-distilled-squad prophetnet-large-uncased"
    ),
    5: "distilbert-base-multilingual-cased distilbert-base-uncased distilroberta-base xlnet-base-cased",
    6: "bart-base led-base-16384 t5-small xlm-mlm-en-2048",
    7: (
        "bert-base-uncased-embedding-relative-key-query blenderbot_small-90M longformer-base-4096 "
        "prophetnet-large-uncased-cnndm roberta-base-openai-detector xlnet-large-cased "
        "xprophetnet-large-wiki100-cased"
    ),
    8: (
        "albert-xxlarge-v1 albert-xxlarge-v2 bert-base-chinese bigbird-base-trivia-itc mpnet-base mt5-small "
        "pegasus-large scibert_scivocab_uncased spanbert-base-cased unsup-simcse-roberta-base"
    ),
    9: (
        "albert-base-v2 bart-large-xsum bert-base-cased-finetuned-mrpc bert-base-multilingual-cased bert-base-uncased "
        "bertweet-base conv-bert-medium-small deberta-base deberta-base-mnli deberta-v3-base "
        "electra-base-discriminator electra-small-generator scibert_basevocab_uncased scibert_scivocab_cased "
        "squeezebert-mnli squeezebert-mnli-headless squeezebert-uncased xlm-roberta-base"
    ),
    10: (
        "albert-base-v1 bart-large bart-large-cnn bert-base-turkish-cased bigbird-roberta-base conv-bert-base "
        "conv-bert-small deberta-v2-xlarge deberta-v3-xsmall electra-base-generator finbert mdeberta-v3-base "
        "roberta-base sup-simcse-bert-base-uncased sup-simcse-roberta-base unsup-simcse-bert-base-uncased "
        "xlm-mlm-100-1280"
    ),
    11: "bart-large-mnli electra-small-discriminator mt5-base pegasus-xsum t5-base t5_paraphraser",
    12: (
        "T5_Paraphrase_Paws deberta-v3-large mbart-large-50 mbart-large-50-many-to-many-mmt "
        "mbart-large-50-one-to-many-mmt mbart-large-cc25 mbart-large-en-ro"
    ),
    13: "albert-xlarge-v2 unsup-simcse-roberta-large",
    14: (
        "albert-large-v2 bigbird-roberta-large electra-large-discriminator longformer-large-4096 "
        "longformer-large-4096-finetuned-triviaqa"
    ),
    15: "pegasus_paraphrase roberta-large-openai-detector",
    16: "albert-xlarge-v1 deberta-large sup-simcse-roberta-large",
    17: "albert-large-v1 byt5-base deberta-v2-xlarge-mnli roberta-large spanbert-large-cased xlm-roberta-large",
    18: (
        "DeBERTa-v3-large-mnli bert-large-uncased deberta-large-mnli deberta-xlarge electra-large-generator "
        "sup-simcse-bert-large-uncased unsup-simcse-bert-large-uncased"
    ),
    19: "bert-large-uncased-whole-word-masking-embedding-relative-key-query mt5-large roberta-large-mnli",
    21: "deberta-v2-xxlarge",
    22: "deberta-v2-xxlarge-mnli",
    23: "t5-large",
    24: "mt5-xl",
    30: "byt5-large",
    40: "deberta-xlarge-mnli",
}
_LAYERS = {name: layer for layer, names in _BY_LAYER.items() for name in names.split()}
