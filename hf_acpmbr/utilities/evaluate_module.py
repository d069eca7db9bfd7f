"""Any `evaluate` module as a utility: an object, a script path or a name that evaluate can load."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Kernel, Statistics, TextTable, Utility

_PER_PAIR_KEYS = ("scores", "f1", "score")


class EvaluateUtility(Utility):
    """The per-pair field of an `evaluate` module.

    Args:
        module: an `evaluate.EvaluationModule`, or what `evaluate.load` takes.
        output_key: the field that holds one number for each pair; default: the first of `scores`, `f1`, `score`.
        higher_is_better: direction of its values.
        scale: the span that corresponds to 1.0; None takes the largest score seen, if that is above 1.
        symmetric: True if swapping prediction and reference changes nothing.
        compute_options: further arguments of its compute() (such as `lang="de"`).
    """

    def __init__(
        self,
        module: Any,
        *,
        output_key: str | None = None,
        higher_is_better: bool = True,
        scale: float | None = None,
        symmetric: bool = False,
        parameters: int = 0,
        compute_options: dict[str, Any] | None = None,
        **options: object,
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        if isinstance(module, str):
            import evaluate

            module = evaluate.load(module)
        self.module = module
        self.output_key = output_key
        self.higher_is_better, self.symmetric = higher_is_better, symmetric
        self.scale, self.scale_known = (1.0, False) if scale is None else (float(scale), True)
        self.parameters = parameters
        self.compute_options = dict(compute_options or {})
        fields = _feature_names(module)
        self.needs_source, self.needs_reference = "sources" in fields, "references" in fields
        self.name = str(module.name)
        self.description, self.citation = str(module.description), str(module.citation)

    @property
    def signature(self) -> str:
        revision = getattr(self.module, "_hash", None)
        return f"evaluate:{self.name}" + (f"@{revision[:12]}" if revision else "")

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """One compute() for all new pairs (it costs milliseconds a call)."""

        def run(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            inputs: dict[str, Any] = {"predictions": [table.texts[k] for k in hypotheses]}
            if self.needs_reference:
                inputs["references"] = [table.texts[k] for k in references]
            if self.needs_source:
                inputs["sources"] = [table.sources[k] for k in sources]
            statistics.batches += 1
            return self._per_pair(self.module.compute(**inputs, **self.compute_options), hypotheses.size)

        return run

    def _per_pair(self, result: dict[str, Any], pairs: int) -> FloatArray:
        keys = [self.output_key] if self.output_key else [key for key in _PER_PAIR_KEYS if key in result]
        for key in keys:
            if key not in result:
                raise ValueError(f"output_key={key!r} is not in the output of {self.name!r}: it has {sorted(result)}")
            values = np.asarray(result[key])
            if values.shape == (pairs,) and values.dtype.kind in "fiub":
                return values.astype(np.float64)
        raise ValueError(
            f"{self.name!r} gives no list with one number for each pair (fields: {sorted(result)}), so it is a corpus "
            "metric and cannot be a utility. If one of its fields is per pair, name it with output_key="
        )


def _feature_names(module: Any) -> set[str]:
    features = module.features
    return set(features[0] if isinstance(features, list) else features)
