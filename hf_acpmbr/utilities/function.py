"""A plain Python callable as a utility, and objects that bring only `score` and `higher_is_better`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Kernel, Statistics, TextTable, Utility


class FunctionUtility(Utility):
    """`function(hypotheses, references[, sources])` over aligned lists → one number each.

    Args:
        function: the callable; it gets `sources` if it has a parameter of that name.
        name: for signatures and reports; default: the function's own name.
        higher_is_better: direction of its values.
        scale: the span that corresponds to 1.0; None takes the largest score seen, if that is above 1.
        symmetric: True if swapping hypothesis and reference changes nothing; then half the calls suffice.
        needs_source: default: whether the function has a parameter `sources` without a default; one with a default gets
            the sources where there are any.
        parameters: network parameters behind it, for the cost model.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        higher_is_better: bool = True,
        scale: float | None = None,
        symmetric: bool = False,
        needs_source: bool | None = None,
        parameters: int = 0,
        device: str = "cpu",
        **options: object,
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__).strip("<>")
        self.higher_is_better, self.symmetric = higher_is_better, symmetric
        self.scale, self.scale_known = (1.0, False) if scale is None else (float(scale), True)
        parameter = _parameter(function, "sources")
        required = parameter is not None and parameter.default is inspect.Parameter.empty
        self.needs_source = required if needs_source is None else needs_source
        self.takes_source = parameter is not None
        self.parameters, self.device = parameters, device

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """One call of the function for all new pairs."""

        def run(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            arguments = [[table.texts[k] for k in hypotheses], [table.texts[k] for k in references]]
            named = {"sources": [table.sources[k] for k in sources]} if table.sources else {}
            return np.asarray(self.function(*arguments, **named), dtype=np.float64)

        return run


def _parameter(function: Callable[..., Any], name: str) -> inspect.Parameter | None:
    try:
        return inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # builtins without a signature
        return None
