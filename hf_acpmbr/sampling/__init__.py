"""Source → candidates. Samplers by name, and the automatic choice between them.

`prefix-sharing` is exact and runs the model once for each unique prefix; `chunked` is plain decoding in chunks of rows,
for what prefix sharing cannot do exactly; `auto` takes the first where it can and says so in the log where it cannot.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import Request, Sampler, Samples
from .randomness import source_key
from .truncation import EPSILON_SAMPLING, Truncation

if TYPE_CHECKING:
    from transformers import GenerationConfig

SAMPLERS = {
    "prefix-sharing": "prefix_sharing:PrefixSharing",
    "chunked": "chunked:Chunked",
}
__all__ = ["SAMPLERS", "Automatic", "Request", "Sampler", "Samples", "Truncation", "load_sampler", "source_key"]

logger = logging.getLogger(__name__)


def load_sampler(name: str = "auto", **settings: Any) -> Sampler:
    """A sampler by name: "auto" or one of SAMPLERS, with its settings (truncation, max_rows, seed, ...)."""
    if name == "auto":
        return Automatic(**settings)
    if name not in SAMPLERS:
        raise ValueError(f"sampler {name!r} is not known: use one of {['auto', *SAMPLERS]}")
    module, attribute = SAMPLERS[name].split(":")
    sampler: Sampler = getattr(import_module(f".{module}", __name__), attribute)(**settings)
    return sampler


@functools.cache  # one line for each reason, not one for each batch
def _announce(max_rows: int, reason: str) -> None:
    logger.warning("sampling by plain decoding in chunks of %d rows, because of %s", max_rows, reason)


@dataclass(frozen=True)
class Automatic:
    """Prefix sharing wherever it is exact, chunked decoding otherwise."""

    truncation: Truncation = EPSILON_SAMPLING
    max_rows: int = 512
    seed: int = 0
    search: GenerationConfig | None = None

    def sample(self, request: Request, n: int) -> list[Samples]:
        """n samples for each of the S sources of the request."""
        settings = {"truncation": self.truncation, "max_rows": self.max_rows, "seed": self.seed}
        reason = self.obstacle(request)
        if reason is None:
            return load_sampler("prefix-sharing", **settings).sample(request, n)
        _announce(self.max_rows, reason)
        return load_sampler("chunked", search=self.search, **settings).sample(request, n)

    def obstacle(self, request: Request) -> str | None:
        """Why prefix sharing cannot serve this request exactly; None if it can."""
        from ._cache import unsupported_layer
        from ._processors import row_keyed

        if self.search is not None:
            return f"num_beams={self.search.num_beams}"
        if keyed := row_keyed(request.logits_processor):
            return f"processors that depend on the batch row: {', '.join(keyed)}"
        if "cache_params" in request.model_kwargs:
            return "a recurrent state instead of a key/value cache"
        if (layer := unsupported_layer(request.model_kwargs.get("past_key_values"))) is not None:
            return f"a cache whose rows cannot be forked: {layer}"
        positions = request.model_kwargs.get("position_ids")
        if positions is not None and positions.dim() > 2:
            return "position ids with more than two axes"
        return None
