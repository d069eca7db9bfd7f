"""Pairs → scores: metrics as MBR utilities, loaded by name, each available as an `evaluate` metric too."""

from .base import NEUTRAL_OPTIONS, AggregatingKernel, Kernel, Statistics, TextTable, Utility, VectorKernel
from .engine import Scorer
from .joint import score_together
from .load import as_utility, available_utilities, load_utility
from .lockstep import Lockstep, Turn, in_lockstep
from .spec import UtilityLike, UtilitySpec
from .stored import MatrixUtility
from .table import Partner, distilled_partners

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
