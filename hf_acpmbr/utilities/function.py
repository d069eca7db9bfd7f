"""A plain Python callable as a utility, and objects that bring only `score` and `higher_is_better`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

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
        version: what tells this version from others; `cache=` needs a name and a version, since what a function
            computes cannot be seen from outside.
        higher_is_better: direction of its values.
        scale: the span that corresponds to 1.0; None takes the largest score seen, if that is above 1.
        symmetric: True if swapping hypothesis and reference changes nothing; then half the calls suffice.
        needs_source: default: whether the function has a parameter `sources` without a default; one with a default gets
            the sources where there are any.
        parameters: network parameters behind it, for the cost model.
    """

    joins_sources = True

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str | None = None,
        version: str | None = None,
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
        if self.cache is not None and (name is None or version is None):
            raise ValueError(
                "cache= of a Python function needs name= and version=: what it computes cannot be seen from outside. "
                "Give a new version whenever it changes"
            )
        self.function, self.version = function, version
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
            return as_scores(self.function(*arguments, **named), hypotheses.size, self.name)

        return run


def as_scores(values: object, pairs: int, name: str) -> FloatArray:
    """(pairs,) numbers from whatever a function returned: lists, arrays, tensors of any device and dtype."""
    if values is None:
        raise ValueError(f"{name!r} returned None: return one number for each of the {pairs} pairs")
    try:
        array = np.asarray(_plain(values))
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"{name!r} returned lists inside a list: return one number for each pair ({error})") from error
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name!r} returned {values!r:.80}, which is not a list of numbers")
    if array.ndim == 0:
        raise ValueError(
            f"{name!r} returned a single number for {pairs} pairs: it is called with lists of texts and must return "
            "one number for each pair"
        )
    return array.astype(np.float64)


def _plain(values: object) -> object:
    """Without torch's gradients, devices and dtypes, which numpy does not know."""
    torch = sys.modules.get("torch")  # whoever returns a tensor has imported it
    if torch is not None and isinstance(values, torch.Tensor):
        return values.detach().double().cpu().numpy()
    return [_plain(value) for value in values] if isinstance(values, (list, tuple)) else values


def _parameter(function: Callable[..., object], name: str) -> inspect.Parameter | None:
    try:
        return inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # builtins without a signature
        return None
