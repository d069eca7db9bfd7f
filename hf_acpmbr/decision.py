"""What every decoder returns, and the line that repeats it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from .candidates import Candidates, FloatArray, IntArray
from .config import describe, integer, optional
from .matrix import ObservedScores, Pairs
from .version import __version__

_SHOWN = ("decoder", "target", "guide", "n", "seed")  # in a short signature
_DETAILS = re.compile(r"@\w+|\[.*?\](?=\+|$)")  # of a utility: its content and options
_DIGITS = 10  # of its digest: one in 10^12 that two runs share them


@dataclass(frozen=True)
class Ranked:
    """One entry of the n-best list."""

    index: int
    text: str
    expected: float
    count: int


@dataclass(frozen=True)
class DrawLoss:
    """What the choice may lose, in the target's units, because not all draws were taken.

    Args:
        drawn: how many were, duplicates included.
        most: how many there would have been; the loss is against full MBR over all of these.
        references: from the noise of the pseudo-references; of the careful bound all of it.
        unseen: because better candidates may not have been drawn.
    """

    drawn: int
    most: int
    references: float
    unseen: float

    @property
    def expected(self) -> float:
        """The sum of both."""
        return self.references + self.unseen


class _WhenRead:
    """A field that may be given as a `partial`, which makes the value when it is first read."""

    def __init__(self, name: str) -> None:
        self.key = f"_{name}"

    def __get__(self, decision: Decision, owner: type[Decision]) -> Any:
        value = decision.__dict__[self.key]
        if isinstance(value, partial):
            value = decision.__dict__[self.key] = value()
        return value

    def __set__(self, decision: Decision, value: object) -> None:
        decision.__dict__[self.key] = value


@dataclass(frozen=True, eq=False)
class Decision:
    """The choice among the candidates of one source, how it came about and what it cost.

    Args:
        candidates: the n unique candidates it was made from.
        expected: (n,) expected utility of every candidate, on the utility's own scale.
        higher_is_better: whether the best candidate is the one with the highest or the lowest expected utility.
        status: how it ended, for people ("exact", "completed in 12 sweeps", …).
        full_signature: one line from which the result can be repeated; `signature` is its short form.
        calls: pairs really scored, for each utility.
        encodings: texts run through an encoder, for each utility that encodes texts once.
        seconds: wall-clock time of each stage.
        paper_cost: Σ parameters / reduction rate of the utilities used, where the sizes are known.
        exact: whether `expected` is full MBR's, without completion.
        completion_error: mean squared error of the completed matrix against the full one, on a 0–100 scale and weighted
            as the drawn candidates are, where the full matrix is known.
        observed: the target's scores.
        guides: the scores of the other utilities used.
        matrix: (n, m) the target's full or completed scores, where it was built.
        order: candidate indices from best to worst, where a decoder does not rank by `expected` alone (`expected` is
            NaN for candidates that were dropped before any estimate).
        nbest_size: how many `nbest()` lists.
        completed: makes the completed scores that the decision was made from, where there was a completion.
        rounds: how many candidates took part in each round, for decoders that go in rounds.
        trials: the pairs that the target scored in each of them, where the decoder keeps them.
        deviation: (n,) standard deviations of `expected`, leaving out what moves all candidates alike; None where the
            decoder does not know them.
        shortlist: the candidates that the target judged, where a guide chose them.
        guide_gains: (n,) what that guide says of every candidate, more is better.
        expected_regret: what the choice is expected to lose against full MBR's, in the target's units; 0 if exact, None
            where the decoder does not know.
        exact_calls: pairs that full MBR with the deciding utility would have scored.
        cached: pairs answered by the score cache, for each utility that has one.
        draws: with `num_candidates="auto"`, how many draws there are and what more of them could gain.
    """

    candidates: Candidates
    expected: FloatArray = field(repr=False)
    higher_is_better: bool
    status: str
    full_signature: str
    calls: Mapping[str, int]
    seconds: Mapping[str, float]
    encodings: Mapping[str, int] = field(default_factory=dict)
    paper_cost: float | None = None
    exact: bool = False
    completion_error: float | None = None
    observed: ObservedScores | None = field(default=None, repr=False)
    guides: tuple[ObservedScores, ...] = field(default=(), repr=False)
    matrix: FloatArray | None = field(default=None, repr=False)
    order: IntArray | None = field(default=None, repr=False)
    nbest_size: int | None = None
    completed: Callable[[], FloatArray] | None = field(default=None, repr=False)
    rounds: tuple[int, ...] = field(default=(), repr=False)
    trials: tuple[Pairs, ...] = field(default=(), repr=False)
    deviation: FloatArray | None = field(default=None, repr=False)
    shortlist: IntArray | None = field(default=None, repr=False)
    guide_gains: FloatArray | None = field(default=None, repr=False)
    expected_regret: float | None = None
    exact_calls: int | None = None
    cached: Mapping[str, int] = field(default_factory=dict)
    draws: DrawLoss | None = None

    @cached_property
    def ranking(self) -> IntArray:
        """Candidate indices from best to worst; ties keep the order of appearance."""
        if self.order is not None:
            return self.order
        return np.argsort(-self.expected if self.higher_is_better else self.expected, kind="stable")

    @property
    def index(self) -> int:
        """Index of the chosen candidate among the unique ones."""
        return int(self.ranking[0])

    @property
    def text(self) -> str:
        """The chosen text."""
        return self.candidates.texts[self.index]

    def changed(self, **fields: object) -> Decision:
        """Return it with other fields; what is made when it is read stays unread."""
        twin = object.__new__(type(self))  # a copy would write the signature, as a pickle does
        twin.__dict__.update(self.__dict__ | fields)
        return twin

    def nbest(self, k: int | None = None) -> list[Ranked]:
        """List the k best different candidates, best first (default: as many as were asked for, or all)."""
        k = optional(integer(1))("nbest", self.nbest_size if k is None else k)
        texts, counts = self.candidates.texts, self.candidates.counts
        return [Ranked(i, texts[i], float(self.expected[i]), int(counts[i])) for i in self.ranking[:k].tolist()]

    @property
    def signature(self) -> str:
        """A short line that differs if `full_signature` does: what people compare, and a digest of everything."""
        version, parts = self.full_signature.split("|", 1)
        named = dict(part.split(":", 1) for part in parts.split("|"))
        shown = [f"{name}:{_DETAILS.sub('', named[name])}" for name in _SHOWN if name in named]
        return "|".join([version, *shown, f"digest:{hashlib.sha256(parts.encode()).hexdigest()[:_DIGITS]}"])

    @property
    def completed_matrix(self) -> FloatArray | None:
        """(n, m) the target's scores that the decision was made from, with the unscored ones filled in."""
        return self.matrix if self.matrix is not None or self.completed is None else self.completed()

    @property
    def total_calls(self) -> int:
        return sum(self.calls.values())

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_full_signature": self.full_signature}  # not the utilities that it is made from

    def __repr__(self) -> str:
        return f"Decision({self.summary()})"

    def summary(self) -> str:
        """Write one readable line: the choice, its expected utility, what was spent."""
        spent = (", ".join(f"{count:,} {name}" for name, count in self.calls.items()) or "no") + " calls"
        if self.encodings:
            spent += ", " + ", ".join(f"{count:,} {name}" for name, count in self.encodings.items()) + " encodings"
        if self.exact_calls and not self.exact:
            spent += f", full MBR has {self.exact_calls:,}"
        drawn = f"{len(self.candidates)} unique of {self.candidates.total}"
        return (
            f"{self.text!r} (expected {self.expected[self.index]:.4g}; {drawn}; {spent}; {self.status}; "
            f"{sum(self.seconds.values()):.2f} s)"
        )


# Most decisions' are never looked at, and the pairs of a full matrix take twice its memory. Set here, or they would be
# taken for the defaults.
Decision.full_signature = _WhenRead("full_signature")  # type: ignore[assignment]
Decision.observed = _WhenRead("observed")  # type: ignore[assignment]


def signature_text(parts: Mapping[str, object]) -> str:
    """Write ordered `key:value` parts, joined by bars; no value has white space or a bar."""
    return "|".join(f"{key}:{describe(value)}" for key, value in {"hf_acpmbr": __version__, **parts}.items())


def nested_signature(signature: str) -> str:
    """Write a signature as one value of another: chrF2|case:mixed|nc:6 → chrF2[case:mixed,nc:6]."""
    name, *settings = signature.split("|")
    return f"{name}[{','.join(settings)}]" if settings else name
