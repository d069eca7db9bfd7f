"""Pairs → scores: metrics as MBR utilities, loaded by name, each available as an `evaluate` metric too."""

from .adapters import MatrixUtility
from .base import NEUTRAL_OPTIONS, AggregatingKernel, Kernel, Statistics, TextTable, Utility, VectorKernel
from .engine import Scorer
from .load import (
    Partner,
    UtilityLike,
    UtilitySpec,
    as_utility,
    available_utilities,
    distilled_partners,
    load_utility,
)
from .together import Ask, Asks, Meter, Source, decide_together

__all__ = [
    "NEUTRAL_OPTIONS",
    "AggregatingKernel",
    "Ask",
    "Asks",
    "Kernel",
    "MatrixUtility",
    "Meter",
    "Partner",
    "Scorer",
    "Source",
    "Statistics",
    "TextTable",
    "Utility",
    "UtilityLike",
    "UtilitySpec",
    "VectorKernel",
    "as_utility",
    "available_utilities",
    "decide_together",
    "distilled_partners",
    "load_utility",
]
