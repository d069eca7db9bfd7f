"""Batches for networks: sorted by length, filled by tokens, halved when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..candidates import IntArray
from ..config import integer
from .utility import Statistics

if TYPE_CHECKING:
    import torch

Output = TypeVar("Output")
# What starting a batch is worth in padding: 1/16 of the budget. On the small rounds of the benchmark `together` that is
# 50 batches with 11% of padding at 32,768 tokens (1/8: 43 with 13%; 1/32: 55 with 10%).
_WORTH = 16
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class TokenBatches:
    """Runs a network over sequences of different lengths.

    The longest come first, so memory runs out in the first batch or never; each batch holds as many sequences as the
    token budget allows at its longest one's length, or ends where more padding is saved than another batch is worth. A
    batch that does not fit is halved, and the smaller budget is remembered for the utility's life.

    Args:
        batch_tokens: tokens of a batch, padding included.
    """

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = integer(1)("batch_tokens", batch_tokens)

    def run(
        self,
        lengths: IntArray,
        forward: Callable[[IntArray], Output],
        receive: Callable[[IntArray, Output], object],
        statistics: Statistics,
        done: Callable[[int], object] = lambda count: None,
    ) -> None:
        """Call `forward(indices)` batch by batch and hand each result to `receive(indices, result)`.

        `done` is told the number of sequences of each finished batch.
        """
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < order.size:
            longest = max(int(lengths[order[start]]), 1)
            batch = order[start : start + self._rows(lengths[order[start:]])]
            try:
                result = forward(batch)
            except RuntimeError as error:
                self._shrink(batch.size, longest, statistics, error)
                continue
            receive(batch, result)
            start += batch.size
            statistics.batches += 1
            statistics.tokens += int(lengths[batch].sum())
            statistics.padded_tokens += longest * batch.size
            done(batch.size)

    def _rows(self, lengths: IntArray) -> int:
        """How many of the sequences (longest first) go into the next batch."""
        longest = max(int(lengths[0]), 1)
        fitting = lengths[: max(1, self.batch_tokens // longest)]
        # If the batch ended before sequence k, that and those behind it would be padded to its length at most.
        saved = (longest - fitting) * np.arange(fitting.size, 0, -1)
        end = int(saved.argmax())
        return end if saved[end] * _WORTH > self.batch_tokens else fitting.size

    def _shrink(self, rows: int, longest: int, statistics: Statistics, error: RuntimeError) -> None:
        import torch

        if not isinstance(error, torch.OutOfMemoryError) and not any(w in str(error).lower() for w in _NO_MEMORY):
            raise error
        statistics.out_of_memory += 1
        if rows == 1:
            raise RuntimeError(
                f"one sequence of {longest} tokens does not fit into memory: use a smaller checkpoint, "
                "dtype='float16' or another device"
            ) from error
        self.batch_tokens = longest * (rows // 2)
        if torch.accelerator.is_available():  # before 2.9 only CUDA's own module empties its cache
            getattr(torch.accelerator, "empty_cache", torch.cuda.empty_cache)()


def pad(rows: Sequence[Sequence[int]], value: int, device: torch.device | str) -> torch.Tensor:
    """Return (B, L) ids filled up with `value`."""
    import torch

    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], device=device)


def padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Return transformers' inputs: (B, L) ids filled up with `pad_id`, and a mask that is 1 for tokens."""
    return {"input_ids": pad(rows, pad_id, device), "attention_mask": pad([[1] * len(row) for row in rows], 0, device)}
