"""Scores of some pairs → a complete matrix. One file for each method; `hf_acpmbr.registry` has them by name."""

from __future__ import annotations

from typing import cast

from ..registry import COMPLETERS
from .agreement_als import AgreementALS
from .als import ALS
from .base import Completion, ConvergenceWarning, MatrixCompleter


def load_completer(name: str, **options: object) -> MatrixCompleter:
    """A completer by name with its defaults, changed by `options`."""
    return cast(MatrixCompleter, COMPLETERS.build(name, **options))


__all__ = ["ALS", "COMPLETERS", "AgreementALS", "Completion", "ConvergenceWarning", "MatrixCompleter", "load_completer"]
