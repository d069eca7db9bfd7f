"""Candidates → which pairs to score. One file for each mask; `hf_acpmbr.registry` has them by name."""

from __future__ import annotations

from ..budget import Budget
from ..registry import OBSERVATIONS
from .balanced import Balanced, balanced
from .uniform import Uniform, uniform

__all__ = ["OBSERVATIONS", "Balanced", "Budget", "Uniform", "balanced", "uniform"]
