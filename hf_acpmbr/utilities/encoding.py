"""Texts → vectors with any transformers encoder, each unique text once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..candidates import IntArray
from .base import Statistics
from .batching import pad
from .network import NetworkUtility

if TYPE_CHECKING:
    import torch

NO_LIMIT = 10**6  # tokenisers that know no limit report a huge one


class SpecialTokens:
    """Token ids without special tokens, and how a tokeniser puts segments together.

    Args:
        folder: checkpoint folder or hub id of the tokeniser.
    """

    def __init__(self, folder: str | Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.pad_id = int(self.tokenizer.pad_token_id or 0)
        # Any ordinary word shows where the special tokens go.
        word: list[int] = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        alone, both = self.tokenizer("a")["input_ids"], self.tokenizer("a", "a")["input_ids"]
        first = next(k for k in range(len(alone)) if alone[k : k + len(word)] == word)
        self.before: list[int] = alone[:first]
        self.after: list[int] = alone[first + len(word) :]
        self.between: list[int] = both[first + len(word) : len(both) - len(self.after) - len(word)]

    def encode(self, texts: Sequence[str], limit: int | None = None) -> list[list[int]]:
        """Ids of each text without special tokens, cut to `limit`."""
        rows: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return rows if limit is None else [row[:limit] for row in rows]

    def join(self, *segments: Sequence[int]) -> list[int]:
        """Ids of one input with special tokens around and between the segments."""
        out = [*self.before, *segments[0]]
        for segment in segments[1:]:
            out += [*self.between, *segment]
        return out + self.after


class TextVectors:
    """What a network makes of each text, computed when first needed and kept.

    Args:
        utility: the network's utility (device, batches, progress).
        rows: token ids of each text, special tokens included.
        pad_id: id that fills batches up.
        forward: (ids (B, L), mask (B, L)) → one item for each row.
        statistics: where to count.
    """

    def __init__(
        self,
        utility: NetworkUtility,
        rows: Sequence[Sequence[int]],
        pad_id: int,
        forward: Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor] | torch.Tensor],
        statistics: Statistics,
    ) -> None:
        self.utility, self.rows, self.pad_id, self.forward = utility, rows, pad_id, forward
        self.statistics = statistics
        self.items: list[torch.Tensor | None] = [None] * len(rows)

    def get(self, indices: IntArray) -> list[torch.Tensor]:
        """The items of texts `indices`."""
        new = np.array([k for k in np.unique(indices).tolist() if self.items[k] is None], dtype=np.int64)
        if new.size:
            lengths = np.array([len(self.rows[k]) for k in new], dtype=np.int64)
            self.utility.encode(
                lengths, lambda b: self._run(new[b]), lambda b, out: self._keep(new[b], out), self.statistics
            )
            self.statistics.encoded += new.size
        return [item for k in indices.tolist() if (item := self.items[k]) is not None]

    def _run(self, batch: IntArray) -> Any:
        rows = [self.rows[k] for k in batch]
        ids = pad(rows, self.pad_id, self.utility.device)
        mask = pad([[1] * len(row) for row in rows], 0, self.utility.device)
        return self.forward(ids, mask)

    def _keep(self, batch: IntArray, outputs: Sequence[torch.Tensor]) -> None:
        for k, item in zip(batch.tolist(), outputs, strict=True):
            self.items[k] = item


def position_limit(tokenizer: Any, config: Any) -> int:
    """Longest input with special tokens: the tokeniser's limit, or what the position embeddings hold."""
    positions = int(getattr(config, "max_position_embeddings", 0) or NO_LIMIT)
    # RoBERTa counts positions from padding_idx + 1.
    if "roberta" in str(getattr(config, "model_type", "")):
        positions -= int(config.pad_token_id) + 1
    return min(int(min(tokenizer.model_max_length, NO_LIMIT)), positions)
