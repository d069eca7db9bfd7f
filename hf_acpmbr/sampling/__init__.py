"""Source → candidates; `hf_acpmbr.config` has the samplers by name.

`prefix-sharing` is exact and runs the model once per unique prefix; `chunked` is plain decoding in chunks of rows, for
requests that prefix sharing cannot serve exactly; `auto` takes the first if it can and logs a warning if it cannot;
`beam-search` takes the beams of a beam search.
"""

from __future__ import annotations

from ..config import SAMPLERS
from .base import Request, Sampler, Samples
from .randomness import source_key
from .truncation import Truncation

__all__ = ["SAMPLERS", "Request", "Sampler", "Samples", "Truncation", "source_key"]
