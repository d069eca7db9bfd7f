"""What a run takes on this machine, measured on a few of its lines: start and loading, sampling, pairs, choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from ..candidates import Candidates, FloatArray
from ..decoding import PMBR, RoundsMBR
from ..mbr import ACPMBR
from ..utilities import Utility

T = TypeVar("T")


@dataclass(frozen=True)
class Spent:
    """Seconds by the clock, and of all processors that worked in them."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu)

    def __mul__(self, times: float) -> Spent:
        return Spent(self.wall * times, self.cpu * times)

    @classmethod
    def on(cls, work: Callable[[], T]) -> tuple[Spent, T]:
        """What a piece of work takes, and its result."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        return cls(time.perf_counter() - wall, time.process_time() - cpu), result


@dataclass(frozen=True)
class Pace:
    """What a utility takes on this machine.

    Args:
        per_pair: for each pair that is new.
        per_text: for each unique text, where it encodes texts; else nothing.
    """

    utility: Utility
    per_pair: Spent
    per_text: Spent = Spent()

    def of(self, calls: float, texts: float) -> Spent:
        return self.per_pair * calls + self.per_text * (texts if calls else 0.0)

    @classmethod
    def measured(cls, utility: Utility, pools: Sequence[Candidates], weights: FloatArray, pairs: int) -> Pace:
        """From random pairs of the pools, by weight; the network is loaded already. Texts are encoded before pairs."""
        texts = [text for pool in pools for text in pool.texts]
        sizes = np.array([len(pool) for pool in pools])
        random = np.random.default_rng(0)
        which = random.choice(len(pools), pairs, p=weights)
        rows, columns = ((np.cumsum(sizes) - sizes)[which] + random.integers(0, sizes[which]) for _ in "rc")
        scorer = utility.prepare(texts, texts, "")
        spent, _ = Spent.on(lambda: scorer(rows, columns))
        encoded = scorer.statistics.encoded
        if not encoded:
            return cls(utility, spent * (1 / max(scorer.calls, 1)))
        before = scorer.calls
        again, _ = Spent.on(lambda: scorer(columns, np.roll(rows, 1)))  # the same texts, so nothing is encoded
        per_pair = again * (1 / max(scorer.calls - before, 1))
        rest = spent + per_pair * -before
        return cls(utility, per_pair, Spent(max(rest.wall, 0.0), max(rest.cpu, 0.0)) * (1 / encoded))


@dataclass(frozen=True)
class Cost:
    """What choosing costs, per line.

    Args:
        calls: of the target, and of the guides.
        encodings: texts that are encoded.
        spent: scoring and choice.
        lines: how many were decided for it; 0 if it is computed from the pace of pairs, with the most calls that the
            decoder may make.
    """

    calls: tuple[float, float]
    encodings: float
    spent: Spent = Spent()
    lines: int = 0


def most_calls(mbr: ACPMBR, unique: int, drawn: int) -> list[int] | str:
    """The calls of every utility for one line, at most; or why nobody can say."""
    decoder, shape = mbr.decoder, (unique, unique)
    exact = _all_pairs(mbr, unique)
    if decoder.name == "mbr":
        return [exact]
    if not isinstance(decoder, (PMBR, RoundsMBR)):
        return f"the decoder {decoder.name} has no budget"
    budgets = (decoder.budget, *decoder.budgets_for(len(mbr.guides)))
    free = isinstance(decoder, RoundsMBR) and mbr.target is not None and decoder.takes_all_pairs_of(mbr.target)
    if free or decoder.budget.pairs(shape, (drawn, drawn)) >= unique**2:
        return [exact, *[0] * len(mbr.guides)]
    return [budget.pairs(shape, (drawn, drawn)) for budget in budgets]


def _all_pairs(mbr: ACPMBR, unique: int) -> int:
    """Pairs of exact MBR."""
    symmetric = mbr.target is not None and mbr.target.symmetric
    return unique * (unique + 1) // 2 if symmetric else unique**2


def computed(mbr: ACPMBR, shapes: Sequence[tuple[int, int]], paces: Sequence[Pace] = ()) -> list[Cost] | str:
    """The cost of each line with so many (unique, drawn) candidates, at most, from what pairs and texts take."""
    lines: list[Cost] = []
    utilities = [utility for utility in (mbr.target, *mbr.guides) if utility is not None]
    for unique, drawn in shapes:
        calls = most_calls(mbr, unique, drawn)
        if isinstance(calls, str):
            return calls
        encoding = [used for used, count in zip(utilities, calls, strict=False) if count and used.encodes_texts]
        parts = [pace.of(count, unique) for pace, count in zip(paces, calls, strict=False)]
        lines.append(Cost((calls[0], sum(calls[1:])), unique * len(encoding), sum(parts, Spent())))
    return lines


def tried(
    mbr: ACPMBR,
    pools: Sequence[Candidates],
    sources: Sequence[str],
    estimates: Sequence[Cost],
    average: Cost,
    batch_size: int,
    seconds: float,
) -> Cost | None:
    """The cost of an average line, from deciding as many lines as some CPU seconds allow; None if not even one.

    Those that are decided stand for the file in proportion to the estimates, its average among them.
    """
    expected = [estimate.spent.cpu for estimate in estimates]
    together = min(batch_size, int(seconds / max(*expected, 1e-9)))
    lines: list[Cost] = []
    spent = Spent()
    while together and len(lines) < len(pools) and (not lines or spent.cpu + max(expected) * together <= seconds):
        some = slice(len(lines), len(lines) + together)
        more, decisions = Spent.on(partial(mbr.rerank_many, pools[some], sources[some]))
        spent = spent + more
        for decision in decisions:
            target, *guides = decision.calls.values()
            lines.append(Cost((target, sum(guides)), 0.0))
    if not lines:
        return None
    larger = average.spent.cpu / max(float(np.mean(expected[: len(lines)])), 1e-9)
    found = mean(lines, np.full(len(lines), larger / len(lines)))
    return Cost(found.calls, average.encodings, spent * (larger / len(lines)), len(lines))


def mean(lines: Sequence[Cost], weights: FloatArray) -> Cost:
    """What lines cost on average."""
    counts = np.array([[*line.calls, line.encodings] for line in lines], dtype=np.float64)
    target, guides, encodings = (weights @ counts).tolist()
    parts = [line.spent * float(weight) for line, weight in zip(lines, weights, strict=True)]
    return Cost((target, guides), encodings, sum(parts, Spent()))


def shares(lengths: Sequence[int], all_lengths: Sequence[int]) -> FloatArray:
    """(k,) the share of all lines that each of k stands for: every line counts for its neighbours by length."""
    distinct, which, ties = np.unique(lengths, return_inverse=True, return_counts=True)
    weights = np.array([np.interp(all_lengths, distinct, row).mean() for row in np.eye(distinct.size)])
    return np.asarray((weights / ties)[which], dtype=np.float64)
