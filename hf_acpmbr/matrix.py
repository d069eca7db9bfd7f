"""The two small objects that the stages hand to each other: which pairs, and their scores."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .candidates import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Pairs:
    """Entries (rows[k], columns[k]) of an N×M matrix, without repetition, sorted by row and then column.

    Args:
        rows: (k,) candidate index of each pair.
        columns: (k,) pseudo-reference index of each pair.
        shape: (N, M).
    """

    rows: IntArray
    columns: IntArray
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        n, m = (int(size) for size in self.shape)
        object.__setattr__(self, "shape", (n, m))
        rows, columns = np.asarray(self.rows, dtype=np.int64), np.asarray(self.columns, dtype=np.int64)
        if rows.ndim != 1 or rows.shape != columns.shape:
            raise ValueError(f"rows and columns must be 1-D and equally long, got {rows.shape} and {columns.shape}")
        if rows.size and (rows.min() < 0 or rows.max() >= n or columns.min() < 0 or columns.max() >= m):
            raise ValueError(f"a pair lies outside the {n}×{m} matrix")
        flat = rows * m + columns
        if not np.all(flat[1:] > flat[:-1]):
            flat.sort()
            if not np.all(flat[1:] > flat[:-1]):
                raise ValueError(f"{int((flat[1:] == flat[:-1]).sum())} pairs are repeated: give each entry once")
            rows, columns = np.divmod(flat, m)
        rows.flags.writeable = columns.flags.writeable = False
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return int(self.rows.size)

    @classmethod
    def full(cls, shape: tuple[int, int]) -> Pairs:
        """List every entry."""
        n, m = shape
        return cls(np.repeat(np.arange(n), m), np.tile(np.arange(m), n), shape)

    @classmethod
    def from_flat(cls, flat: IntArray, shape: tuple[int, int]) -> Pairs:
        """Take sorted positions i·M + j."""
        rows, columns = np.divmod(np.asarray(flat, dtype=np.int64), shape[1])
        return cls(rows, columns, shape)

    @classmethod
    def none(cls, shape: tuple[int, int]) -> Pairs:
        """List no entry."""
        return cls.from_flat(np.empty(0, dtype=np.int64), shape)

    @property
    def flat(self) -> IntArray:
        """(k,) sorted positions i·M + j."""
        return np.asarray(self.rows * self.shape[1] + self.columns, dtype=np.int64)

    @property
    def complete(self) -> bool:
        return len(self) == self.shape[0] * self.shape[1]


@dataclass(frozen=True, eq=False)
class ObservedScores:
    """Scores of some pairs. `values[k]` belongs to (rows[k], columns[k])."""

    pairs: Pairs
    values: FloatArray

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.dtype != np.float32:
            values = values.astype(np.float64, copy=False)
        if values.shape != self.pairs.rows.shape:
            raise ValueError(f"values has shape {values.shape}, expected ({len(self.pairs)},): one for each pair")
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            where = [(int(self.pairs.rows[k]), int(self.pairs.columns[k])) for k in bad[:5]]
            raise ValueError(
                f"{bad.size} of {values.size} scores are NaN or infinite, first at (row, column) {where}: "
                "fix the utility or leave these pairs out of the mask"
            )
        object.__setattr__(self, "values", values)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def rows(self) -> IntArray:
        return self.pairs.rows

    @property
    def columns(self) -> IntArray:
        return self.pairs.columns

    @property
    def shape(self) -> tuple[int, int]:
        return self.pairs.shape

    @classmethod
    def from_dense(cls, scores: npt.ArrayLike, mask: npt.ArrayLike | None = None) -> ObservedScores:
        """Take an (N, M) array or tensor and a boolean mask of the entries that count (default: all)."""
        dense = _to_numpy(scores)
        if dense.ndim != 2:
            raise ValueError(f"scores must be 2-D (candidates × pseudo-references), got shape {dense.shape}")
        n, m = dense.shape
        if mask is None:
            return cls(Pairs.full((n, m)), dense.reshape(-1))
        flags = _to_numpy(mask).astype(bool)
        if flags.shape != dense.shape:
            raise ValueError(f"mask has shape {flags.shape}, scores have {dense.shape}: they must agree")
        flat = np.flatnonzero(flags)
        return cls(Pairs.from_flat(flat, (n, m)), dense.reshape(-1)[flat])

    @classmethod
    def unsorted(cls, rows: IntArray, columns: IntArray, values: FloatArray, shape: tuple[int, int]) -> ObservedScores:
        """Take pairs in any order."""
        flat = rows * shape[1] + columns
        order = np.argsort(flat, kind="stable")
        return cls(Pairs.from_flat(flat[order], shape), values[order])

    def with_values(self, values: FloatArray) -> ObservedScores:
        """Return the same pairs with other values."""
        return replace(self, values=values)

    def dense(self, fill: float = np.nan) -> FloatArray:
        """Return (N, M) with `fill` where nothing was observed."""
        out = np.full(self.shape, fill, dtype=np.float64)
        out[self.rows, self.columns] = self.values
        return out


def _to_numpy(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Make a numpy array of numpy, torch (any device) or nested lists."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)
