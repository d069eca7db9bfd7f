"""What a utility is: the contract between the decoders, the engine and each metric's own file."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from ..candidates import FloatArray, IntArray

if TYPE_CHECKING:
    import evaluate

    from .engine import Scorer

Self = TypeVar("Self", bound="Utility")


@dataclass
class Statistics:
    """What scoring has cost so far.

    Attributes:
        calls: pairs really computed: after dropping repeated pairs, symmetric twins, known and cached ones.
        requested: pairs asked for.
        cached: pairs answered by the persistent cache.
        encoded: texts run through an encoder (utilities that encode each text once).
        batches: forward passes.
        tokens: real tokens in those batches.
        padded_tokens: tokens with padding.
        out_of_memory: times a batch was halved.
    """

    calls: int = 0
    requested: int = 0
    cached: int = 0
    encoded: int = 0
    batches: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    out_of_memory: int = 0

    @property
    def padding(self) -> float:
        """Share of the computed tokens that were padding."""
        return 1.0 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


@dataclass(frozen=True)
class TextTable:
    """What a kernel is made for.

    Attributes:
        texts: unique texts, hypotheses and references together.
        sources: unique sources; empty for utilities that need none.
        references: which of the texts are references.
    """

    texts: Sequence[str]
    sources: Sequence[str]
    references: IntArray


class Kernel(Protocol):
    """A utility's own arithmetic over one list of unique texts; the engine calls it with pairs that are new."""

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray, /) -> FloatArray:
        """(k,) scores of text pairs given as indices into the texts (and sources) the kernel was made for."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """A utility prepared for two lists of unique texts."""

    statistics: Statistics

    @property
    def calls(self) -> int:
        """Pairs really computed so far."""
        ...

    def __call__(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """(k,) scores of hypotheses[rows] against references[columns]."""
        ...


class Utility(ABC):
    """A metric as an MBR utility u(hypothesis, reference[, source]).

    Every utility is also an `evaluate.Metric`: `compute(predictions=, references=, sources=)`, `features`, `citation`
    and the rest work, and `isinstance(utility, evaluate.Metric)` holds. evaluate takes seconds to import, so the
    metric part is made on first use and the decoders never pay for it.

    Args:
        cache: file of the persistent score cache, shared by processes and runs; None keeps nothing.
        progress: show one progress bar while a network scores.
    """

    name: str
    higher_is_better: bool = True
    scale: float = 1.0
    scale_known: bool = True  # False: nobody has said, so whoever needs it looks at the scores
    parameters: int = 0
    needs_source: bool = False
    takes_source: bool = False  # works without the source, and uses it where there is one
    needs_reference: bool = True
    symmetric: bool = False
    can_aggregate: bool = False
    has_vectors: bool = False
    device: str = "cpu"
    pairs_at_once: ClassVar[int | None] = None
    description: str = ""
    citation: str = ""
    homepage: str = ""

    def __init__(self, *, cache: str | Path | None = None, progress: bool = False) -> None:
        self.cache = cache
        self.progress = progress

    @property
    def signature(self) -> str:
        """One word that says which metric this is, version included."""
        return self.name

    @abstractmethod
    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """The arithmetic over the table's texts."""

    def prepare(self, hypotheses: Sequence[str], references: Sequence[str], source: str | None = None) -> Scorer:
        """Scorer of hypotheses × references; keeps encodings between calls. `source` is what was translated."""
        from .engine import Scorer

        return Scorer(self, hypotheses, references, None if source is None else [source])

    def score(
        self, hypotheses: Sequence[str], references: Sequence[str] | None = None, sources: Sequence[str] | None = None
    ) -> FloatArray:
        """(k,) scores of aligned lists. Repeated pairs are computed once."""
        from .engine import score_aligned

        return score_aligned(self, hypotheses, references, sources)

    def as_metric(self) -> evaluate.Metric:
        """The `evaluate.Metric` whose compute() is this utility."""
        metric: evaluate.Metric | None = self.__dict__.get("_metric")
        if metric is None:
            from .metric import UtilityMetric

            metric = self.__dict__["_metric"] = UtilityMetric(self)
        return metric

    def compute(self, **inputs: Any) -> dict[str, Any]:
        """evaluate's call: `predictions=`, `references=`, `sources=` → {"scores": per pair, "mean_score": average}."""
        result: dict[str, Any] = self.as_metric().compute(**inputs)
        return result

    def __getattr__(self, name: str) -> Any:
        if name in _EVALUATE_NAMES:
            return getattr(self.as_metric(), name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # isinstance() falls back to __class__ (as for lazy proxies), so a check against evaluate.Metric succeeds without
    # evaluate being imported here: whoever asks has imported it.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self) if getattr(sys.modules.get("evaluate"), "Metric", None) is None else _presented(type(self))

    def __reduce__(self) -> tuple[Any, ...]:
        state = {key: value for key, value in self.__dict__.items() if key != "_metric"}
        return _restore, (type(self), state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.signature!r}, device={self.device!r})"


_PRESENTED: dict[type, type] = {}
# The rest of evaluate's interface. A fixed list, so that a harmless hasattr() does not import evaluate.
_EVALUATE_NAMES = frozenset(
    {"add", "add_batch", "codebase_urls", "download_and_prepare", "experiment_id", "features", "format", "info"}
    | {"inputs_description", "license", "module_type", "reference_urls", "streamable"}
)


def _presented(cls: type[Utility]) -> type:
    if cls not in _PRESENTED:
        from .metric import UtilityMetric

        _PRESENTED[cls] = type(cls.__name__, (cls, UtilityMetric), {"__module__": cls.__module__})
    return _PRESENTED[cls]


def _restore(cls: type[Self], state: dict[str, Any]) -> Self:
    utility = cls.__new__(cls)
    utility.__dict__.update(state)
    return utility
