"""Pairs → scores: metrics as MBR utilities, loaded by name, each also an `evaluate` metric."""

from .base import PairScorer, Statistics, Utility
from .engine import Scorer, score_together
from .load import as_utility, available_utilities, load_utility
from .stored import MatrixUtility
from .table import Partner, distilled_partners

__all__ = [
    "MatrixUtility",
    "PairScorer",
    "Partner",
    "Scorer",
    "Statistics",
    "Utility",
    "as_utility",
    "available_utilities",
    "distilled_partners",
    "load_utility",
    "score_together",
]
