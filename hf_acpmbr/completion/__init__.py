"""Scores of some pairs → a complete matrix. One file for each method, one line here."""

from __future__ import annotations

import importlib
from typing import Any

from .agreement_als import AgreementALS
from .als import ALS
from .base import Completer, Completion, ConvergenceWarning

COMPLETERS = {
    "als": "als:ALS",
    "agreement-als": "agreement_als:AgreementALS",
    "transfer": "transfer:Transfer",
    "auto": "transfer:Transfer",
}


def load_completer(name: str, **options: Any) -> Completer:
    """A completer by name with its defaults, changed by `options`."""
    if name not in COMPLETERS:
        raise ValueError(f"completer {name!r} is unknown: choose one of {', '.join(COMPLETERS)}")
    module, attribute = COMPLETERS[name].split(":")
    completer: Completer = getattr(importlib.import_module(f".{module}", __name__), attribute)(**options)
    return completer


__all__ = ["ALS", "COMPLETERS", "AgreementALS", "Completer", "Completion", "ConvergenceWarning", "load_completer"]
