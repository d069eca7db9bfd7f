"""Affordable Minimum Bayes Risk decoding for Hugging Face models (AC-PMBR, https://arxiv.org/abs/2512.01316)."""

from .candidates import Candidates
from .config import MBRConfig
from .decoding import Decision
from .generate import ACPMBR
from .utilities import as_utility, available_utilities, load_utility
from .version import __version__

__all__ = [
    "ACPMBR",
    "Candidates",
    "Decision",
    "MBRConfig",
    "__version__",
    "as_utility",
    "available_utilities",
    "load_utility",
]
