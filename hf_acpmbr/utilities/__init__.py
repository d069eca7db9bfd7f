"""Pairs → scores: metrics as MBR utilities, loaded by name, each available as an `evaluate` metric too."""

from .base import NEUTRAL_OPTIONS, AggregatingKernel, Kernel, Statistics, TextTable, Utility, VectorKernel
from .engine import Scorer
from .load import as_utility, available_utilities, load_utility
from .spec import UtilityLike, UtilitySpec
from .stored import MatrixUtility
from .table import Partner, distilled_partners
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
