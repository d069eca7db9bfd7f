"""Affordable Minimum Bayes Risk decoding for Hugging Face models (AC-PMBR, https://arxiv.org/abs/2512.01316)."""

from .candidates import Candidates
from .decision import Decision
from .generation.models import load_model
from .mbr import ACPMBR
from .recipe import Recipe
from .scoring import as_utility, available_utilities, load_utility
from .version import __version__

__all__ = [
    "ACPMBR",
    "Candidates",
    "Decision",
    "Recipe",
    "__version__",
    "as_utility",
    "available_utilities",
    "load_model",
    "load_utility",
]
