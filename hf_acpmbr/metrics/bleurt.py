"""BLEURT (Sellam et al. 2020, https://aclanthology.org/2020.acl-main.704) and BLEURT-20 (Pu et al. 2021).

BLEURT-20 is RemBERT with a regression head: embeddings of size E, a projection to H, post-norm BERT layers, a tanh
pooler and one output. Public PyTorch checkpoints: `lucadiliello/BLEURT-20[-D12|-D6|-D3]`, `lucadiliello/bleurt-*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEncoder, BertLayer, BertPooler

from ..candidates import IntArray
from ..scoring.batches import pad
from ..scoring.checkpoints import Fields, read_config, read_json, read_weights
from ..scoring.utility import Kernel, Statistics, TextTable
from .network import NetworkOptions, NetworkUtility, PairNetworkKernel

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PROJECTION = ("encoder.embedding_projection.", "encoder.embedding_hidden_mapping_in.")


class BLEURT(NetworkUtility["BLEURTNetwork"]):
    """Learned regression of human ratings, about 0 to 1 (not clamped).

    Args:
        checkpoint: hub id or folder with config.json, weights and spm.model (BLEURT-20) or vocab.txt (older ones).
        max_length: longest input in tokens; default: the checkpoint's own.
        options: see `NetworkUtility`.
    """

    files = ("config.json", "tokenizer_config.json", "*.safetensors*", "pytorch_model*", "spm.model", "vocab.txt")
    description = "BLEURT: a pre-trained network that regresses human ratings of a candidate against a reference."
    homepage = "https://github.com/google-research/bleurt"
    citation = (
        "@inproceedings{sellam-etal-2020-bleurt, title = {{BLEURT}: Learning Robust Metrics for Text Generation}, "
        "author = {Sellam, Thibault and Das, Dipanjan and Parikh, Ankur}, booktitle = {Proceedings of ACL}, "
        "year = {2020}}\n"
        "@inproceedings{pu-etal-2021-learning, title = {Learning Compact Metrics for {MT}}, author = {Pu, Amy and "
        "Chung, Hyung Won and Parikh, Ankur and Gehrmann, Sebastian and Sellam, Thibault}, "
        "booktitle = {Proceedings of EMNLP}, year = {2021}}"
    )

    def __init__(self, checkpoint: str, *, max_length: int | None = None, **options: Unpack[NetworkOptions]) -> None:
        super().__init__(checkpoint, **options)
        if max_length is not None and max_length < 5:
            raise ValueError(f"max_length must be at least 5 (two texts and three special tokens), got {max_length}")
        self.max_length = max_length
        self._tokenizer: PairTokenizer | None = None

    @property
    def tokenizer(self) -> PairTokenizer:
        """The checkpoint's tokeniser."""
        if self._tokenizer is None:
            self._tokenizer = PairTokenizer.from_folder(self.folder)
        return self._tokenizer

    def load(self) -> BLEURTNetwork:
        return bleurt_network(read_config(self.folder), read_weights(self.folder))

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Ids of all texts; pairs are assembled reference first."""
        positions = int(read_config(self.folder).get("max_position_embeddings", 512))
        limit = min(self.max_length or self.tokenizer.max_length or self._named_length() or positions, positions)
        return _BLEURTKernel(self, statistics, self.tokenizer, table.texts, limit)

    def _named_length(self) -> int | None:
        """Older checkpoints have their longest input in the name alone: bleurt-base-128."""
        named = re.fullmatch(r"bleurt-\w+-(128|512)", (self.checkpoint_name or "").lower())
        return int(named[1]) if named else None

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_tokenizer": None}


class _BLEURTKernel(PairNetworkKernel):
    def __init__(
        self, utility: BLEURT, statistics: Statistics, tokenizer: PairTokenizer, texts: Sequence[str], limit: int
    ) -> None:
        super().__init__(utility, statistics)
        self.tokenizer = tokenizer
        self.ids = tokenizer.encode(texts)
        self.sizes = np.fromiter((len(row) for row in self.ids), dtype=np.int64, count=len(self.ids))
        self.room = limit - 3

    def lengths(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> IntArray:
        return np.asarray(np.minimum(self.sizes[hypotheses] + self.sizes[references], self.room) + 3)

    def forward(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> torch.Tensor:
        rows, types = [], []
        kept = truncated_sizes(self.sizes[references], self.sizes[hypotheses], self.room)
        for r, h, keep_r, keep_h in zip(references, hypotheses, kept[0].tolist(), kept[1].tolist(), strict=True):
            rows.append(self.tokenizer.pair(self.ids[r][:keep_r], self.ids[h][:keep_h]))
            types.append([0] * (keep_r + 2) + [1] * (keep_h + 1))
        device = self.utility.device
        ids, segments = pad(rows, self.tokenizer.pad_id, device), pad(types, 0, device)
        sizes = np.fromiter((len(row) for row in rows), dtype=np.int64)
        mask = None if sizes.min() == ids.shape[1] else pad([[1] * size for size in sizes.tolist()], 0, device).bool()
        scores: torch.Tensor = self.utility.network(ids, segments, mask)
        return scores


class PairTokenizer:
    """Token ids of single texts, and `[CLS] reference [SEP] candidate [SEP]`.

    Args:
        encode: texts → ids without special tokens.
        cls_id, sep_id, pad_id: the special tokens.
        max_length: the longest input the checkpoint was made for, if it says so.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], list[list[int]]],
        cls_id: int,
        sep_id: int,
        pad_id: int = 0,
        max_length: int | None = None,
    ) -> None:
        self.encode = encode
        self.cls_id, self.sep_id, self.pad_id, self.max_length = cls_id, sep_id, pad_id, max_length

    def pair(self, reference: list[int], candidate: list[int]) -> list[int]:
        """Ids of one input, reference first."""
        return [self.cls_id, *reference, self.sep_id, *candidate, self.sep_id]

    @classmethod
    def from_folder(cls, folder: Path) -> PairTokenizer:
        """spm.model (sentencepiece itself: transformers' conversions differ from it) or vocab.txt (WordPiece)."""
        settings = read_json(folder / "tokenizer_config.json")
        limit = settings.get("model_max_length")
        limit = int(limit) if limit is not None and limit < 10**6 else None
        if (folder / "spm.model").is_file():
            return cls._sentencepiece(folder / "spm.model", limit)
        if (folder / "vocab.txt").is_file():
            return cls._wordpiece(folder, bool(settings.get("do_lower_case", True)), limit)
        raise FileNotFoundError(f"{folder} has neither spm.model nor vocab.txt: is it a BLEURT checkpoint?")

    @classmethod
    def _sentencepiece(cls, path: Path, limit: int | None) -> PairTokenizer:
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        special = {piece: int(model.piece_to_id(piece)) for piece in ("[CLS]", "[SEP]")}
        for piece, number in special.items():
            if number == model.unk_id():
                raise ValueError(f"{path} has no piece {piece}: it is not a BLEURT vocabulary")

        def encode(texts: Sequence[str]) -> list[list[int]]:
            ids: list[list[int]] = model.encode(list(texts))
            return ids

        return cls(encode, special["[CLS]"], special["[SEP]"], max_length=limit)

    @classmethod
    def _wordpiece(cls, folder: Path, lowercase: bool, limit: int | None) -> PairTokenizer:
        from transformers import BertTokenizer

        tokenizer = BertTokenizer.from_pretrained(folder, do_lower_case=lowercase)

        def encode(texts: Sequence[str]) -> list[list[int]]:
            # A literal [SEP] is ordinary text to Google's tokeniser.
            options: dict[str, bool] = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
            ids: list[list[int]] = tokenizer(list(texts), **options)["input_ids"]
            return ids

        return cls(encode, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, limit)


def truncated_sizes(references: IntArray, candidates: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Tokens kept of each side so that both fit into `room`.

    Google's rule drops the last token of the longer side (of the candidate at a tie) until they fit. In closed form: a
    side keeps what the other leaves over, but at least its half.
    """
    kept_references = np.minimum(references, np.maximum(room - candidates, (room + 1) // 2))
    kept_candidates = np.minimum(candidates, np.maximum(room - references, room // 2))
    return kept_references, kept_candidates


class FactorisedEmbeddings(nn.Module):
    """Word, position and segment embeddings of size E, normalised, then projected to H (if E is given)."""

    def __init__(self, config: BertConfig, embedding_size: int | None) -> None:
        super().__init__()
        size = embedding_size or config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.projection = nn.Identity() if embedding_size is None else nn.Linear(size, config.hidden_size)

    def forward(self, ids: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """(B, L) ids and segments → (B, L, H)."""
        positions = self.position_embeddings.weight[: ids.shape[1]]
        embedded = self.word_embeddings(ids) + self.token_type_embeddings(segments) + positions
        return cast(torch.Tensor, self.projection(self.LayerNorm(embedded)))


class BLEURTNetwork(nn.Module):
    """(ids, segments, mask) → score of each row."""

    def __init__(self, config: BertConfig, embedding_size: int | None) -> None:
        super().__init__()
        self.embeddings = FactorisedEmbeddings(config, embedding_size)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, ids: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(B, L) ids, segments and boolean mask (None: no padding) → (B,) scores."""
        hidden = self.embeddings(ids, segments)
        attended = None if mask is None else mask[:, None, None, :]
        *layers, last = cast(Sequence[BertLayer], self.encoder.layer)
        for layer in layers:
            hidden = attend(layer, hidden, hidden, attended)
        # The score is read off the first position alone.
        hidden = attend(last, hidden[:, :1], hidden, attended)
        return cast(torch.Tensor, self.classifier(self.pooler(hidden)).squeeze(-1))


def attend(layer: BertLayer, asking: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """One BERT layer for some positions only: (B, Q, H) of the asking ones, which attend to all (B, L, H)."""
    attention = layer.attention.self

    def heads(projection: nn.Linear, values: torch.Tensor) -> torch.Tensor:
        split: torch.Tensor = projection(values).unflatten(-1, (attention.num_attention_heads, -1))
        return split.transpose(1, 2)

    context = functional.scaled_dot_product_attention(
        heads(attention.query, asking), heads(attention.key, hidden), heads(attention.value, hidden), attn_mask=mask
    )
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), asking)
    return cast(torch.Tensor, layer.output(layer.intermediate(attended), attended))


def embedding_size(config: Fields) -> int | None:
    """Width of the factorised embeddings; None for older checkpoints, which have none."""
    return config.get("embedding_size") or config.get("input_embedding_size")


def bert_config(config: Fields) -> BertConfig:
    """transformers' BERT configuration from a BLEURT config.json."""
    names = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
        "max_position_embeddings type_vocab_size layer_norm_eps"
    )
    options: Fields = {name: config[name] for name in names.split() if name in config}
    options.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    # Google's gelu is the tanh one in the older, unfactorised checkpoints, whose config.json says "gelu".
    if options.get("hidden_act", "gelu") == "gelu" and not embedding_size(config):
        options["hidden_act"] = "gelu_pytorch_tanh"
    return BertConfig(**options)


def bleurt_network(config: Fields, weights: Mapping[str, torch.Tensor]) -> BLEURTNetwork:
    """The network with the weights of a public checkpoint (keys `bleurt.*`, `classifier.*`)."""
    state: dict[str, torch.Tensor] = {}
    for key, value in weights.items():
        name = key.removeprefix("bleurt.").removeprefix("rembert.")
        for prefix in _PROJECTION:
            name = name.replace(prefix, "embeddings.projection.")
        if not name.endswith("position_ids"):
            state[name] = value
    with torch.device("meta"):
        network = BLEURTNetwork(bert_config(config), embedding_size(config))
    wanted = network.state_dict()
    missing, surplus = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or surplus:
        raise ValueError(
            f"not a BLEURT checkpoint: {len(missing)} weights are missing {missing[:3]}, {len(surplus)} are unknown "
            f"{surplus[:3]}"
        )
    for key, tensor in wanted.items():
        if tensor.shape != state[key].shape:
            raise ValueError(
                f"weight {key} has shape {tuple(state[key].shape)}, config.json says {tuple(tensor.shape)}"
            )
    network.load_state_dict(state, assign=True)
    return network
