"""Prefix sharing wherever it is exact, chunked decoding otherwise."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import ClassVar

from ..config import SAMPLERS
from .base import DrawingSampler, Request, Samples

logger = logging.getLogger(__name__)


@functools.cache  # one line per reason, not one per batch
def _announce(max_rows: int, reason: str) -> None:
    logger.warning("sampling by plain decoding in chunks of %d rows, because of %s", max_rows, reason)


@dataclass(frozen=True)
class Automatic(DrawingSampler):
    """Prefix sharing wherever it is exact, chunked decoding otherwise, with the same settings."""

    name: ClassVar[str] = "auto"

    def sample(self, request: Request, n: int, seed: int = 0) -> list[Samples]:
        """Draw n samples for each of the S sources of the request."""
        reason = self.obstacle(request)
        if reason is not None:
            _announce(self.max_rows, reason)
        name = "prefix-sharing" if reason is None else "chunked"
        chosen = SAMPLERS.build(name, truncation=self.truncation, max_rows=self.max_rows)
        return chosen.sample(request, n, seed)

    def obstacle(self, request: Request) -> str | None:
        """Say why prefix sharing cannot serve this request exactly; None if it can."""
        import torch

        from .prefix_sharing.forward import unsupported_layer
        from .processors import row_keyed

        if keyed := row_keyed(request.logits_processor):
            return f"processors that depend on the batch row: {', '.join(keyed)}"
        if "cache_params" in request.model_kwargs:
            return "a recurrent state instead of a key/value cache"
        if (layer := unsupported_layer(request.model_kwargs.get("past_key_values"))) is not None:
            return f"a cache whose rows cannot be forked: {layer}"
        positions = request.model_kwargs.get("position_ids")
        if isinstance(positions, torch.Tensor) and positions.dim() > 2:
            return "position ids with more than two axes"
        return None
