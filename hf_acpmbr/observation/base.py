"""What every observation offers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from ..matrix import Pairs
from ..stage import Stage


@dataclass(frozen=True)
class Mask(Stage):
    """All pairs are chosen before anything is known, so guides and target can be scored at the same time."""

    @abstractmethod
    def mask(self, shape: tuple[int, int], budget: int, seed: int) -> Pairs:
        """`budget` of the N·M pairs."""
