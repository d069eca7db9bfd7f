"""A utility whose scores are known: a stored full matrix, for benchmarks and simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from .base import CommonOptions, Kernel, Statistics, TextTable, Utility
from .identity import digest

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MatrixUtility(Utility):
    """Looks scores up in an (N, M) matrix by text, and counts them as calls.

    Args:
        matrix: (N, M) scores of hypotheses × references.
        hypotheses: N unique texts naming the rows; default "0", "1", ...
        references: M unique texts naming the columns; default: the hypotheses if the matrix is square.
        name: for signatures and reports.
        higher_is_better: direction of the scores.
        symmetric: True if the scores came from a symmetric utility, which counts swapped pairs once.
        scale: the span that corresponds to 1.0 (100 for a 0–100 metric).
        parameters: size of the network that stands behind the scores, for the cost model.
    """

    def __init__(
        self,
        matrix: npt.ArrayLike,
        hypotheses: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        *,
        name: str = "matrix",
        higher_is_better: bool = True,
        symmetric: bool = False,
        scale: float = 1.0,
        parameters: int = 0,
        device: str = "cpu",
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**options)
        self.matrix: FloatArray = np.asarray(matrix, dtype=np.float64)
        if self.matrix.ndim != 2:
            raise ValueError(f"matrix must be 2-D (hypotheses × references), got shape {self.matrix.shape}")
        n, m = self.matrix.shape
        if hypotheses is None:
            hypotheses = [str(i) for i in range(n)]
        if references is None:
            references = hypotheses if m == n else [str(j) for j in range(m)]
        self.hypotheses, self.references = list(hypotheses), list(references)
        self._rows = _positions(hypotheses, n, "hypotheses")
        self._columns = _positions(references, m, "references")
        self._digest = digest([self.matrix, self.hypotheses, self.references])
        self.name, self.higher_is_better, self.symmetric, self.device = name, higher_is_better, symmetric, device
        self.scale, self.parameters = float(scale), int(parameters)

    @classmethod
    def standing_for(cls, utility: Utility, matrix: npt.ArrayLike, texts: Sequence[str]) -> MatrixUtility:
        """The scores of another utility, under its name, on its scale and at its cost."""
        return cls(
            matrix,
            texts,
            name=utility.name,
            higher_is_better=utility.higher_is_better,
            scale=utility.scale,
            parameters=utility.parameters,
        )

    def settings(self) -> dict[str, object]:
        """The options; the matrix and the texts that name its rows and columns as one digest."""
        shown = {key: value for key, value in super().settings().items() if key not in ("hypotheses", "references")}
        return {**shown, "matrix": self._digest}

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """A look-up by text."""
        rows = np.array([self._rows.get(text, -1) for text in table.texts], dtype=np.int64)
        columns = np.array([self._columns.get(text, -1) for text in table.texts], dtype=np.int64)

        def look_up(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            i, j = rows[hypotheses], columns[references]
            for found, asked, side in ((i, hypotheses, "hypothesis"), (j, references, "reference")):
                if (found < 0).any():
                    unknown = table.texts[int(asked[np.flatnonzero(found < 0)[0]])]
                    raise ValueError(f"the stored matrix of {self.name!r} has no {side} {unknown!r}")
            return np.asarray(self.matrix[i, j])

        return look_up


def _positions(texts: Sequence[str], size: int, name: str) -> dict[str, int]:
    index = {text: position for position, text in enumerate(texts)}
    if len(texts) != size or len(index) != size:
        raise ValueError(f"{name} must be {size} unique texts, got {len(texts)} of which {len(index)} are unique")
    return index
