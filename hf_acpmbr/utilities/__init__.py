"""Pairs → scores: metrics as MBR utilities, loaded by name, each available as an `evaluate` metric too."""

from .adapters import MatrixUtility
from .base import NEUTRAL_OPTIONS, AggregatingKernel, Kernel, Statistics, TextTable, Utility, VectorKernel
from .engine import Scorer
from .joint import score_together
from .load import (
    Partner,
    UtilityLike,
    UtilitySpec,
    as_utility,
    available_utilities,
    distilled_partners,
    load_utility,
)
from .lockstep import Lockstep, Turn, in_lockstep

__all__ = [
    "NEUTRAL_OPTIONS",
    "AggregatingKernel",
    "Kernel",
    "Lockstep",
    "MatrixUtility",
    "Partner",
    "Scorer",
    "Statistics",
    "TextTable",
    "Turn",
    "Utility",
    "UtilityLike",
    "UtilitySpec",
    "VectorKernel",
    "as_utility",
    "available_utilities",
    "distilled_partners",
    "in_lockstep",
    "load_utility",
    "score_together",
]
