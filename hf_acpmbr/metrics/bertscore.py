"""BERTScore (Zhang et al. 2020, https://arxiv.org/abs/1904.09675) with any transformers encoder."""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from ..candidates import FloatArray, IntArray
from ..config import integer, number, one_of, optional
from ..scoring.checkpoints import naming
from ..scoring.utility import SENTENCE_TOKENS, Kernel, Statistics, TextTable
from .network import NetworkUtility, padded
from .tokenization import SpecialTokens, position_limit

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_COLUMNS_AT_ONCE = 512  # references whose token similarities are held at a time
_SPACE_FIRST = ("RobertaTokenizer", "GPT2Tokenizer")
_OUTPUTS = ("f1", "precision", "recall")
_LAYER_COUNTS = ("encoder_layers", "num_encoder_layers")  # of encoder-decoders that count on both sides
_EACH_LAYER = ("attention_window", "layer_types")  # lists of settings, one per layer


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

    def __init__(
        self,
        checkpoint: str,
        *,
        layer: int | None = None,
        output: str = "f1",
        idf: bool = False,
        baseline: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(checkpoint, **options)
        layer = optional(integer(1))("layer", layer)
        # Encoders by the layer that the authors found to agree best with human ratings.
        found = json.loads(Path(__file__).with_name("bertscore_layers.json").read_text(encoding="utf-8"))
        name = checkpoint.rstrip("/").split("/")[-1]
        self.layer = layer or next((int(best) for best, encoders in found.items() if name in encoders), None)
        self.output, self.idf = one_of(*_OUTPUTS)("output", output), idf
        self.baseline = optional(number(high=1, below=True))("baseline", baseline)
        self.symmetric = output == "f1"
        self.needs_all_references = idf

    def prices(self) -> tuple[float, float]:
        # A pair is a product of all token states of one text with all of the other.
        width = int(self.network.config.hidden_size)
        return float(SENTENCE_TOKENS * width), float(self.parameters)

    def load(self) -> PreTrainedModel:
        """Load the (encoder's) layers up to `layer`; those above are neither loaded nor computed."""
        from transformers import AutoConfig, AutoModel
        from transformers.utils import logging

        with naming(self.folder):
            config = AutoConfig.from_pretrained(self.folder, trust_remote_code=False)
        if self.layer is not None:
            _keep_layers(config, self.layer, self.folder)
        # It would report the layers that are left out on purpose, and heads that no metric uses.
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()
        try:
            with naming(self.folder):
                model = AutoModel.from_pretrained(self.folder, config=config, trust_remote_code=False)
        finally:
            logging.set_verbosity(verbosity)
        both_sides = hasattr(model, "encoder") and hasattr(model, "decoder")  # T5, BART
        return cast("PreTrainedModel", model.encoder if both_sides else model)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        return _BERTScoreKernel(self, table, statistics)


class _BERTScoreKernel:
    def __init__(self, utility: BERTScore, table: TextTable, statistics: Statistics) -> None:
        self.utility, tokens = utility, utility.special_tokens
        self.rows = _token_rows(tokens, table.texts, utility.network.config)
        if utility.idf:  # log((n + 1) / (documents with the token + 1)) over n references, repetitions counted
            counts: Counter[int] = Counter()
            for row, times in zip(self.rows, table.reference_counts.tolist(), strict=True):
                counts.update(dict.fromkeys(row, times))
            size = int(table.reference_counts.sum())
            weights = [[math.log((size + 1) / (counts[token] + 1)) for token in row] for row in self.rows]
        else:  # all alike, but for those that begin and separate texts (T5's end of a text is neither)
            weights = [[float(token not in tokens.marks) for token in row] for row in self.rows]
        raw = [torch.tensor(row, dtype=torch.float64) for row in weights]
        self.shares = [row / row.sum().clamp(min=1e-12) for row in raw]
        self.pad_id = tokens.pad_id
        self.states = utility.of_each_text([len(row) for row in self.rows], self._encode, statistics)

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        out = np.zeros(hypotheses.size)
        with torch.inference_mode():
            order = np.argsort(hypotheses, kind="stable")
            for row in np.split(order, np.flatnonzero(np.diff(hypotheses[order])) + 1):
                for start in range(0, row.size, _COLUMNS_AT_ONCE):
                    pairs = row[start : start + _COLUMNS_AT_ONCE]
                    out[pairs] = self._row(int(hypotheses[pairs[0]]), references[pairs])
        baseline = self.utility.baseline
        return out if baseline is None else (out - baseline) / (1.0 - baseline)

    def _encode(self, texts: IntArray) -> list[torch.Tensor]:
        rows = [self.rows[k] for k in texts]
        states = self.utility.network(**padded(rows, self.pad_id, self.utility.device)).last_hidden_state
        states = torch.nn.functional.normalize(states, dim=-1)
        return [state[: len(row)] for state, row in zip(states, rows, strict=True)]

    def _row(self, hypothesis: int, references: IntArray) -> FloatArray:
        """Score one hypothesis against many references: one product over all their tokens."""
        own = self.states.get(np.array([hypothesis]))[0]
        theirs = self.states.get(references)
        sizes = torch.tensor([len(state) for state in theirs])
        similarity = own @ torch.cat(theirs).T
        # (L, k, longest): the tokens of each reference side by side; beyond its end nothing can win.
        position = torch.arange(int(sizes.max()))[None, :]
        starts = torch.cumsum(sizes, 0) - sizes
        inside = position < sizes[:, None]
        index = (starts[:, None] + position).clamp(max=similarity.shape[1] - 1).to(own.device)
        spread = similarity[:, index].masked_fill(~inside.to(own.device), -torch.inf)
        shares = torch.nn.utils.rnn.pad_sequence([self.shares[k] for k in references.tolist()], batch_first=True)
        precision = (spread.amax(dim=2).cpu().double() * self.shares[hypothesis][:, None]).sum(dim=0)
        best = spread.amax(dim=0).cpu().double().masked_fill(~inside, 0.0)
        recall = (best * shares).sum(dim=1)
        # bert-score takes two tokens for an empty text, whose precision and recall are 0 (and so is F1 if they are
        # special ones, which weigh nothing).
        empty = (len(own) == 2) | (sizes.numpy() == 2)
        p, r = precision.numpy(), recall.numpy()
        if self.utility.output != "f1":
            return np.where(empty, 0.0, p if self.utility.output == "precision" else r)
        return np.where(p + r != 0, 2 * p * r / np.where(p + r != 0, p + r, 1.0), 0.0)


def _token_rows(tokens: SpecialTokens, texts: Sequence[str], config: PretrainedConfig) -> list[list[int]]:
    """Return the ids of each text with special tokens, as bert-score makes them.

    Texts are stripped, and those for RoBERTa begin with a space like words inside a text. DeBERTa's positions are
    relative: its texts are cut only where the tokenizer has a limit.
    """
    texts = [text.strip() for text in texts]
    if tokens.splits_words:  # the tokenizers that bert-score uses read accents in composed form
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    if tokens.kind(config.model_type) in _SPACE_FIRST:
        texts = [f" {text}" if text else "" for text in texts]
    absolute = getattr(config, "position_biased_input", True)
    limit = position_limit(tokens.tokenizer, config if absolute else None)
    return [tokens.join(row) for row in tokens.encode(texts, limit - tokens.count)]


def _keep_layers(config: PretrainedConfig, layers: int, folder: Path) -> None:
    """Make a configuration that of a network with only the first `layers` of its (encoder's) layers."""
    name = next((name for name in _LAYER_COUNTS if hasattr(config, name)), "num_hidden_layers")
    there = int(getattr(config, name))
    if layers > there:
        raise ValueError(f"layer={layers}, but {folder} has only {there}")
    for each in _EACH_LAYER:
        settings = getattr(config, each, None)
        if isinstance(settings, list) and len(settings) == there:
            setattr(config, each, settings[:layers])
    setattr(config, name, layers)
