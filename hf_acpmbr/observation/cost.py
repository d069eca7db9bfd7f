"""How many pairs to score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How many of the pairs a utility may score: a reduction rate or a number of scores per row, not both.

    Args:
        reduction: r, the paper's rate: one pair in r.
        per_row: so many scores for each candidate, that is r = M / per_row. Unlike r it keeps its meaning for any N:
            with N = M = 1,024 the paper's Low has 32 target scores a row and its High 1, and so they have with N = 64.

    Both count the candidates *drawn*, duplicates included, so the cost is never above the paper's; where the unique
    pairs are fewer, all of them are scored and nothing needs to be completed.
    """

    reduction: float | None = None
    per_row: float | None = None

    def __post_init__(self) -> None:
        if (self.reduction is None) == (self.per_row is None):
            raise ValueError(
                f"a budget is either reduction or per_row, got reduction={self.reduction} and per_row={self.per_row}"
            )
        if self.reduction is not None and not self.reduction >= 1:
            raise ValueError(f"reduction must be at least 1 (1 scores every pair), got {self.reduction}")
        if self.per_row is not None and not self.per_row > 0:
            raise ValueError(f"per_row must be above 0, got {self.per_row}")

    def pairs(self, unique: tuple[int, int], drawn: tuple[int, int] | None = None) -> int:
        """How many pairs of a `unique` (N, M) matrix to score, at least 1; `drawn` counts the duplicates too."""
        n, m = unique
        drawn_n, drawn_m = drawn or unique
        wanted = drawn_n * drawn_m / self.rate(drawn_m)
        return max(1, min(int(wanted + 1e-9), n * m))

    def rate(self, columns: int) -> float:
        """The reduction rate that this budget amounts to with so many pseudo-references drawn."""
        return self.reduction if self.reduction is not None else max(1.0, columns / (self.per_row or 1.0))

    def __str__(self) -> str:
        return f"r{self.reduction:g}" if self.reduction is not None else f"{self.per_row:g}/row"
