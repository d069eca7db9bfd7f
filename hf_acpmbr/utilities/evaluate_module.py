"""Any `evaluate` module as a utility: an object, a script path or a name that evaluate can load."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ..candidates import FloatArray, IntArray
from ..config import describe
from .base import CommonOptions, Kernel, Statistics, TextTable, Utility
from .function import as_scores
from .identity import digest

if TYPE_CHECKING:
    import evaluate
    from typing_extensions import Unpack

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
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**options)
        self._loaded_from = module if isinstance(module, str) else None
        if isinstance(module, str):
            check_trust(module, trust_remote_code)
            from evaluate import load

            module = load(module)
        self.module = module
        self._digest = digest([module._hash or type(module), module.config_name])
        self.output_key = output_key
        self.higher_is_better, self.symmetric = higher_is_better, symmetric
        self.scale, self.scale_known = (1.0, False) if scale is None else (float(scale), True)
        self.parameters, self.trust_remote_code = parameters, trust_remote_code
        self.compute_options = dict(compute_options or {})
        fields = _feature_names(module)
        self.needs_source, self.needs_reference = "sources" in fields, "references" in fields
        self.name = str(module.name)
        self.description, self.citation = str(module.description), str(module.citation)

    @property
    def identity(self) -> str:
        return f"evaluate:{describe(self.name)}@{self._digest}"

    def settings(self) -> dict[str, object]:
        """The options; the module is in `identity`, by the code it was loaded from."""
        shown = {key: value for key, value in super().settings().items() if key != "module"}
        return {**shown, "scale": self.scale if self.scale_known else None}

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """One compute() for all new pairs (every call costs milliseconds)."""

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
        keys = [self.output_key] if self.output_key else [key for key in _PER_PAIR_KEYS if key in result]
        for key in keys:
            if key not in result:
                raise ValueError(f"output_key={key!r} is not in the output of {self.name!r}: it has {sorted(result)}")
            with suppress(ValueError):  # not a list of numbers: a field of the corpus
                if (values := as_scores(result[key], pairs, self.name)).shape == (pairs,):
                    return values
        raise ValueError(
            f"{self.name!r} gives no list with one number for each pair (fields: {sorted(result)}), so it is a corpus "
            "metric and cannot be a utility. If one of its fields is per pair, name it with output_key="
        )


def check_trust(module: str, trust_remote_code: bool) -> None:
    """Refuse to run a program that nobody has said to be trusted."""
    if trust_remote_code is not True:
        raise ValueError(
            f"{module!r} is a program that would run here: read it, and give trust_remote_code=True "
            "(--trust-remote-code) if you trust it"
        )


def _feature_names(module: evaluate.EvaluationModule) -> set[str]:
    features = module.features
    return set(features[0] if isinstance(features, list) else features)
