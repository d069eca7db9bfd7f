"""Pairs → scores: what a utility is, how it is loaded and asked, and the driver that asks for many sources."""

from .adapters import MatrixUtility, metric_class
from .engine import Scorer
from .load import Partner, UtilityLike, UtilitySpec, as_utility, available_utilities, distilled_partners, load_utility
from .together import Ask, Asks, Meter, Source, Steps, decide_together
from .utility import NEUTRAL_OPTIONS, Kernel, Statistics, TextTable, Utility

__all__ = [
    "NEUTRAL_OPTIONS",
    "Ask",
    "Asks",
    "Kernel",
    "MatrixUtility",
    "Meter",
    "Partner",
    "Scorer",
    "Source",
    "Statistics",
    "Steps",
    "TextTable",
    "Utility",
    "UtilityLike",
    "UtilitySpec",
    "as_utility",
    "available_utilities",
    "decide_together",
    "distilled_partners",
    "load_utility",
    "metric_class",
]
