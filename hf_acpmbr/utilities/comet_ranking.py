"""COMET's ranking metrics (Rei et al. 2020, https://aclanthology.org/2020.emnlp-main.213): distances of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .comet import Head, VectorComet

if TYPE_CHECKING:
    import torch


class RankingMetric(VectorComet):
    """1 / (1 + distance), with the harmonic mean of the hypothesis's distances from source and reference.

    Args:
        checkpoint: hub id or folder.
        options: see `CometCheckpoint`.
    """

    description = "COMET's ranking metric: distances of the hypothesis's vector from source and reference."
    kind = "ranking_metric"
    blocks = 0

    def head(self) -> Head:
        """Distances of the vectors."""
        return _Nearness()


class _Nearness:
    def fixed(self, mt: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        return functional.pairwise_distance(mt, source)

    def pairs(self, fixed: torch.Tensor, mt: torch.Tensor, ref: torch.Tensor | None) -> torch.Tensor:
        distance = fixed
        if ref is not None:
            near = self.fixed(mt, ref)
            distance = 2 * near * fixed / (near + fixed)
        return 1 / (1 + distance)
