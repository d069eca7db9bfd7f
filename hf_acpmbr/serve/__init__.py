"""MBR behind OpenAI's API: any client of that API gets it by another base_url (extra `serve`).

The texts of a request are drawn by a server that speaks the same API (`upstream`) or by a model in
this process (`local`). MBR chooses among them, and the answer is the choice as it was drawn, with a
field `mbr` beside it (`service`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _limit(default: float, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class RequestLimits:
    """What a request may ask for; the help of each field is that of the command's option."""

    num_candidates: int = _limit(32, "texts drawn for a request without best_of")
    most_candidates: int = _limit(256, "largest best_of")
    most_tokens: int = _limit(256, "largest max_tokens of a model in this process, and its default")
    most_characters: int = _limit(50_000, "characters of a prompt, or of all messages as JSON")
    most_bytes: int = _limit(1_000_000, "bytes of a request's body")
    most_requests: int = _limit(256, "requests answered at the same time; others get status 503")
    timeout: float = _limit(120.0, "seconds until a request is given up with status 504")
