"""Source → candidates. One file for each sampler; `hf_acpmbr.registry` has them by name.

`prefix-sharing` is exact and runs the model once for each unique prefix; `chunked` is plain decoding in chunks of rows,
for what prefix sharing cannot do exactly; `auto` takes the first where it can and says so in the log where it cannot;
`beam-search` takes the beams of a beam search.
"""

from __future__ import annotations

from ..registry import SAMPLERS
from .base import Request, Samples
from .randomness import source_key
from .truncation import EPSILON_SAMPLING, Truncation

__all__ = ["EPSILON_SAMPLING", "SAMPLERS", "Request", "Samples", "Truncation", "source_key"]
