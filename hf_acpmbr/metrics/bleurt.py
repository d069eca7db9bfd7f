"""BLEURT (Sellam et al. 2020, https://aclanthology.org/2020.acl-main.704) and BLEURT-20 (Pu et al. 2021).

BLEURT-20 is RemBERT with a regression head: embeddings of size E, a projection to H, post-norm BERT layers, a tanh
pooler and one output. Public PyTorch checkpoints: `lucadiliello/BLEURT-20[-D12|-D6|-D3]`, `lucadiliello/bleurt-*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from ..candidates import FloatArray, IntArray
from ..config import integer, optional
from ..scoring.checkpoints import Fields, read_config, read_json, read_pieces, read_weights
from ..scoring.utility import Kernel, Statistics, TextTable
from .network import NetworkUtility, padded
from .tokenization import NO_LIMIT

_POSITIONS = 512  # of a config.json that does not say
_SPECIALS = 3  # [CLS] reference [SEP] candidate [SEP]
# What a config.json that does not say it has, as BERT.
_BERT: Fields = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
_TANH_GELU = partial(functional.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"gelu": functional.gelu, "relu": functional.relu}
_ACTIVATIONS |= dict.fromkeys(("gelu_pytorch_tanh", "gelu_new"), _TANH_GELU)
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

    def __init__(self, checkpoint: str, *, max_length: int | None = None, **options: Any) -> None:
        super().__init__(checkpoint, **options)
        self.max_length = optional(integer(_SPECIALS + 2))("max_length", max_length)

    @cached_property
    def tokenizer(self) -> BLEURTTokenizer:
        return BLEURTTokenizer(self.folder)

    def load(self) -> BLEURTNetwork:
        return BLEURTNetwork.with_weights(read_config(self.folder), read_weights(self.folder))

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Encode all texts; pairs are put together from their ids, reference first."""
        positions = int(read_config(self.folder).get("max_position_embeddings", _POSITIONS))
        # Older checkpoints have their longest input in the name alone: bleurt-base-128.
        named = re.fullmatch(r"bleurt-\w+-(128|512)", (self.checkpoint_name or "").lower())
        tokens = self.tokenizer
        longest = self.max_length or tokens.max_length or (int(named[1]) if named else positions)
        room = min(longest, positions) - _SPECIALS
        ids = tokens.encode(table.texts)
        sizes = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))

        def scores(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            first, second = truncated_sizes(sizes[references], sizes[hypotheses], room)

            def forward(batch: IntArray) -> FloatArray:
                rows, types = [], []
                for r, h, f, s in zip(references[batch], hypotheses[batch], first[batch], second[batch], strict=True):
                    rows.append([tokens.cls_id, *ids[r][:f], tokens.sep_id, *ids[h][:s], tokens.sep_id])
                    types.append([0] * (f + 2) + [1] * (s + 1))
                inputs = padded(rows, tokens.pad_id, self.device, types)
                mask = inputs["attention_mask"].bool() if min(map(len, rows)) < max(map(len, rows)) else None
                output = self.network(inputs["input_ids"], inputs["token_type_ids"], mask)
                return np.asarray(output.cpu().double().numpy())

            return self.score_sequences(first + second + _SPECIALS, forward, statistics)

        return scores


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

    def __init__(self, config: Fields, embedding_size: int | None) -> None:
        super().__init__()
        size = embedding_size or config["hidden_size"]
        # nn.Embedding itself would draw its numbers, for which torch imports its compiler on the device "meta".
        tables = (torch.empty(config[n], size) for n in ("vocab_size", "max_position_embeddings", "type_vocab_size"))
        words, positions, segments = (nn.Embedding.from_pretrained(t, freeze=False) for t in tables)  # type: ignore[no-untyped-call]
        self.word_embeddings, self.position_embeddings, self.token_type_embeddings = words, positions, segments
        self.LayerNorm = nn.LayerNorm(size, eps=config["layer_norm_eps"])
        self.projection = nn.Identity() if embedding_size is None else nn.Linear(size, config["hidden_size"])

    def forward(self, ids: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """Embed (B, L) ids and segments as (B, L, H)."""
        positions = self.position_embeddings.weight[: ids.shape[1]]
        embedded = self.word_embeddings(ids) + self.token_type_embeddings(segments) + positions
        return cast(torch.Tensor, self.projection(self.LayerNorm(embedded)))


class Residual(nn.Module):
    """Half of a layer: what it adds to its input, and the norm behind it."""

    def __init__(self, inner: int, config: Fields) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, config["hidden_size"])
        self.LayerNorm = nn.LayerNorm(config["hidden_size"], eps=config["layer_norm_eps"])

    def forward(self, states: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.LayerNorm(self.dense(states) + before))


class Layer(nn.Module):
    """A layer of BERT, with its names. (transformers' own is imported in seconds.)"""

    def __init__(self, config: Fields) -> None:
        super().__init__()
        size, inner, self.heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
        if (act := config["hidden_act"]) not in _ACTIVATIONS:
            raise ValueError(f"config.json says hidden_act={act!r}: supported are {', '.join(_ACTIVATIONS)}")
        self.activation = _ACTIVATIONS[act]
        projections = nn.ModuleDict({name: nn.Linear(size, size) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": projections, "output": Residual(size, config)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(size, inner)})
        self.output = Residual(inner, config)

    def forward(self, asking: torch.Tensor, hidden: torch.Tensor, attended: torch.Tensor | None) -> torch.Tensor:
        """Return the states of the positions that ask, of all positions' states and which of them exist."""
        projections = cast(nn.ModuleDict, self.attention["self"]).values()
        states = (project(of) for project, of in zip(projections, (asking, hidden, hidden), strict=True))
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in states)
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=attended)
        between = self.attention["output"](context.transpose(1, 2).flatten(2), asking)
        return cast(torch.Tensor, self.output(self.activation(self.intermediate["dense"](between)), between))


class BLEURTNetwork(nn.Module):
    """(ids, segments, mask) → score of each row.

    Args:
        config: a BLEURT config.json.
    """

    def __init__(self, config: Fields) -> None:
        super().__init__()
        size = config.get("embedding_size") or config.get("input_embedding_size")
        self.config: Fields = _BERT | {name: config[name] for name in _BERT if name in config}
        # Google's gelu is the tanh one in the older, unfactorised checkpoints, whose config.json says "gelu".
        if self.config["hidden_act"] == "gelu" and not size:
            self.config["hidden_act"] = "gelu_pytorch_tanh"
        self.embeddings = FactorisedEmbeddings(self.config, size)
        layers = nn.ModuleList(Layer(self.config) for _ in range(self.config["num_hidden_layers"]))
        self.encoder = nn.ModuleDict({"layer": layers})
        width = self.config["hidden_size"]
        self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})
        self.classifier = nn.Linear(width, 1)

    def forward(self, ids: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Score (B, L) ids, segments and boolean mask (None: no padding) as (B,)."""
        hidden = self.embeddings(ids, segments)
        attended = None if mask is None else mask[:, None, None, :]
        *_, last = layers = cast(nn.ModuleList, self.encoder["layer"])
        for layer in layers:
            # The score is read off the first position alone, so the last layer computes no other.
            hidden = layer(hidden[:, :1] if layer is last else hidden, hidden, attended)
        pooled = torch.tanh(self.pooler["dense"](hidden[:, 0]))
        return cast(torch.Tensor, self.classifier(pooled).squeeze(-1))

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
