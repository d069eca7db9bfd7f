"""The rows of a batch: which source each belongs to, and its share of a model's arguments."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
import torch

from ..candidates import IntArray

T = TypeVar("T")


class Rows:
    """U row numbers, on the host and on the device.

    Args:
        numbers: (U,) on the host.
        index: the same on the device, if already uploaded.
    """

    def __init__(self, numbers: IntArray, index: torch.Tensor | None = None) -> None:
        self.numbers = numbers
        self.one = int(numbers[0]) if (numbers == numbers[0]).all() else None
        self.index = index

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """(number, start, end) of each stretch of equal numbers."""
        edges = np.flatnonzero(np.diff(self.numbers, prepend=-1, append=-1)).tolist()
        return [(int(self.numbers[start]), start, end) for start, end in itertools.pairwise(edges)]

    def pick(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        """Take these rows of a tensor: a view if all are the same row, else a gather."""
        if self.one is not None:
            shape = [*tensor.shape]
            shape[axis] = len(self)
            return tensor.narrow(axis, self.one, 1).expand(shape)
        if self.index is None or self.index.device != tensor.device:
            self.index = torch.as_tensor(self.numbers, device=tensor.device)
        return tensor.index_select(axis, self.index)

    def of(self, value: T, axis: int = 0) -> T:
        """Take these rows of every tensor inside `value`."""
        picked: object = value
        if isinstance(value, torch.Tensor):
            picked = self.pick(value, axis) if value.dim() else value
        elif isinstance(value, dict):
            # A ModelOutput's __init__ takes longer than the rest of this function; its checks held for `value`.
            picked = mapped = {} if type(value) is dict else type(value).__new__(type(value))
            for name, part in value.items():
                mapped[name] = self.of(part)
        elif isinstance(value, tuple | list):
            picked = type(value)(self.of(part) for part in value)
        return cast("T", picked)


def arguments_of(kwargs: Mapping[str, object], rows: Rows, count: int) -> dict[str, object]:
    """Take `rows` of a model's arguments for `count` sources; arguments without one row per source stay."""
    axes = {name: _row_axis(name, value, count) for name, value in kwargs.items()}
    return {name: value if (axis := axes[name]) is None else rows.of(value, axis) for name, value in kwargs.items()}


def without_rows(kwargs: Mapping[str, object], count: int) -> list[str]:
    """Name the arguments without one row per source: images and their encodings."""
    return [name for name, value in kwargs.items() if _row_axis(name, value, count) is None]


def _row_axis(name: str, value: object, count: int) -> int | None:
    """Return the axis along which an argument has one row per source; None if there is none."""
    if isinstance(value, torch.Tensor) and value.dim():
        # Some models count positions along several axes: (axes, S, L).
        axis = int(name == "position_ids" and value.dim() > 2)
        return axis if value.shape[axis] == count else None
    return None if name == "mm_encoder_outputs" and value else 0
