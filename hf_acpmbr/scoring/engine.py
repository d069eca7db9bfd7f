"""Between the decoders and the metrics: scores each distinct pair once, remembers it, and checks what comes back.

The engine works on unique texts. A pair is asked for by index; repeated pairs, pairs already scored in an earlier call
and, where the utility is symmetric, swapped pairs are never computed again. The metric itself is a `Kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from ..version import code_version
from .cache import ScoreCache
from .fingerprint import digest
from .utility import AggregatingKernel, Kernel, Statistics, TextTable, Utility, VectorKernel

# Hypotheses, references and sources of k pairs, as indices.
Indices: TypeAlias = "tuple[IntArray, IntArray, IntArray]"
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
    """

    def __init__(
        self,
        utility: Utility,
        hypotheses: Sequence[str],
        references: Sequence[str],
        sources: Sequence[str] | None = None,
        reference_counts: IntArray | None = None,
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
        self.cache: ScoreCache | None = None
        if utility.cache is not None:
            self.cache = ScoreCache(utility.cache, self._cache_signature(), required=utility.cache_required)

    def known(self, keys: IntArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Scores of sorted pairs where they were computed before, and where that is."""
        position = np.searchsorted(self._keys, keys)
        known = np.zeros(keys.size, dtype=bool)
        inside = position < self._keys.size
        known[inside] = self._keys[position[inside]] == keys[inside]
        values = np.empty(keys.size)
        values[known] = self._values[position[known]]
        return values, known

    def remember(self, keys: IntArray, values: FloatArray) -> None:
        """Keep scores of pairs that were not known."""
        keys = np.concatenate([self._keys, keys])
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._values = np.concatenate([self._values, values])[order]

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
        """Score pairs of several sources, with the index of each pair's source."""
        lookup = self.look_up(rows, columns, sources)
        while lookup.open:
            lookup.compute_alone()
        return lookup.answers()

    def look_up(self, rows: IntArray, columns: IntArray, sources: IntArray | None = None) -> Lookup:
        """Find out which of the pairs have to be computed."""
        return Lookup(self, self._pair_keys(rows, columns, sources))

    def aggregate_scores(self, rows: IntArray, weights: FloatArray) -> FloatArray:
        """(k, K) utility of hypotheses[rows] against K averaged references (reference aggregation, centroids).

        `weights` is (K, M): aggregate c is the mean of the references' representations (n-gram counts, sentence
        vectors) under weights[c]. Only for utilities with `can_aggregate` (https://arxiv.org/abs/2402.04251).
        """
        weights = np.asarray(weights, dtype=np.float64)
        if weights.ndim != 2 or weights.shape[1] != self.shape[1]:
            raise ValueError(f"weights has shape {weights.shape}, expected (K, {self.shape[1]})")
        h = self._hypotheses[_checked(rows, self.shape[0], "rows")]

        kernel = self.kernel if self.utility.can_aggregate else None
        if not isinstance(kernel, AggregatingKernel):
            raise TypeError(self._unable("average its references", "can_aggregate"))
        scores = kernel.aggregate_scores(h, self._references, weights)
        self.statistics.calls += h.size * weights.shape[0]
        return np.asarray(scores, dtype=np.float64)

    def vectors(self) -> tuple[FloatArray, FloatArray]:
        """Sentence vectors of the hypotheses (N, D) and references (M, D); only for utilities with `has_vectors`."""
        kernel = self._vector_kernel()
        return kernel.vectors(self._hypotheses), kernel.vectors(self._references)

    def vector_scores(self, rows: IntArray, vectors: FloatArray) -> FloatArray:
        """(k, K) utility of hypotheses[rows] against K references given as (K, D) sentence vectors."""
        h = self._hypotheses[_checked(rows, self.shape[0], "rows")]
        scores = self._vector_kernel().vector_scores(h, vectors)
        self.statistics.calls += h.size * len(vectors)
        return np.asarray(scores, dtype=np.float64)

    def _vector_kernel(self) -> VectorKernel:
        kernel = self.kernel if self.utility.has_vectors else None
        if not isinstance(kernel, VectorKernel):
            raise TypeError(self._unable("compare sentence vectors", "has_vectors"))
        return kernel

    def _unable(self, what: str, flag: str) -> str:
        return f"utility {self.utility.name!r} cannot {what}: its {flag} is False, or its kernel lacks the methods"

    def _cache_signature(self) -> str:
        own = f"{self.utility.signature}|class:{digest(type(self.utility))}|code:{code_version('scoring', 'metrics')}"
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

    def split_keys(self, keys: IntArray) -> Indices:
        """The texts and sources of pairs."""
        pairs, s = np.divmod(keys, len(self.sources)) if self.sources else (keys, np.zeros_like(keys))
        h, r = np.divmod(pairs, len(self.texts))
        return h, r, s

    def compute(self, pairs: Indices) -> FloatArray:
        """Scores by the scorer's own kernel, unchecked."""
        try:
            return np.asarray(self.kernel(*pairs), dtype=np.float64)
        except (TypeError, UnicodeError) as error:  # what tokenizers raise for strings that are not text
            if (text := next(filter(_broken, [*self.texts, *self.sources]), None)) is None:
                raise
            raise ValueError(f"{text!r} has half of a surrogate pair, which is not text: remove it") from error

    def check(self, values: FloatArray, pairs: Indices) -> None:
        """Refuse computed scores that are not one finite number per pair."""
        h, r, s = pairs
        if values.shape != h.shape:
            raise ValueError(f"utility {self.utility.name!r} gave {values.shape} scores for {h.size} pairs")
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise ValueError(self._not_finite(values, bad, h, r, s))

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


class Lookup:
    """Pairs that one scorer is asked for: known ones are answered at once, the others are computed block by block.

    A block is everything that is new; with a persistent cache it is a part, kept as soon as it is computed, so that a
    run that is killed keeps what it has paid for.
    """

    def __init__(self, scorer: Scorer, keys: IntArray) -> None:
        self.scorer = scorer
        scorer.statistics.requested += keys.size
        self._wanted, self._inverse = _unique(keys)
        self._values, known = scorer.known(self._wanted)
        self._new = np.flatnonzero(~known)
        self._pairs = scorer.split_keys(self._wanted[self._new])
        self._digests: list[bytes] = []
        todo = self._read_cache() if self._new.size and scorer.cache is not None else np.arange(self._new.size)
        step = todo.size if scorer.cache is None else scorer.cache.block
        self._blocks = np.array_split(todo, -(-todo.size // step)) if todo.size else []

    @property
    def open(self) -> bool:
        """Whether something is left to compute."""
        return bool(self._blocks)

    @property
    def block(self) -> Indices:
        """The pairs to compute next."""
        h, r, s = self._pairs
        part = self._blocks[0]
        return h[part], r[part], s[part]

    def compute_alone(self) -> None:
        """Compute the next block by the scorer's own kernel."""
        self.fill(self.scorer.compute(self.block))

    def fill(self, values: FloatArray) -> None:
        """Take the scores of the next block."""
        self.scorer.statistics.calls += self._blocks[0].size
        self.scorer.check(values, self.block)
        part = self._blocks.pop(0)
        self._values[self._new[part]] = values
        if self.scorer.cache is not None:
            self.scorer.cache.put([self._digests[k] for k in part], values)

    def answers(self) -> FloatArray:
        """(k,) scores of the pairs as they were asked for; the scorer remembers them."""
        if self._new.size:
            self.scorer.remember(self._wanted[self._new], self._values[self._new])
        return self._values if self._inverse is None else self._values[self._inverse]

    def _read_cache(self) -> IntArray:
        """Take what the cache has; which of the new pairs it does not have."""
        scorer, (h, r, s) = self.scorer, self._pairs
        assert scorer.cache is not None, "asked only where there is one"
        compared = r if scorer.utility.needs_reference else None
        self._digests = scorer.cache.digests(scorer.texts, scorer.sources, h, compared, s)
        values, found = scorer.cache.get(self._digests)
        scorer.statistics.cached += int(found.sum())
        self._values[self._new] = values
        return np.flatnonzero(~found)


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
