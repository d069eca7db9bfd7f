"""A plain Python callable as a utility, and objects that bring only `score` and `higher_is_better`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from .base import CommonOptions, Kernel, Statistics, TextTable, Utility
from .identity import digest

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        function: Callable[..., npt.ArrayLike],
        *,
        name: str | None = None,
        higher_is_better: bool = True,
        scale: float | None = None,
        symmetric: bool = False,
        needs_source: bool | None = None,
        parameters: int = 0,
        device: str = "cpu",
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**options)
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        self.function = function
        self._digest = digest(function)  # now: a callable object may change while it is used
        self.name = name or getattr(function, "__name__", type(function).__name__).strip("<>")
        self.higher_is_better, self.symmetric = higher_is_better, symmetric
        self.scale, self.scale_known = (1.0, False) if scale is None else (float(scale), True)
        parameter = _parameter(function, "sources")
        required = parameter is not None and parameter.default is inspect.Parameter.empty
        self.needs_source = required if needs_source is None else needs_source
        self.takes_source = parameter is not None
        self.parameters, self.device = parameters, device

    def settings(self) -> dict[str, object]:
        """The options; the function by its code, see `identity.digest`. What else it depends on, `name` must say."""
        scale = self.scale if self.scale_known else None
        return {**super().settings(), "function": self._digest, "scale": scale}

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """One call of the function for all new pairs."""

        def run(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            arguments = [[table.texts[k] for k in hypotheses], [table.texts[k] for k in references]]
            named = {"sources": [table.sources[k] for k in sources]} if table.sources else {}
            return np.asarray(self.function(*arguments, **named), dtype=np.float64)

        return run


def _parameter(function: Callable[..., npt.ArrayLike], name: str) -> inspect.Parameter | None:
    try:
        return inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # builtins without a signature
        return None
