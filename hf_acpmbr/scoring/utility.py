"""What a utility is: the contract between the decoders, the engine and each metric's own file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import describe, number, optional
from .fingerprint import option_names, word

if TYPE_CHECKING:
    import evaluate

    from .engine import Scorer


U = TypeVar("U", bound="Utility")


@dataclass
class Statistics:
    """What scoring has cost so far."""

    calls: int = 0  # pairs really computed: after dropping repeated pairs, symmetric twins, known and cached ones
    requested: int = 0  # pairs asked for
    cached: int = 0  # pairs answered by the persistent cache
    encoded: int = 0  # texts run through an encoder, of utilities that encode each text once
    batches: int = 0  # forward passes
    tokens: int = 0  # real tokens in them
    padded_tokens: int = 0  # tokens with padding
    out_of_memory: int = 0  # times a batch was halved

    @property
    def padding(self) -> float:
        """Share of the computed tokens that were padding."""
        return 1.0 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


@dataclass(frozen=True)
class TextTable:
    """What a kernel is made for."""

    texts: Sequence[str]  # unique ones, hypotheses and references together
    sources: Sequence[str]  # unique ones; empty for utilities that need none
    reference_counts: IntArray  # how often each of the texts is a reference


class Kernel(Protocol):
    """A utility's own arithmetic over one list of unique texts; the engine calls it with pairs that are new.

    With `Utility.has_vectors` it also has `vectors(texts)`, which returns (k, D) sentence vectors, and
    `vector_scores(hypotheses, vectors)`, which scores texts against references given as (K, D) vectors: (k, K). With
    `can_aggregate` alone it has `aggregate_scores(hypotheses, references, weights)`, which scores texts against the
    means of the texts `references` (m,) under (K, m) weights: (k, K).
    """

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray, /) -> FloatArray:
        """Score pairs given as indices into the texts (and sources) that the kernel was made for: (k,)."""
        ...


PRICES = ("price_per_pair", "price_per_text")
# Options that cannot change a score. Every other option of a utility's constructor is part of its signature.
_RUNNING = ("device", "batch_tokens", "compile", "cache", "progress", "trust_remote_code")
NEUTRAL_OPTIONS = (*_RUNNING, *PRICES, "parameters")
# Tokens of a sentence, to price what runs once per pair against what runs for each of its tokens.
SENTENCE_TOKENS = 32
_PRICE = optional(number(0))


class Utility(ABC):
    """A metric as an MBR utility u(hypothesis, reference[, source]).

    A subclass keeps every option of its constructor as an attribute of the same name, from which the signature is made.

    Args:
        cache: file of the persistent score cache, shared by processes and runs; None keeps nothing.
        progress: show one progress bar while a network scores.
        price_per_pair, price_per_text: what a pair, and each text once, costs; default: what is known of the metric,
            see the properties of these names.
    """

    name: str
    higher_is_better: bool = True
    scale: float = 1.0
    scale_known: bool = True  # False if the scale is unknown; it is then inferred from the scores
    parameters: int = 0
    needs_source: bool = False
    takes_source: bool = False  # works without the source, and uses it if there is one
    needs_reference: bool = True
    needs_all_references: bool = False  # a pair's score depends on the whole list of references (idf)
    symmetric: bool = False
    joins_sources: bool = False  # pairs of several sources are better scored in one call: a network's batches
    encodes_texts: bool = False  # what costs is each text, once; a pair of encoded texts is next to free
    can_aggregate: bool = False  # its kernel scores against averaged references
    has_vectors: bool = False  # its kernel compares sentence vectors, which may be averaged with `can_aggregate`
    device: str = "cpu"
    pairs_at_once: ClassVar[int | None] = None
    quiet_options: ClassVar[Mapping[str, object]] = {}  # that came later: left out of the signature at these values
    loaded_as: tuple[str, dict[str, object]] | None = None  # what `load_utility` was asked for
    checkpoint_name: str | None = None  # a short name of the network behind it
    _metric: evaluate.Metric | None = None
    _declared: tuple[float | None, float | None] = (None, None)  # prices

    def __init__(
        self,
        *,
        cache: str | Path | None = None,
        progress: bool = False,
        price_per_pair: float | None = None,
        price_per_text: float | None = None,
    ) -> None:
        self.cache, self.progress = cache, progress
        self._declared = _PRICE("price_per_pair", price_per_pair), _PRICE("price_per_text", price_per_text)

    @property
    def price_per_pair(self) -> float | None:
        """What a new pair costs; None if unknown.

        The unit is the paper's: a network that reads both texts costs its parameters, which run for every token.
        What runs once per pair, as the head behind sentence vectors does, costs 1 / `SENTENCE_TOKENS` of its own.
        """
        return self.prices()[0] if self._declared[0] is None else self._declared[0]

    @property
    def price_per_text(self) -> float | None:
        """What each text costs once, when the first of its pairs is scored, in the unit of a pair; None if unknown."""
        return self.prices()[1] if self._declared[1] is None else self._declared[1]

    def prices(self) -> tuple[float | None, float | None]:
        """Find the price of a pair and of a text: by default all parameters run per pair, and none per text."""
        return (float(self.parameters), 0.0) if self.parameters else (None, None)

    @property
    def identity(self) -> str:
        """The first word of the signature: the name, for networks with the revision of the checkpoint."""
        return describe(self.name)

    def settings(self) -> dict[str, object]:
        """Every option that can change a score, with the value in force."""
        settings: dict[str, object] = {}
        for option in option_names(type(self)):
            if option in NEUTRAL_OPTIONS or option == "name":
                continue
            try:
                value = getattr(self, option)
            except AttributeError as error:
                raise TypeError(
                    f"{type(self).__name__} takes {option}= but has no attribute of that name: its signature is made "
                    "from the attributes, so keep every option as one"
                ) from error
            if option not in self.quiet_options or value != self.quiet_options[option]:
                settings[option] = value
        return settings

    @property
    def signature(self) -> str:
        """One word per metric: two utilities whose scores can differ have different ones."""
        return "|".join([self.identity, *(f"{option}:{word(value)}" for option, value in self.settings().items())])

    def snapshot(self: U) -> U:
        """Return a copy that later changes do not reach, without the network: what `signature` needs."""
        copy = object.__new__(type(self))
        own = {name: value for name, value in self.__dict__.items() if not hasattr(value, "named_parameters")}
        copy.__dict__.update(own)
        return copy

    @abstractmethod
    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Make the arithmetic over the table's texts."""

    def prepare(
        self,
        hypotheses: Sequence[str],
        references: Sequence[str],
        source: str | None = None,
    ) -> Scorer:
        """Make the scorer of hypotheses × references (translations of `source`); it keeps scores and encodings."""
        from .engine import Scorer

        return Scorer(self, hypotheses, references, None if source is None else [source])

    def score(
        self, hypotheses: Sequence[str], references: Sequence[str] | None = None, sources: Sequence[str] | None = None
    ) -> FloatArray:
        """Score aligned lists: (k,). Repeated pairs are computed once.

        A metric that holds the text of every pair at once (`pairs_at_once`) is asked in parts.
        """
        from .engine import Scorer, numbered

        total = len(hypotheses)
        for given, needed, name in ((references, "reference", "references"), (sources, "source", "sources")):
            if given is None and getattr(self, f"needs_{needed}"):
                raise ValueError(f"utility {self.name!r} needs {name}")
        reads_sources = sources is not None and (self.needs_source or self.takes_source)
        refs = references if references is not None and self.needs_reference else [""] * total
        srcs = sources if sources is not None and reads_sources else [""] * total
        if not len(refs) == len(srcs) == total:
            raise ValueError(
                f"hypotheses, references and sources must be equally long, got {total}, {len(refs)} and {len(srcs)}"
            )
        step = self.pairs_at_once or max(total, 1)
        out = np.empty(total)
        for start in range(0, total, step):
            part = slice(start, start + step)
            index: list[dict[str, int]] = [{}, {}, {}]
            h, r, s = (numbered(t[part], i, "texts") for t, i in zip((hypotheses, refs, srcs), index, strict=True))
            unique = [list(texts) for texts in index]
            scorer = Scorer(self, unique[0], unique[1], unique[2] if reads_sources else None, np.bincount(r))
            out[part] = scorer(h, r, s if reads_sources else None)
        return out

    def as_metric(self) -> evaluate.Metric:
        """Return the `evaluate.Metric` whose compute() is this utility; importing evaluate takes seconds."""
        if self._metric is None:
            from .adapters import metric_class

            self._metric = metric_class()(self, keep_in_memory=True)
        return self._metric

    def compute(self, **inputs: Sequence[str]) -> dict[str, list[float] | float]:
        """evaluate's call: `predictions=`, `references=`, `sources=` → {"scores": per pair, "mean_score": average}."""
        result: dict[str, list[float] | float] = self.as_metric().compute(**inputs)
        return result

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_metric"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, device={self.device!r})"
