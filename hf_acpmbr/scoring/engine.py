"""Between the decoders and the metrics: scores each distinct pair once, remembers it, and checks what comes back.

The engine works on unique texts. A pair is asked for by index; repeated pairs, pairs already scored in an earlier call
and, where the utility is symmetric, swapped pairs are never computed again. The metric itself is a `Kernel`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ..candidates import FloatArray, IntArray, checked_texts
from ..version import code_version
from .cache import ScoreCache
from .fingerprint import digest
from .utility import Kernel, Statistics, TextTable, Utility

# Hypotheses, references and sources of k pairs, as indices.
Indices: TypeAlias = "tuple[IntArray, IntArray, IntArray]"
_SURROGATE = re.compile("[\ud800-\udfff]")  # alone it has no UTF-8
_LARGEST = 1e100  # decoders square scores and add the squares up, so larger ones overflow

_ABILITIES = {"can_aggregate": "average its references", "has_vectors": "compare sentence vectors"}


class Scorer:
    """Scores of pairs over unique texts, kept between calls.

    Args:
        utility: the metric.
        hypotheses: N texts.
        references: M texts.
        sources: what was translated; one for all pairs, or several of which each call picks.
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
        self.hypotheses = numbered(hypotheses, index, "hypotheses")
        self.references = numbered(references, index, "references")
        self.texts = list(index)
        self.sources = list(sources or ()) if utility.needs_source or utility.takes_source else []
        self.reference_counts: IntArray = np.bincount(
            self.references, weights=reference_counts, minlength=len(index)
        ).astype(np.int64)
        # What was computed so far: keys of pairs, sorted, and their scores.
        self.known_keys: IntArray = np.zeros(0, dtype=np.int64)
        self.known_values: FloatArray = np.zeros(0)
        self.cache: ScoreCache | None = None
        if utility.cache is not None:
            key = f"{utility.signature}|class:{digest(type(utility))}|code:{code_version('scoring', 'metrics')}"
            if utility.needs_all_references:
                counted = sorted(zip(self.texts, self.reference_counts.tolist(), strict=True))
                key += f"|references:{digest([pair for pair in counted if pair[1]])}"
            self.cache = ScoreCache(utility.cache, key)

    @property
    def calls(self) -> int:
        """Pairs really computed so far."""
        return self.statistics.calls

    @cached_property
    def kernel(self) -> Kernel:
        """The metric over these texts; made when the first pair is not answered by the cache."""
        return self.utility.kernel(TextTable(self.texts, self.sources, self.reference_counts), self.statistics)

    def __call__(self, rows: IntArray, columns: IntArray, sources: IntArray | None = None) -> FloatArray:
        """Return (k,) float64 scores of hypotheses[rows] against references[columns].

        Of several sources, `sources` has the index of each pair's.
        """
        lookup = Lookup(self, rows, columns, sources)
        while lookup.blocks:
            lookup.compute()
        return lookup.answers()

    def learn(self, other: Scorer) -> None:
        """Take over what another scorer of the utility knows about texts that both have, and what it has cost.

        Raises:
            ValueError: if a score depends on all references, which are other ones here.
        """
        if self.utility.needs_all_references:
            raise ValueError(
                f"utility {self.utility.name!r} counts all references (idf), so its scores change when candidates are "
                "added: give a number of candidates, or a utility without idf"
            )
        place = {text: k for k, text in enumerate(self.texts)}
        here = np.array([place.get(text, -1) for text in other.texts], dtype=np.int64)
        count = max(len(self.sources), 1)
        pairs, source = np.divmod(other.known_keys, count)
        h, r = (here[texts] for texts in np.divmod(pairs, len(other.texts)))
        if self.utility.symmetric:
            h, r = np.minimum(h, r), np.maximum(h, r)
        both = (h >= 0) & (r >= 0)
        keys = ((h * len(self.texts) + r) * count + source)[both]
        order = np.argsort(keys)
        self.known_keys, self.known_values = keys[order], other.known_values[both][order]
        self.statistics = other.statistics

    def aggregate_scores(self, rows: IntArray, weights: FloatArray) -> FloatArray:
        """Return (k, K) utilities of hypotheses[rows] against K averaged references (aggregation, centroids).

        `weights` is (K, M): aggregate c is the mean of the references' representations (n-gram counts, sentence
        vectors) under weights[c]. Only for utilities with `can_aggregate` (https://arxiv.org/abs/2402.04251).
        """
        weights = np.asarray(weights, dtype=np.float64)
        if weights.ndim != 2 or weights.shape[1] != self.shape[1]:
            raise ValueError(f"weights has shape {weights.shape}, expected (K, {self.shape[1]})")
        h = self.hypotheses[_checked(rows, self.shape[0], "rows")]
        kernel = self._kernel_with("can_aggregate")
        if self.utility.has_vectors:
            scores = kernel.vector_scores(h, weights @ kernel.vectors(self.references))
        else:
            scores = kernel.aggregate_scores(h, self.references, weights)
        self.statistics.calls += h.size * weights.shape[0]
        return np.asarray(scores, dtype=np.float64)

    def vectors(self) -> tuple[FloatArray, FloatArray]:
        """Return the hypotheses' (N, D) and references' (M, D) sentence vectors, of utilities with `has_vectors`."""
        kernel = self._kernel_with("has_vectors")
        return kernel.vectors(self.hypotheses), kernel.vectors(self.references)

    def vector_scores(self, rows: IntArray, vectors: FloatArray) -> FloatArray:
        """Return (k, K) utilities of hypotheses[rows] against K references given as (K, D) sentence vectors."""
        h = self.hypotheses[_checked(rows, self.shape[0], "rows")]
        scores = self._kernel_with("has_vectors").vector_scores(h, vectors)
        self.statistics.calls += h.size * len(vectors)
        return np.asarray(scores, dtype=np.float64)

    def _kernel_with(self, ability: str) -> Any:
        if not getattr(self.utility, ability):
            raise TypeError(f"utility {self.utility.name!r} cannot {_ABILITIES[ability]}: its {ability} is False")
        return self.kernel


class Lookup:
    """Pairs that one scorer is asked for: known ones are answered at once, the others are computed block by block.

    A block is everything that is new; with a persistent cache it is a part, kept as soon as it is computed, so that a
    run that is killed keeps what it has paid for.

    Args:
        rows, columns, sources: the pairs, as `Scorer.__call__` takes them.

    Attributes:
        blocks: what is left to compute: places among the new pairs, and the pairs.
    """

    def __init__(self, scorer: Scorer, rows: IntArray, columns: IntArray, sources: IntArray | None = None) -> None:
        self.scorer, utility = scorer, scorer.utility
        h = scorer.hypotheses[_checked(rows, scorer.shape[0], "rows")]
        r = np.zeros_like(h)
        if utility.needs_reference:
            r = scorer.references[_checked(columns, scorer.shape[1], "columns")]
            if h.shape != r.shape:
                raise ValueError(f"rows and columns must be equally long, got {h.size} and {r.size}")
        if utility.symmetric:
            h, r = np.minimum(h, r), np.maximum(h, r)
        # One number per pair of texts (and source): the same pair has the same one.
        keys = h * len(scorer.texts) + r
        if scorer.sources:
            keys = keys * len(scorer.sources)
            if sources is not None:
                keys = keys + _checked(sources, len(scorer.sources), "sources")
        scorer.statistics.requested += keys.size
        self._wanted, self._inverse = keys, None
        if keys.size > 1 and not np.all(keys[1:] > keys[:-1]):
            self._wanted, self._inverse = np.unique(keys, return_inverse=True)
        place = np.searchsorted(scorer.known_keys, self._wanted)
        known = np.zeros(self._wanted.size, dtype=bool)
        inside = place < scorer.known_keys.size
        known[inside] = scorer.known_keys[place[inside]] == self._wanted[inside]
        self._values = np.empty(self._wanted.size)
        self._values[known] = scorer.known_values[place[known]]
        self._new = np.flatnonzero(~known)
        pairs, s = np.divmod(self._wanted[self._new], max(len(scorer.sources), 1))
        h, r = np.divmod(pairs, len(scorer.texts))
        self._digests: list[bytes] = []
        todo, step = np.arange(self._new.size), max(self._new.size, 1)
        if scorer.cache is not None and todo.size:
            compared: Sequence[str | None] = scorer.texts if utility.needs_reference else [None] * len(scorer.texts)
            translated: Sequence[str | None] = scorer.sources or [None]
            asked = ((scorer.texts[i], compared[j], translated[k]) for i, j, k in zip(h, r, s, strict=True))
            self._digests = scorer.cache.digests(asked)
            self._values[self._new], found = scorer.cache.get(self._digests)
            scorer.statistics.cached += int(found.sum())
            todo, step = np.flatnonzero(~found), scorer.cache.block
        parts = [todo[start : start + step] for start in range(0, todo.size, step)]
        self.blocks: list[tuple[IntArray, Indices]] = [(part, (h[part], r[part], s[part])) for part in parts]

    def compute(self, values: FloatArray | None = None) -> Lookup:
        """Take the scores of the next block, by default those of the scorer's own kernel; return the lookup itself.

        They are refused if they are not one finite number per pair.
        """
        scorer, (part, pairs) = self.scorer, self.blocks.pop(0)
        if values is None:
            try:
                values = np.asarray(scorer.kernel(*pairs), dtype=np.float64)
            except (TypeError, UnicodeError) as error:  # what tokenizers raise for strings that are not text
                text = next((text for text in [*scorer.texts, *scorer.sources] if _SURROGATE.search(text)), None)
                if text is None:
                    raise
                raise ValueError(f"{text!r} has half of a surrogate pair, which is not text: remove it") from error
        scorer.statistics.calls += part.size
        if values.shape != part.shape:
            raise ValueError(f"utility {scorer.utility.name!r} gave {values.shape} scores for {part.size} pairs")
        if not (np.abs(values) <= _LARGEST).all():
            raise ValueError(self._unusable(values, pairs))
        self._values[self._new[part]] = values
        if scorer.cache is not None:
            scorer.cache.put([self._digests[k] for k in part], values)
        return self

    def answers(self) -> FloatArray:
        """Return the (k,) scores of the pairs as they were asked for; the scorer remembers them."""
        if self._new.size:
            keys = np.concatenate([self.scorer.known_keys, self._wanted[self._new]])
            values = np.concatenate([self.scorer.known_values, self._values[self._new]])
            order = np.argsort(keys, kind="stable")
            self.scorer.known_keys, self.scorer.known_values = keys[order], values[order]
        return self._values if self._inverse is None else self._values[self._inverse]

    def _unusable(self, values: FloatArray, pairs: Indices) -> str:
        scorer, bad, shown = self.scorer, np.flatnonzero(~(np.abs(values) <= _LARGEST)), []
        finite = np.isfinite(values).all()
        for k in bad[:3].tolist():
            h, r, s = (int(indices[k]) for indices in pairs)
            texts = {"hypothesis": scorer.texts[h]}
            if scorer.utility.needs_reference:
                texts["reference"] = scorer.texts[r]
            if scorer.sources:
                texts["source"] = scorer.sources[s]
            shown.append(f"{values[k]} for " + ", ".join(f"{name} {text!r}" for name, text in texts.items()))
        what = f"numbers beyond {_LARGEST:g}" if finite else "NaN or infinity"
        remedy = "divide them" if finite else "score in dtype='float32' if the network overflows in half precision"
        return (
            f"utility {scorer.utility.name!r} gave {what} for {bad.size} of {values.size} pairs: {'; '.join(shown)}. "
            f"Check these texts, or {remedy}"
        )


def numbered(texts: Sequence[str], index: dict[str, int], name: str) -> IntArray:
    """Number texts by `index`, which gets those that it does not have yet."""
    items = checked_texts(texts, name)
    return np.fromiter((index.setdefault(text, len(index)) for text in items), dtype=np.int64, count=len(items))


def _checked(indices: IntArray, size: int, name: str) -> IntArray:
    indices = np.asarray(indices, dtype=np.int64)
    if indices.ndim != 1:
        raise ValueError(f"{name} must be 1-D, got shape {indices.shape}")
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise ValueError(f"{name} has indices outside 0..{size - 1}")
    return indices
