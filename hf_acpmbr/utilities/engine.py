"""Between the decoders and the metrics: scores each distinct pair once, remembers it, and checks what comes back.

The engine works on unique texts. A pair is asked for by index; repeated pairs, pairs already scored in an earlier call
and, where the utility is symmetric, swapped pairs are never computed again. The metric itself is a `Kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..version import code_version
from .base import AggregatingKernel, Kernel, Statistics, TextTable, Utility, VectorKernel
from .cache import ScoreCache
from .identity import digest

if TYPE_CHECKING:
    from .lockstep import Turn

T = TypeVar("T")
_NO_INTS: IntArray = np.zeros(0, dtype=np.int64)
_NO_FLOATS: FloatArray = np.zeros(0)


class Scorer:
    """Scores of pairs over unique texts, kept between calls.

    Args:
        utility: the metric.
        hypotheses: N texts.
        references: M texts.
        sources: what was translated; one for all pairs, or several of which `score` picks.
        reference_counts: (M,) how often each reference is one, for utilities that count them (idf); default once.
        turn: the source's place among those that are decided together, see `lockstep`.
    """

    def __init__(
        self,
        utility: Utility,
        hypotheses: Sequence[str],
        references: Sequence[str],
        sources: Sequence[str] | None = None,
        reference_counts: IntArray | None = None,
        turn: Turn | None = None,
    ) -> None:
        if utility.needs_source and not sources:
            raise ValueError(f"utility {utility.name!r} needs the source text: pass source= (or sources=)")
        self.utility = utility
        self.statistics = Statistics()
        self.shape = (len(hypotheses), len(references))
        index: dict[str, int] = {}
        self._hypotheses = _number(hypotheses, index, "hypotheses")
        self._references = _number(references, index, "references")
        self.texts = list(index)
        self.sources = list(sources or ()) if utility.needs_source or utility.takes_source else []
        self._keys, self._values = _NO_INTS, _NO_FLOATS
        self._kernel: Kernel | None = None
        counts = np.bincount(self._references, weights=reference_counts, minlength=len(index))
        self.reference_counts: IntArray = counts.astype(np.int64)
        self._cache: ScoreCache | None = None
        if utility.cache is not None:
            self._cache = ScoreCache(utility.cache, self._cache_signature(), required=utility.cache_required)
        self.turn = turn
        self.order = (0, 0) if turn is None else turn.enter(self)

    @property
    def calls(self) -> int:
        """Pairs really computed so far."""
        return self.statistics.calls

    @property
    def kernel(self) -> Kernel:
        """The metric over these texts; made when the first pair is not answered by the cache."""
        if self._kernel is None:
            table = TextTable(self.texts, self.sources, self.reference_counts)
            self._kernel = self.utility.kernel(table, self.statistics)
        return self._kernel

    def __call__(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """(k,) float64 scores of hypotheses[rows] against references[columns]."""
        return self.score(rows, columns)

    def score(self, rows: IntArray, columns: IntArray, sources: IntArray | None = None) -> FloatArray:
        """The same with the index of each pair's source, for pairs of several sources."""
        keys = self._pair_keys(rows, columns, sources)
        self.statistics.requested += keys.size
        wanted, inverse = _unique(keys)
        position = np.searchsorted(self._keys, wanted)
        known = np.zeros(wanted.size, dtype=bool)
        inside = position < self._keys.size
        known[inside] = self._keys[position[inside]] == wanted[inside]
        new = wanted[~known]
        values = np.empty(wanted.size)
        values[known] = self._values[position[known]]
        if new.size:
            values[~known] = self._compute(new)
            keys_so_far = np.concatenate([self._keys, new])
            order = np.argsort(keys_so_far, kind="stable")
            self._keys = keys_so_far[order]
            self._values = np.concatenate([self._values, values[~known]])[order]
        return values if inverse is None else values[inverse]

    def aggregate_scores(self, rows: IntArray, weights: FloatArray) -> FloatArray:
        """(k, K) utility of hypotheses[rows] against K averaged references (reference aggregation, centroids).

        `weights` is (K, M): aggregate c is the mean of the references' representations (n-gram counts, sentence
        vectors) under weights[c]. Only for utilities with `can_aggregate` (https://arxiv.org/abs/2402.04251).
        """
        weights = np.asarray(weights, dtype=np.float64)
        if weights.ndim != 2 or weights.shape[1] != self.shape[1]:
            raise ValueError(f"weights has shape {weights.shape}, expected (K, {self.shape[1]})")
        h = self._hypotheses[_checked(rows, self.shape[0], "rows")]

        def aggregate() -> FloatArray:
            kernel = self.kernel if self.utility.can_aggregate else None
            if not isinstance(kernel, AggregatingKernel):
                raise TypeError(self._unable("average its references", "can_aggregate"))
            return kernel.aggregate_scores(h, self._references, weights)

        scores = self._on_device(aggregate)
        self.statistics.calls += h.size * weights.shape[0]
        return np.asarray(scores, dtype=np.float64)

    def vectors(self) -> tuple[FloatArray, FloatArray]:
        """Sentence vectors of the hypotheses (N, D) and references (M, D); only for utilities with `has_vectors`."""

        def both() -> tuple[FloatArray, FloatArray]:
            kernel = self._vector_kernel()
            return kernel.vectors(self._hypotheses), kernel.vectors(self._references)

        return self._on_device(both)

    def vector_scores(self, rows: IntArray, vectors: FloatArray) -> FloatArray:
        """(k, K) utility of hypotheses[rows] against K references given as (K, D) sentence vectors."""
        h = self._hypotheses[_checked(rows, self.shape[0], "rows")]
        scores = self._on_device(lambda: self._vector_kernel().vector_scores(h, vectors))
        self.statistics.calls += h.size * len(vectors)
        return np.asarray(scores, dtype=np.float64)

    def _on_device(self, work: Callable[[], T]) -> T:
        """Do it now, or in turn with the other sources."""
        return work() if self.turn is None else self.turn.alone(self, work)

    def _vector_kernel(self) -> VectorKernel:
        kernel = self.kernel if self.utility.has_vectors else None
        if not isinstance(kernel, VectorKernel):
            raise TypeError(self._unable("compare sentence vectors", "has_vectors"))
        return kernel

    def _unable(self, what: str, flag: str) -> str:
        return f"utility {self.utility.name!r} cannot {what}: its {flag} is False, or its kernel lacks the methods"

    def _cache_signature(self) -> str:
        own = f"{self.utility.signature}|class:{digest(type(self.utility))}|code:{code_version('utilities')}"
        if not self.utility.needs_all_references:
            return own
        counted = sorted(zip(self.texts, self.reference_counts.tolist(), strict=True))
        return f"{own}|references:{digest([pair for pair in counted if pair[1]])}"

    def _pair_keys(self, rows: IntArray, columns: IntArray, sources: IntArray | None) -> IntArray:
        h = self._hypotheses[_checked(rows, self.shape[0], "rows")]
        if not self.utility.needs_reference:
            r = np.zeros_like(h)
        else:
            r = self._references[_checked(columns, self.shape[1], "columns")]
        if h.shape != r.shape:
            raise ValueError(f"rows and columns must be equally long, got {h.size} and {r.size}")
        if self.utility.symmetric:
            h, r = np.minimum(h, r), np.maximum(h, r)
        pairs = h * len(self.texts) + r
        if not self.sources:
            return pairs
        s = np.zeros_like(h) if sources is None else _checked(sources, len(self.sources), "sources")
        return np.asarray(pairs * len(self.sources) + s)

    def _split_keys(self, keys: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        pairs, s = np.divmod(keys, len(self.sources)) if self.sources else (keys, np.zeros_like(keys))
        h, r = np.divmod(pairs, len(self.texts))
        return h, r, s

    def _compute(self, keys: IntArray) -> FloatArray:
        h, r, s = self._split_keys(keys)
        if self._cache is None:
            return self._run_kernel(h, r, s)
        digests = self._cache.digests(self.texts, self.sources, h, r if self.utility.needs_reference else None, s)
        values, found = self._cache.get(digests)
        self.statistics.cached += int(found.sum())
        missing = np.flatnonzero(~found)
        # In blocks, so that a run that is killed keeps what it has paid for.
        for block in np.array_split(missing, -(-missing.size // self._cache.block)) if missing.size else ():
            values[block] = self._run_kernel(h[block], r[block], s[block])
            self._cache.put([digests[k] for k in block], values[block])
        return values

    def _run_kernel(self, h: IntArray, r: IntArray, s: IntArray) -> FloatArray:
        try:
            values = self.kernel(h, r, s) if self.turn is None else self.turn.score(self, (h, r, s))
            values = np.asarray(values, dtype=np.float64)
        except (TypeError, UnicodeError) as error:  # what tokenizers raise for strings that are not text
            if (text := next(filter(_broken, [*self.texts, *self.sources]), None)) is None:
                raise
            raise ValueError(f"{text!r} has half of a surrogate pair, which is not text: remove it") from error
        self.statistics.calls += h.size
        if values.shape != h.shape:
            raise ValueError(f"utility {self.utility.name!r} gave {values.shape} scores for {h.size} pairs")
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise ValueError(self._not_finite(values, bad, h, r, s))
        return values

    def _not_finite(self, values: FloatArray, bad: IntArray, h: IntArray, r: IntArray, s: IntArray) -> str:
        shown = []
        for k in bad[:3].tolist():
            texts = {"hypothesis": self.texts[h[k]]}
            if self.utility.needs_reference:
                texts["reference"] = self.texts[r[k]]
            if self.sources:
                texts["source"] = self.sources[s[k]]
            shown.append(f"{values[k]} for " + ", ".join(f"{name} {text!r}" for name, text in texts.items()))
        return (
            f"utility {self.utility.name!r} gave NaN or infinity for {bad.size} of {values.size} pairs: "
            + "; ".join(shown)
            + ". Check these texts, or score in dtype='float32' if the network overflows in half precision"
        )


def score_aligned(
    utility: Utility,
    hypotheses: Sequence[str],
    references: Sequence[str] | None,
    sources: Sequence[str] | None,
) -> FloatArray:
    """(k,) scores of aligned lists through one Scorer (or several, for metrics that hold every pair's text at once)."""
    columns = _aligned_columns(utility, hypotheses, references, sources)
    total = len(hypotheses)
    step = utility.pairs_at_once or max(total, 1)
    out = np.empty(total)
    for start in range(0, total, step):
        unique: list[list[str]] = []
        indices: list[IntArray] = []
        for column in columns:
            index: dict[str, int] = {}
            indices.append(_number(column[start : start + step], index, "texts"))
            unique.append(list(index))
        scorer = Scorer(utility, unique[0], unique[1], unique[2] or None, np.bincount(indices[1]))
        s = indices[2] if unique[2] else None
        out[start : start + step] = scorer.score(indices[0], indices[1], s)
    return out


def _aligned_columns(
    utility: Utility,
    hypotheses: Sequence[str],
    references: Sequence[str] | None,
    sources: Sequence[str] | None,
) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    total = len(hypotheses)
    if utility.needs_reference and references is None:
        raise ValueError(f"utility {utility.name!r} needs references")
    if utility.needs_source and sources is None:
        raise ValueError(f"utility {utility.name!r} needs sources")
    refs: Sequence[str] = references if references is not None and utility.needs_reference else [""] * total
    used = utility.needs_source or utility.takes_source
    srcs: Sequence[str] = sources if sources is not None and used else []
    if len(refs) != total or (sources is not None and used and len(srcs) != total):
        raise ValueError(
            f"hypotheses, references and sources must be equally long, got {total}, {len(refs)} and {len(srcs)}"
        )
    return hypotheses, refs, srcs


def _number(texts: Sequence[str], index: dict[str, int], name: str) -> IntArray:
    if isinstance(texts, str):
        raise TypeError(f"{name} is a single string: give a list of strings")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{position}] is {type(text).__name__}, expected str")
    return np.fromiter((index.setdefault(text, len(index)) for text in texts), dtype=np.int64, count=len(texts))


def _checked(indices: IntArray, size: int, name: str) -> IntArray:
    indices = np.asarray(indices, dtype=np.int64)
    if indices.ndim != 1:
        raise ValueError(f"{name} must be 1-D, got shape {indices.shape}")
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise ValueError(f"{name} has indices outside 0..{size - 1}")
    return indices


def _unique(keys: IntArray) -> tuple[IntArray, IntArray | None]:
    """Sorted distinct keys and where each key went; None if they were sorted and distinct already."""
    if keys.size < 2 or bool(np.all(keys[1:] > keys[:-1])):
        return keys, None
    distinct, inverse = np.unique(keys, return_inverse=True)
    return distinct, inverse.reshape(-1)


def _broken(text: str) -> bool:
    """Whether it has a lone surrogate, which has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
