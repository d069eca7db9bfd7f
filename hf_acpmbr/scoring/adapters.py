"""Other people's metrics as utilities, and utilities as `evaluate` metrics.

A Python callable, an `evaluate` module and a stored matrix become utilities here. `evaluate` takes seconds to
import, so nothing here imports it before it is used.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from ..config import describe
from .fingerprint import digest
from .utility import Kernel, Statistics, TextTable, Utility

if TYPE_CHECKING:
    import evaluate

_PER_PAIR_KEYS = ("scores", "f1", "score")
_INPUTS = """
Args:
    predictions: list of str, the hypotheses.
    references: list of str, or of lists with one str, one for each prediction (absent for reference-free metrics).
    sources: list of str, what was translated (only for metrics that need it).
Returns:
    scores: list of float, one for each prediction.
    mean_score: float, their average.
"""


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
        **options: Any,
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
        parameter = None
        with suppress(TypeError, ValueError):  # builtins without a signature
            parameter = inspect.signature(function).parameters.get("sources")
        required = parameter is not None and parameter.default is inspect.Parameter.empty
        self.needs_source = required if needs_source is None else needs_source
        self.takes_source = parameter is not None
        self.parameters, self.device = parameters, device

    def settings(self) -> dict[str, object]:
        """Return the options; the function by its code (`fingerprint.digest`). What else it depends on, `name` says."""
        scale = self.scale if self.scale_known else None
        return {**super().settings(), "function": self._digest, "scale": scale}

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        def run(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            arguments = [[table.texts[k] for k in hypotheses], [table.texts[k] for k in references]]
            named = {"sources": [table.sources[k] for k in sources]} if table.sources else {}
            return as_scores(self.function(*arguments, **named), hypotheses.size, self.name)

        return run


def as_scores(values: object, pairs: int, name: str) -> FloatArray:
    """Read (pairs,) numbers from what a function returned: lists, arrays, tensors of any device and dtype."""
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
    """Strip torch's gradients, devices and dtypes, which numpy does not know."""
    torch = sys.modules.get("torch")  # a function that returns a tensor has imported it
    if torch is not None and isinstance(values, torch.Tensor):
        return values.detach().double().cpu().numpy()
    return [_plain(value) for value in values] if isinstance(values, (list, tuple)) else values


class EvaluateUtility(Utility):
    """The per-pair field of an `evaluate` module.

    Args:
        module: an `evaluate.EvaluationModule`, or what `evaluate.load` takes.
        output_key: the field that holds one number for each pair; default: the first of `scores`, `f1`, `score`.
        higher_is_better, scale, symmetric: as those of a function.
        compute_options: further arguments of its compute() (such as `lang="de"`).
        trust_remote_code: needed for a module by path or name, which is a program that runs here.
    """

    joins_sources = True

    def __init__(
        self,
        module: evaluate.EvaluationModule | str,
        *,
        output_key: str | None = None,
        higher_is_better: bool = True,
        scale: float | None = None,
        symmetric: bool = False,
        parameters: int = 0,
        compute_options: Mapping[str, object] | None = None,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._loaded_from = module if isinstance(module, str) else None
        if isinstance(module, str):
            if trust_remote_code is not True:
                raise ValueError(
                    f"{module!r} is a program that would run here: read it, and give trust_remote_code=True "
                    "(--trust-remote-code) if you trust it"
                )
            from evaluate import load

            module = load(module)
        self.module = module
        self._digest = digest([module._hash or type(module), module.config_name])
        self.output_key = output_key
        self.higher_is_better, self.symmetric = higher_is_better, symmetric
        self.scale, self.scale_known = (1.0, False) if scale is None else (float(scale), True)
        self.parameters, self.trust_remote_code = parameters, trust_remote_code
        self.compute_options = dict(compute_options or {})
        features = module.features
        fields = set(features[0] if isinstance(features, list) else features)
        self.needs_source, self.needs_reference = "sources" in fields, "references" in fields
        self.name = str(module.name)

    @property
    def identity(self) -> str:
        return f"evaluate:{describe(self.name)}@{self._digest}"

    def settings(self) -> dict[str, object]:
        """Return the options; the module is in `identity`, by the code it was loaded from."""
        shown = {key: value for key, value in super().settings().items() if key != "module"}
        return {**shown, "scale": self.scale if self.scale_known else None}

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Call compute() once for all new pairs, since a call takes milliseconds."""

        def run(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            inputs: dict[str, list[str]] = {"predictions": [table.texts[k] for k in hypotheses]}
            if self.needs_reference:
                inputs["references"] = [table.texts[k] for k in references]
            if self.needs_source:
                inputs["sources"] = [table.sources[k] for k in sources]
            statistics.batches += 1
            return self._per_pair(self.module.compute(**inputs, **self.compute_options), hypotheses.size)

        return run

    def __getstate__(self) -> dict[str, object]:
        # A module holds files and locks, so it is made again where the utility is read.
        recipe = (type(self.module), self.module.config_name, self.module.seed, self.module._hash)
        return {**super().__getstate__(), "module": self._loaded_from or recipe}

    def __setstate__(self, state: dict[str, object]) -> None:
        from evaluate import load

        self.__dict__.update(state)
        if isinstance(self.module, str):
            self.module = load(self.module)
        else:
            kind, config_name, seed, code = self.module
            self.module = kind(config_name=config_name, seed=seed, hash=code)
            self.module.download_and_prepare()

    def _per_pair(self, result: Mapping[str, object], pairs: int) -> FloatArray:
        for key in [self.output_key] if self.output_key else [key for key in _PER_PAIR_KEYS if key in result]:
            if key not in result:
                raise ValueError(f"output_key={key!r} is not in the output of {self.name!r}: it has {sorted(result)}")
            with suppress(ValueError):  # not a list of numbers: a field of the corpus
                if (values := as_scores(result[key], pairs, self.name)).shape == (pairs,):
                    return values
        raise ValueError(
            f"{self.name!r} gives no list with one number for each pair (fields: {sorted(result)}), so it is a corpus "
            "metric and cannot be a utility. If one of its fields is per pair, name it with output_key="
        )


class MatrixUtility(Utility):
    """Looks scores up in an (N, M) matrix by text, and counts them as calls.

    Args:
        matrix: (N, M) scores of hypotheses × references.
        hypotheses: N unique texts naming the rows; default "0", "1", ...
        references: M unique texts naming the columns; default: the hypotheses if the matrix is square.
        symmetric: True if the scores came from a symmetric utility, which counts swapped pairs once.
        scale: the span that corresponds to 1.0 (100 for a 0–100 metric).
        parameters: size of the network behind the scores, for the cost model.
    """

    def __init__(
        self,
        matrix: npt.ArrayLike,
        hypotheses: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        *,
        name: str = "matrix",
        higher_is_better: bool = True,
        symmetric: bool = False,
        scale: float = 1.0,
        parameters: int = 0,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.matrix: FloatArray = np.asarray(matrix, dtype=np.float64)
        if self.matrix.ndim != 2:
            raise ValueError(f"matrix must be 2-D (hypotheses × references), got shape {self.matrix.shape}")
        n, m = self.matrix.shape
        if hypotheses is None:
            hypotheses = [str(i) for i in range(n)]
        if references is None:
            references = hypotheses if m == n else [str(j) for j in range(m)]
        self.hypotheses, self.references = list(hypotheses), list(references)
        self._rows = _positions(hypotheses, n, "hypotheses")
        self._columns = _positions(references, m, "references")
        self._digest = digest([self.matrix, self.hypotheses, self.references])
        self.name, self.higher_is_better, self.symmetric, self.device = name, higher_is_better, symmetric, device
        self.scale, self.parameters = float(scale), int(parameters)

    @classmethod
    def standing_for(cls, utility: Utility, matrix: npt.ArrayLike, texts: Sequence[str]) -> MatrixUtility:
        """Store the scores of another utility, under its name, on its scale and at its cost."""
        return cls(
            matrix,
            texts,
            name=utility.name,
            higher_is_better=utility.higher_is_better,
            scale=utility.scale,
            parameters=utility.parameters,
            price_per_pair=utility.price_per_pair,
            price_per_text=utility.price_per_text,
        )

    def settings(self) -> dict[str, object]:
        """Return the options; the matrix and the texts that name its rows and columns as one digest."""
        shown = {key: value for key, value in super().settings().items() if key not in ("hypotheses", "references")}
        return {**shown, "matrix": self._digest}

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Look pairs up by their texts."""
        rows = np.array([self._rows.get(text, -1) for text in table.texts], dtype=np.int64)
        columns = np.array([self._columns.get(text, -1) for text in table.texts], dtype=np.int64)

        def look_up(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            i, j = rows[hypotheses], columns[references]
            for found, asked, side in ((i, hypotheses, "hypothesis"), (j, references, "reference")):
                if (found < 0).any():
                    unknown = table.texts[int(asked[np.flatnonzero(found < 0)[0]])]
                    raise ValueError(f"the stored matrix of {self.name!r} has no {side} {unknown!r}")
            return np.asarray(self.matrix[i, j])

        return look_up


def _positions(texts: Sequence[str], size: int, name: str) -> dict[str, int]:
    index = {text: position for position, text in enumerate(texts)}
    if len(texts) != size or len(index) != size:
        raise ValueError(f"{name} must be {size} unique texts, got {len(texts)} of which {len(index)} are unique")
    return index


@functools.cache
def metric_class() -> type[evaluate.Metric]:
    """Return the class of the `evaluate` metrics that utilities are; its base takes seconds to import.

    It is made of a utility, and takes the options of `evaluate.Metric`. References may be lists of one text each, as
    many of evaluate's own metrics want them.
    """
    import datasets
    import evaluate

    class UtilityMetric(evaluate.Metric):  # type: ignore[misc]
        """`compute(predictions=, references=, sources=)` through the utility's engine."""

        def __init__(self, utility: Utility, **options: Any) -> None:
            self.utility = utility
            super().__init__(**options)

        def _info(self) -> evaluate.MetricInfo:
            needed = {"references": self.utility.needs_reference, "sources": self.utility.needs_source}
            kind = type(self.utility)
            fields = ["predictions", *(name for name, is_needed in needed.items() if is_needed)]
            return evaluate.MetricInfo(
                description=(inspect.getdoc(kind) or "").partition("\n\n")[0],
                citation=sys.modules[kind.__module__].__doc__ or "",
                inputs_description=_INPUTS,
                features=datasets.Features({name: datasets.Value("string") for name in fields}),
            )

        @property
        def name(self) -> str:
            return self.utility.name

        def add(self, *, prediction: str | None = None, reference: Any = None, **kwargs: str) -> None:
            """Add a pair, as a batch of one: datasets 4 writes batches before the single examples that came earlier."""
            given = {"predictions": prediction, "references": reference, **kwargs}
            self.add_batch(**{name: [text] for name, text in given.items() if text is not None})

        def add_batch(self, *, references: Any = None, **batch: Any) -> None:
            """Add pairs."""  # evaluate adds to it
            for position, given in enumerate(references or ()):
                if isinstance(given, (list, tuple)) and len(given) != 1:
                    raise ValueError(
                        f"references[{position}] has {len(given)} texts, and {self.name} compares with one: score each "
                        "in a call of its own"
                    )
            if references is not None:
                references = [given[0] if isinstance(given, (list, tuple)) else given for given in references]
            super().add_batch(references=references, **batch)

        def _compute(
            self, predictions: list[str], references: list[str] | None = None, sources: list[str] | None = None
        ) -> dict[str, list[float] | float]:
            if not predictions:
                raise ValueError(f"predictions is empty: {self.name} has no mean of nothing, so give at least one text")
            scores = self.utility.score(predictions, references, sources)
            return {"scores": scores.tolist(), "mean_score": float(scores.mean())}

    return UtilityMetric
