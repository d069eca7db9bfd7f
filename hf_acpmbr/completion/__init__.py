"""Pairs to score, and scores of some pairs → a complete matrix; `hf_acpmbr.config` has both stages by name."""

from __future__ import annotations

from ..config import COMPLETERS, OBSERVATIONS
from .als import ALS, AgreementALS
from .base import Completer, Completion, ConvergenceWarning, PaperWarning
from .observation import Balanced, Observation, Uniform

__all__ = [
    "ALS",
    "COMPLETERS",
    "OBSERVATIONS",
    "AgreementALS",
    "Balanced",
    "Completer",
    "Completion",
    "ConvergenceWarning",
    "Observation",
    "PaperWarning",
    "Uniform",
]
