"""One source: its candidates and the utilities prepared for them, with what they have cost so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ..candidates import Candidates, FloatArray, IntArray
from ..matrix import ObservedScores, Pairs
from ..utilities import Scorer, Turn, Utility, score_together


@dataclass(eq=False)
class Problem:
    """One source: candidates, pseudo-references and the utilities prepared for them; keeps count of what is spent.

    Args:
        prepared_target: the utility that decides, where there is one; decoders that need it read `target`.
        guides: the scorers of the cheaper utilities.
        full_matrix: (n, m) all target scores, where known.
        context: what else the result depends on, for the signature.
        turn: its place among sources that are decided together.
    """

    candidates: Candidates
    references: Candidates
    source: str | None
    seed: int
    prepared_target: Scorer | None
    guides: tuple[Scorer, ...]
    full_matrix: FloatArray | None = None
    context: dict[str, object] = field(default_factory=dict)
    turn: Turn | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    among: list[Scorer] = field(default_factory=list)

    @property
    def target(self) -> Scorer:
        """The utility that decides. Decoders without one never ask (`Decoder.needs`)."""
        if self.prepared_target is None:
            raise LookupError("this decoder was given no target: its `needs` must name it")
        return self.prepared_target

    @property
    def logprobs(self) -> FloatArray:
        """Log-probabilities of the candidates. Decoders without them never ask (`Decoder.needs`)."""
        if self.candidates.logprobs is None:
            raise LookupError("the candidates have no log-probabilities: the decoder's `needs` must name them")
        return self.candidates.logprobs

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.candidates), len(self.references)

    @property
    def drawn(self) -> tuple[int, int]:
        return self.candidates.total, self.references.total

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = self.clock()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + self.clock() - start

    def clock(self) -> float:
        """Seconds, without those in which it waits for other sources."""
        return time.perf_counter() if self.turn is None else self.turn.clock()

    def seed_for(self, stage: int) -> int:
        """Different random numbers for every stage and utility, from one seed."""
        return int(np.random.SeedSequence((self.seed, stage)).generate_state(1, np.uint64)[0]) >> 1

    def score(self, scorer: Scorer, pairs: Pairs) -> ObservedScores:
        """Scores of `pairs` by one utility."""
        return self.score_all([(scorer, pairs)])[0]

    def score_all(self, jobs: Sequence[tuple[Scorer, Pairs]]) -> list[ObservedScores]:
        """Scores by several utilities, at the same time where they sit on different devices."""
        stage = "+".join(dict.fromkeys(self.label(scorer) for scorer, _ in jobs))
        if not jobs:
            return []
        with self.timed(stage):
            values = score_together([(scorer, pairs.rows, pairs.columns) for scorer, pairs in jobs])
        return [ObservedScores(pairs, scores) for (_, pairs), scores in zip(jobs, values, strict=True)]

    def score_block(self, scorer: Scorer, rows: IntArray, columns: IntArray) -> FloatArray:
        """(len(rows), len(columns)) scores of a rectangular part of the matrix."""
        with self.timed(self.label(scorer)):
            values = scorer(np.repeat(rows, len(columns)), np.tile(columns, len(rows)))
        return values.reshape(len(rows), len(columns))

    def score_everything(self, scorer: Scorer) -> ObservedScores:
        """All n·m scores of one utility."""
        return self.score(scorer, Pairs.full(self.shape))

    def among_candidates(self, utility: Utility) -> Scorer:
        """A utility for candidates against candidates; the target's own scorer where it serves."""
        target = self.prepared_target
        if target is not None and utility is target.utility and self.references.texts == self.candidates.texts:
            return target
        self.among.append(utility.prepare(self.candidates.texts, self.candidates.texts, self.source, self.turn))
        return self.among[-1]

    @property
    def scorers(self) -> list[Scorer]:
        target = [] if self.prepared_target is None else [self.prepared_target]
        return [*target, *self.guides, *self.among]

    def label(self, scorer: Scorer) -> str:
        """The utility's name in calls and seconds; two of one name are told apart by checkpoint, else by number."""
        name = scorer.utility.name
        alike = list({id(s.utility): s.utility for s in self.scorers if s.utility.name == name}.values())
        if len(alike) < 2:
            return name
        checkpoints = [utility.checkpoint_name for utility in alike]
        place = next(k for k, utility in enumerate(alike) if utility is scorer.utility)
        if checkpoints.count(checkpoints[place]) == 1 and checkpoints[place]:
            return f"{name}[{checkpoints[place]}]"
        return name if place == 0 else f"{name}#{place + 1}"

    def exact_calls(self, utility: Utility) -> int:
        """Pairs that full MBR would score: a symmetric utility needs each pair of texts once."""
        n, m = self.shape
        if not utility.needs_reference:
            return n
        both = len(set(self.candidates.texts) & set(self.references.texts)) if utility.symmetric else 0
        return n * m - both * (both - 1) // 2

    def calls(self) -> dict[str, int]:
        """Pairs really scored so far, for each utility."""
        return self._totals(lambda scorer: scorer.calls)

    def encodings(self) -> dict[str, int]:
        """Texts really encoded so far, for each utility that encodes texts by a network."""
        totals = self._totals(lambda scorer: scorer.statistics.encoded)
        return {label: total for label, total in totals.items() if total}

    def _totals(self, count: Callable[[Scorer], int]) -> dict[str, int]:
        totals: dict[str, int] = {}
        for scorer in self.scorers:
            totals[self.label(scorer)] = totals.get(self.label(scorer), 0) + count(scorer)
        return totals
