"""Candidates → which pairs to score. One file for each plan, one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeAlias

from ..matrix import Pairs
from .balanced import balanced
from .cost import Budget
from .uniform import uniform

Observation: TypeAlias = Callable[[tuple[int, int], int, int], Pairs]

OBSERVATIONS = {
    "adaptive": "adaptive:adaptive",
    "auto": "adaptive:adaptive",
    "balanced": "balanced:balanced",
    "uniform": "uniform:uniform",
}


def load_observation(name: str) -> Observation:
    """A plan by name: a function (shape, budget, seed) → Pairs."""
    if name not in OBSERVATIONS:
        raise ValueError(f"observation {name!r} is unknown: choose one of {', '.join(OBSERVATIONS)}")
    module, attribute = OBSERVATIONS[name].split(":")
    observation: Observation = getattr(importlib.import_module(f".{module}", __name__), attribute)
    return observation


__all__ = ["OBSERVATIONS", "Budget", "Observation", "balanced", "load_observation", "uniform"]
