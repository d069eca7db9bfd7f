"""Candidates: the unique texts drawn from a model, with how often each was drawn.

A utility of equal strings is equal, so every stage works on unique texts and weights them by their counts.
The result is the same as on the expanded list, at (unique)² instead of N² utility calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .config import integer
from .engines import Detokenizer, EngineOutput, read_ctranslate2, read_generate, read_openai, read_vllm
from .engines import TokenIds as TokenIds

if TYPE_CHECKING:
    from .types import Tokenizer

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_MOST_DRAWS = 2**53  # weights are counts divided by their sum
_ROUNDING = 1e-9  # of double precision, a few sums later
_COUNT = integer(1)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Unique texts in order of first appearance.

    Args:
        texts: n unique strings (equality of the exact text, no normalisation).
        counts: (n,) how often each was drawn, at least 1.
        token_ids: per text the token ids of its most probable tokenisation among those drawn, where known.
        logprobs: (n,) log-probability of each text under the model, where known.
        sampling_logprobs: (n,) log-probability under the (truncated) distribution it was drawn from, where known.

    Attributes:
        total: how many were drawn, duplicates included: the paper's N.
        weights: (n,) share of the draws that each text holds; sums to 1.
    """

    texts: tuple[str, ...]
    counts: IntArray
    token_ids: tuple[TokenIds, ...] | None = None
    logprobs: FloatArray | None = None
    sampling_logprobs: FloatArray | None = None
    total: int = field(init=False)
    weights: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        texts = checked_texts(self.texts, "candidates")
        if not texts:
            raise ValueError("candidates is empty: give at least one text")
        n = len(texts)
        if len(set(texts)) != n:
            raise ValueError("candidates has repeated texts: use Candidates.from_texts, which counts them")
        object.__setattr__(self, "texts", tuple(texts))
        object.__setattr__(self, "counts", _counts(self.counts, n))
        object.__setattr__(self, "total", int(self.counts.sum()))
        object.__setattr__(self, "weights", self.counts / self.total)
        if self.token_ids is not None:
            object.__setattr__(self, "token_ids", tuple(_token_ids(self.token_ids, n)))
        for name in ("logprobs", "sampling_logprobs"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, _log_probabilities(values, n, name))

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        *,
        counts: Iterable[int] | None = None,
        token_ids: Sequence[Sequence[int]] | None = None,
        logprobs: Iterable[float] | None = None,
        sampling_logprobs: Iterable[float] | None = None,
    ) -> Candidates:
        """Count duplicates; all arguments are aligned with `texts`, which may repeat.

        Equal texts with different token ids are different events, so their probabilities add up, and the ids of the
        most probable one are kept. Equal texts with equal ids (or without ids) are one event drawn again.
        """
        items = checked_texts(texts, "candidates")
        n = len(items)
        index: dict[str, int] = {}
        place = np.fromiter((index.setdefault(text, len(index)) for text in items), dtype=np.int64, count=n)
        drawn = np.ones(n, dtype=np.int64) if counts is None else _counts(counts, n)
        totals = np.zeros(len(index), dtype=np.int64)
        np.add.at(totals, place, drawn)
        if token_ids is None and logprobs is None and sampling_logprobs is None:
            return cls(tuple(index), totals)
        ids = None if token_ids is None else _token_ids(token_ids, n)
        # The first draw of every distinct text or, if they are known, of every distinct (text, token ids).
        first: dict[object, int] = {}
        for position, key in enumerate(items if ids is None else zip(items, ids, strict=True)):
            first.setdefault(key, position)
        events = np.array(list(first.values()), dtype=np.int64)
        summed: dict[str, FloatArray] = {}
        own: dict[str, FloatArray] = {}
        for name, given in (("logprobs", logprobs), ("sampling_logprobs", sampling_logprobs)):
            if given is not None:
                own[name], summed[name] = _log_probabilities(given, n, name), np.full(len(index), -np.inf)
                np.logaddexp.at(summed[name], place[events], own[name][events])
        kept = None
        if ids is not None:
            rank = own.get("logprobs", drawn)
            best: dict[int, int] = {}
            for position in events.tolist():
                text = int(place[position])
                if text not in best or rank[position] > rank[best[text]]:
                    best[text] = position
            kept = tuple(ids[best[text]] for text in range(len(index)))
        return cls(tuple(index), totals, kept, summed.get("logprobs"), summed.get("sampling_logprobs"))

    def with_more(self, other: Candidates) -> Candidates:
        """Return the draws of both; what only one of them knows of its texts is left out."""

        def both(name: str) -> list[Any] | None:
            first, second = getattr(self, name), getattr(other, name)
            return None if first is None or second is None else [*first, *second]

        known = {name: both(name) for name in ("token_ids", "logprobs", "sampling_logprobs")}
        return Candidates.from_texts([*self.texts, *other.texts], counts=[*self.counts, *other.counts], **known)

    @classmethod
    def from_counts(cls, counts: dict[str, int]) -> Candidates:
        """Take a mapping text → how often it was drawn, in the mapping's order."""
        return cls(tuple(counts), _counts(counts.values(), len(counts)))

    @classmethod
    def of(cls, candidates: Candidates | Iterable[str] | dict[str, int]) -> Candidates:
        """Take Candidates, a list of strings with duplicates, or a mapping text → count."""
        if isinstance(candidates, Candidates):
            return candidates
        if isinstance(candidates, dict):
            return cls.from_counts(candidates)
        return cls.from_texts(candidates)

    @classmethod
    def from_vllm(cls, output: object) -> Candidates:
        """Read vLLM's output: the RequestOutput of one prompt (`llm.generate(...)[k]`), or its `outputs`.

        Log-probabilities are there with `SamplingParams(logprobs=0)` or more; vLLM gives them under the model, before
        temperature and truncation, unless `logprobs_mode` says otherwise.
        """
        return cls._of_engine(read_vllm(output))

    @classmethod
    def from_ctranslate2(
        cls,
        result: object,
        tokenizer: Tokenizer | None = None,
        *,
        detokenize: Detokenizer | None = None,
        length_penalty: float = 1.0,
    ) -> Candidates:
        """Read CTranslate2's output: the result of one source, `translate_batch(...)[k]` or `generate_batch(...)[k]`.

        `generate_batch` needs `include_prompt_in_result=False`: the prompt would be taken for a part of each text.

        Args:
            tokenizer: of transformers, as the model was converted with.
            detokenize: instead of it, a function from tokens to a text (such as SentencePiece's `decode`).
            length_penalty: as given to CTranslate2 (its default is 1), by which its scores are normalised. Without
                `return_end_token=True` every text is taken to have ended before the longest length.
        """
        return cls._of_engine(read_ctranslate2(result, tokenizer, detokenize, length_penalty))

    @classmethod
    def from_openai(cls, response: object) -> Candidates:
        """Read OpenAI's API or a server that speaks it: one response with n choices, or its `choices`, also as JSON."""
        return cls._of_engine(read_openai(response))

    @classmethod
    def from_generate(
        cls,
        output: object,
        tokenizer: Tokenizer,
        *,
        rows: slice | Sequence[int] | None = None,
        prompt_length: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
    ) -> Candidates:
        """Read the output of transformers: what `model.generate(..., num_return_sequences=n)` returned.

        Args:
            output: token ids, or the output of `return_dict_in_generate=True`, with log-probabilities if it has
                `logits` (`output_logits=True`).
            rows: which rows belong to the source, such as slice(k * n, (k + 1) * n); default: all of them.
            prompt_length: tokens of each row that were not generated; not needed with logits or scores.
            eos_token_id: what ends a text; default: the tokenizer's.
        """
        return cls._of_engine(read_generate(output, tokenizer, rows, prompt_length, eos_token_id))

    @classmethod
    def _of_engine(cls, drawn: EngineOutput) -> Candidates:
        texts, ids, logprobs, sampling_logprobs = drawn
        return cls.from_texts(texts, token_ids=ids, logprobs=logprobs, sampling_logprobs=sampling_logprobs)

    @classmethod
    def pool(
        cls, pools: Sequence[Candidates | Iterable[str] | dict[str, int]], weights: Sequence[float] | None = None
    ) -> Candidates:
        """Pool what several models, or several sources of one meaning, have given.

        The expected utility is then over the mixture of the models (https://arxiv.org/abs/2503.05318). Token ids and
        log-probabilities are left out: those of different models are not comparable.

        Args:
            weights: how much each pool counts, as any positive numbers; default: every draw counts the same. Counts
                are multiplied by small integers that give the weights within 1 %, so budgets, which count draws, grow
                with them. Drawing from each model in proportion to its weight needs no weights here.
        """
        given = [cls.of(item) for item in pools]
        if not given:
            raise ValueError("pools is empty: give the candidates of at least one model")
        factors = _multipliers([pool.total for pool in given], weights)
        counts: dict[str, int] = {}
        for pool, factor in zip(given, factors, strict=True):
            for text, count in zip(pool.texts, pool.counts.tolist(), strict=True):
                counts[text] = counts.get(text, 0) + factor * count
        return cls.from_counts(counts)

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __repr__(self) -> str:
        return f"Candidates({len(self)} unique of {self.total} drawn)"

    @property
    def features(self) -> FloatArray:
        """(n, F) what sampling tells of each text: the logarithm of its count, and its log-probability where known."""
        columns = [np.log(self.counts)]
        if self.logprobs is not None and np.isfinite(self.logprobs).all():
            columns.append(self.logprobs)
        return np.column_stack(columns)

    def expanded(self) -> list[str]:
        """List the draws with duplicates, grouped by text."""
        return [text for text, count in zip(self.texts, self.counts, strict=True) for _ in range(int(count))]


def standardised(features: FloatArray) -> FloatArray:
    """Bring (n, F) features to mean 0 and variance 1; leave out those that are the same for all, up to rounding."""
    center, spread = features.mean(0), features.std(0)
    telling = spread > _ROUNDING * np.maximum(np.abs(center), np.finfo(float).tiny)
    return np.asarray((features - center)[:, telling] / spread[telling])


def checked_texts(texts: Iterable[str], name: str) -> list[str]:
    """Return the texts as a list; refuse a single string, and what is no string."""
    if isinstance(texts, str):
        raise TypeError(f"{name} is a single string: give a list of strings")
    items = list(texts)
    for position, text in enumerate(items):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{position}] is {type(text).__name__}, expected str")
    return items


def _token_ids(rows: Sequence[Sequence[int]], n: int) -> list[TokenIds]:
    ids = [tuple(int(token) for token in row) for row in rows]
    if len(ids) != n:
        raise ValueError(f"token_ids has {len(ids)} rows for {n} texts")
    return ids


def _counts(values: Iterable[int] | npt.NDArray[np.generic], n: int) -> IntArray:
    """Return (n,) counts of draws: integers of at least 1 whose sum float64 holds exactly."""
    given = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if any(type(value) is not int or value < 1 for value in given):
        given = [_COUNT(f"counts[{position}]", value) for position, value in enumerate(given)]
    if sum(given) >= _MOST_DRAWS:
        raise ValueError(f"counts must sum to less than 2**53, got {sum(given)}")
    if len(given) != n:
        raise ValueError(f"counts has shape ({len(given)},), expected ({n},): one value for each text")
    array = np.array(given, dtype=np.int64)
    array.flags.writeable = False
    return array


def _log_probabilities(values: Iterable[float] | npt.NDArray[np.generic], n: int, name: str) -> FloatArray:
    """Return (n,) finite numbers, or -inf, read-only."""
    array = np.array(values if isinstance(values, np.ndarray) else list(values))
    if array.shape != (n,):
        raise ValueError(f"{name} has shape {array.shape}, expected ({n},): one value for each text")
    made = array.astype(np.float64)
    bad = np.flatnonzero(np.isnan(made) | np.isposinf(made))
    if bad.size:
        raise ValueError(f"{name} has {'NaN' if np.isnan(made[bad[0]]) else 'infinity'} at index {bad[0]}")
    made.flags.writeable = False
    return made


def _multipliers(totals: Sequence[int], weights: Sequence[float] | None) -> list[int]:
    """Find small integers f with f_k · total_k in proportion to the weights, within 1 %."""
    if weights is None:
        return [1] * len(totals)
    if len(weights) != len(totals):
        raise ValueError(f"weights has {len(weights)} numbers for {len(totals)} pools: give one for each")
    wanted = np.asarray(weights, dtype=np.float64) / np.asarray(totals, dtype=np.float64)
    if not (np.isfinite(wanted).all() and (wanted > 0).all()):
        raise ValueError(f"weights must be positive numbers, got {list(weights)}: leave out a pool that has none")
    wanted /= wanted.min()
    for scale in range(1, 101):
        factors = np.rint(wanted * scale)
        if np.all(np.abs(factors / (wanted * scale) - 1) < 0.01):
            break
    return [int(factor) for factor in factors]
