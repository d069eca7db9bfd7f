"""The table of utilities by name, with the checkpoint each one loads and its distilled partners."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """Where a utility lives.

    Args:
        module: module in `hf_acpmbr.utilities`, imported when the utility is asked for.
        factory: its class.
        options: arguments that make this name out of the class (such as the checkpoint).
    """

    module: str
    factory: str
    options: dict[str, Any] = field(default_factory=dict)


UTILITIES: dict[str, Entry] = {
    "chrf": Entry("chrf", "ChrF"),
    "chrf++": Entry("chrf", "ChrF", {"word_order": 2}),
    "bleu": Entry("bleu", "SentenceBLEU"),
    "ter": Entry("ter", "TER"),
}
