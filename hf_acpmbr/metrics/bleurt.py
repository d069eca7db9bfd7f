"""BLEURT (Sellam et al. 2020, https://aclanthology.org/2020.acl-main.704) and BLEURT-20 (Pu et al. 2021).

BLEURT-20 is RemBERT with a regression head: embeddings of size E, a projection to H, post-norm BERT layers, a tanh
pooler and one output. Public PyTorch checkpoints: `lucadiliello/BLEURT-20[-D12|-D6|-D3]`, `lucadiliello/bleurt-*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEncoder, BertLayer, BertPooler

from ..candidates import FloatArray, IntArray
from ..config import integer, optional
from ..scoring.batches import pad, padded
from ..scoring.checkpoints import Fields, read_config, read_json, read_pieces, read_weights
from ..scoring.utility import Kernel, Statistics, TextTable
from .network import NetworkUtility
from .tokenization import NO_LIMIT

_POSITIONS = 512  # of a config.json that does not say
_SPECIALS = 3  # [CLS] reference [SEP] candidate [SEP]
_CONFIG = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
    "max_position_embeddings type_vocab_size layer_norm_eps"
)
# Where published checkpoints keep the projection of the embeddings.
_PROJECTIONS = ("encoder.embedding_projection.", "encoder.embedding_hidden_mapping_in.")


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
        "Sellam et al. 2020, BLEURT, ACL, https://aclanthology.org/2020.acl-main.704; "
        "Pu et al. 2021, Learning compact metrics for MT, EMNLP, https://aclanthology.org/2021.emnlp-main.58"
    )

    def __init__(self, checkpoint: str, *, max_length: int | None = None, **options: Any) -> None:
        super().__init__(checkpoint, **options)
        self.max_length = optional(integer(_SPECIALS + 2))("max_length", max_length)

    @cached_property
    def tokenizer(self) -> BLEURTTokenizer:
        """The checkpoint's tokenizer."""
        return BLEURTTokenizer(self.folder)

    def load(self) -> BLEURTNetwork:
        return BLEURTNetwork.with_weights(read_config(self.folder), read_weights(self.folder))

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Encode all texts; pairs are put together from their ids, reference first."""
        positions = int(read_config(self.folder).get("max_position_embeddings", _POSITIONS))
        # Older checkpoints have their longest input in the name alone: bleurt-base-128.
        named = re.fullmatch(r"bleurt-\w+-(128|512)", (self.checkpoint_name or "").lower())
        longest = self.max_length or self.tokenizer.max_length or (int(named[1]) if named else positions)
        return _BLEURTKernel(self, table.texts, min(longest, positions) - _SPECIALS, statistics)


class BLEURTTokenizer:
    """Token ids of single texts, and the ids of the special tokens.

    BLEURT-20's spm.model is read by sentencepiece itself, from which transformers' conversions differ; the vocab.txt
    of older checkpoints by transformers' WordPiece.
    """

    def __init__(self, folder: Path) -> None:
        settings = read_json(folder / "tokenizer_config.json")
        limit = settings.get("model_max_length")
        self.max_length = int(limit) if limit is not None and limit < NO_LIMIT else None
        self.encode: Callable[[Sequence[str]], list[list[int]]]
        if (path := folder / "spm.model").is_file():
            model = read_pieces(path)
            self.encode = lambda texts: model.encode(list(texts))
            self.cls_id, self.sep_id, self.pad_id = *(int(model.piece_to_id(piece)) for piece in ("[CLS]", "[SEP]")), 0
            if model.unk_id() in (self.cls_id, self.sep_id):
                raise ValueError(f"{path} has no pieces [CLS] and [SEP]: it is not a BLEURT vocabulary")
        elif (folder / "vocab.txt").is_file():
            from transformers import BertTokenizer

            pieces = BertTokenizer.from_pretrained(folder, do_lower_case=bool(settings.get("do_lower_case", True)))
            # A literal [SEP] is ordinary text to Google's tokenizer.
            as_text = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
            self.encode = lambda texts: pieces(list(texts), **as_text)["input_ids"]
            self.cls_id, self.sep_id, self.pad_id = pieces.cls_token_id, pieces.sep_token_id, pieces.pad_token_id
        else:
            raise FileNotFoundError(f"{folder} has neither spm.model nor vocab.txt: is it a BLEURT checkpoint?")


class _BLEURTKernel:
    def __init__(self, utility: BLEURT, texts: Sequence[str], room: int, statistics: Statistics) -> None:
        self.utility, self.room, self.statistics = utility, room, statistics
        self.ids = utility.tokenizer.encode(texts)
        self.sizes = np.fromiter(map(len, self.ids), dtype=np.int64, count=len(self.ids))

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        first, second = truncated_sizes(self.sizes[references], self.sizes[hypotheses], self.room)
        scores = np.empty(hypotheses.size)

        def forward(batch: IntArray) -> FloatArray:
            tokens, device = self.utility.tokenizer, self.utility.device
            rows, types = [], []
            for r, h, f, s in zip(references[batch], hypotheses[batch], first[batch], second[batch], strict=True):
                rows.append([tokens.cls_id, *self.ids[r][:f], tokens.sep_id, *self.ids[h][:s], tokens.sep_id])
                types.append([0] * (f + 2) + [1] * (s + 1))
            inputs = padded(rows, tokens.pad_id, device)
            mask = inputs["attention_mask"].bool() if min(map(len, rows)) < max(map(len, rows)) else None
            output = self.utility.network(inputs["input_ids"], pad(types, 0, device), mask)
            return np.asarray(output.double().cpu().numpy())

        self.utility.encode(first + second + _SPECIALS, forward, scores.__setitem__, self.statistics)
        return scores


def truncated_sizes(references: IntArray, candidates: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Return the tokens kept of each side so that both fit into `room`.

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
        """Embed (B, L) ids and segments as (B, L, H)."""
        positions = self.position_embeddings.weight[: ids.shape[1]]
        embedded = self.word_embeddings(ids) + self.token_type_embeddings(segments) + positions
        return cast(torch.Tensor, self.projection(self.LayerNorm(embedded)))


class BLEURTNetwork(nn.Module):
    """(ids, segments, mask) → score of each row.

    Args:
        config: a BLEURT config.json.
    """

    def __init__(self, config: Fields) -> None:
        super().__init__()
        size = config.get("embedding_size") or config.get("input_embedding_size")
        known: Fields = {name: config[name] for name in _CONFIG.split() if name in config}
        # Google's gelu is the tanh one in the older, unfactorised checkpoints, whose config.json says "gelu".
        if known.get("hidden_act", "gelu") == "gelu" and not size:
            known["hidden_act"] = "gelu_pytorch_tanh"
        bert = BertConfig(**known, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self.embeddings = FactorisedEmbeddings(bert, size)
        self.encoder = BertEncoder(bert)
        self.pooler = BertPooler(bert)
        self.classifier = nn.Linear(bert.hidden_size, 1)

    def forward(self, ids: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Score (B, L) ids, segments and boolean mask (None: no padding) as (B,)."""
        hidden = self.embeddings(ids, segments)
        attended = None if mask is None else mask[:, None, None, :]
        *_, last = layers = cast(Sequence[BertLayer], self.encoder.layer)
        for layer in layers:
            # The score is read off the first position alone, so the last layer computes no other.
            asking = hidden[:, :1] if layer is last else hidden
            attention = layer.attention.self
            projected = attention.query(asking), attention.key(hidden), attention.value(hidden)
            heads = (states.unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2) for states in projected)
            query, key, value = heads
            context = functional.scaled_dot_product_attention(query, key, value, attn_mask=attended)
            between = layer.attention.output(context.transpose(1, 2).flatten(2), asking)
            hidden = layer.output(layer.intermediate(between), between)
        return cast(torch.Tensor, self.classifier(self.pooler(hidden)).squeeze(-1))

    @classmethod
    def with_weights(cls, config: Fields, weights: Mapping[str, torch.Tensor]) -> BLEURTNetwork:
        """Make the network with the weights of a public checkpoint (keys `bleurt.*`, `classifier.*`)."""
        state: dict[str, torch.Tensor] = {}
        for key, value in weights.items():
            name = key.removeprefix("bleurt.").removeprefix("rembert.")
            for place in _PROJECTIONS:
                name = name.replace(place, "embeddings.projection.")
            if not name.endswith("position_ids"):
                state[name] = value
        with torch.device("meta"):
            network = cls(config)
        wanted = network.state_dict()
        missing, surplus = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
        if missing or surplus:
            raise ValueError(
                f"not a BLEURT checkpoint: {len(missing)} weights are missing {missing[:3]}, "
                f"{len(surplus)} are unknown {surplus[:3]}"
            )
        for key, tensor in wanted.items():
            if tensor.shape != state[key].shape:
                found, said = tuple(state[key].shape), tuple(tensor.shape)
                raise ValueError(f"weight {key} has shape {found}, config.json says {said}")
        network.load_state_dict(state, assign=True)
        return network
