"""What every decoder shares: its inputs made ready, scoring with counts and seconds, and the way to a Decision."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ..candidates import Candidates, FloatArray, IntArray
from ..matrix import ObservedScores, Pairs
from ..utilities import Scorer, Utility, as_utility, score_together
from ..version import __version__
from .decision import Decision

Texts: TypeAlias = "Candidates | Iterable[str] | dict[str, int]"


@dataclass(frozen=True)
class Gain:
    """Between a utility's scores and gains, where more is better and 1 is the paper's range.

    gain = (sign · score + shift) / scale. A completer shrinks what it does not know towards 0, which is the best error
    of a lower-is-better metric; so there the gain is counted from the worst score seen.
    """

    sign: float
    shift: float
    scale: float

    @classmethod
    def of(cls, utility: Utility, values: FloatArray) -> Gain:
        # A callable may give 0–100 without saying so; unscaled, λ and γ would then mean next to nothing.
        scale = utility.scale if utility.scale_known else max(1.0, float(np.abs(values).max(initial=0.0)))
        if utility.higher_is_better:
            return cls(1.0, 0.0, scale)
        return cls(-1.0, float(values.max(initial=0.0)), scale)

    def apply(self, values: FloatArray) -> FloatArray:
        return np.asarray((self.sign * values + self.shift) / self.scale)

    def undo(self, gains: FloatArray) -> FloatArray:
        return np.asarray((gains * self.scale - self.shift) * self.sign)


@dataclass(eq=False)
class Problem:
    """One source: candidates, pseudo-references and the utilities prepared for them; keeps count of what is spent."""

    candidates: Candidates
    references: Candidates
    source: str | None
    seed: int
    target: Scorer | None
    guides: tuple[Scorer, ...]
    full_matrix: FloatArray | None
    seconds: dict[str, float] = field(default_factory=dict)
    among: list[Scorer] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.candidates), len(self.references)

    @property
    def drawn(self) -> tuple[int, int]:
        return self.candidates.total, self.references.total

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def seed_for(self, stage: int) -> int:
        """Different random numbers for every stage and utility, from one seed."""
        return int(np.random.SeedSequence((self.seed, stage)).generate_state(1, np.uint64)[0] >> 1)

    def score(self, scorer: Scorer, pairs: Pairs) -> ObservedScores:
        """Scores of `pairs` by one utility."""
        return self.score_all([(scorer, pairs)])[0]

    def score_all(self, jobs: Sequence[tuple[Scorer, Pairs]]) -> list[ObservedScores]:
        """Scores by several utilities, at the same time where they sit on different devices."""
        stage = "+".join(dict.fromkeys(scorer.utility.name for scorer, _ in jobs))
        with self.timed(stage):
            values = score_together([(scorer, pairs.rows, pairs.columns) for scorer, pairs in jobs])
        return [ObservedScores(pairs, scores) for (_, pairs), scores in zip(jobs, values, strict=True)]

    def score_block(self, scorer: Scorer, rows: IntArray, columns: IntArray) -> FloatArray:
        """(len(rows), len(columns)) scores of a rectangular part of the matrix."""
        with self.timed(scorer.utility.name):
            values = scorer(np.repeat(rows, len(columns)), np.tile(columns, len(rows)))
        return values.reshape(len(rows), len(columns))

    def among_candidates(self, utility: Utility) -> Scorer:
        """A utility for candidates against candidates; the target's own scorer where it serves."""
        if (
            self.target is not None
            and utility is self.target.utility
            and self.references.texts == self.candidates.texts
        ):
            return self.target
        self.among.append(utility.prepare(self.candidates.texts, self.candidates.texts, self.source))
        return self.among[-1]

    def calls(self) -> dict[str, int]:
        """Pairs really scored so far, for each utility."""
        calls: dict[str, int] = {}
        for scorer in (self.target, *self.guides, *self.among):
            if scorer is not None:
                calls[scorer.utility.name] = calls.get(scorer.utility.name, 0) + scorer.calls
        return calls


class Decoder(ABC):
    """Candidates → Decision. Subclasses are frozen dataclasses of their options; each has its own file.

    `needs` names what a decoder cannot do without: "target", "guide", "logprobs", "references" (real ones).
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"target"})

    def decode(
        self,
        candidates: Texts,
        references: Texts | None = None,
        target: Any = None,
        guides: Any = (),
        *,
        source: str | None = None,
        seed: int = 0,
        full_matrix: npt.ArrayLike | None = None,
    ) -> Decision:
        """Choose among the candidates of one source.

        Args:
            candidates: strings (duplicates count as draws), a mapping text → count, or Candidates.
            references: pseudo-references; default: the candidates.
            target: the utility that decides: a Utility, a name, or an object with `score` and `higher_is_better`.
            guides: cheaper utilities that help: one, or a list.
            source: what was translated, for utilities that look at it.
            seed: same seed, same result.
            full_matrix: (n, m) all target scores, where known: the Decision then has the completion's error.
        """
        problem = self._problem(candidates, references, target, guides, source, seed, full_matrix)
        return self._decide(problem)

    @abstractmethod
    def _decide(self, problem: Problem) -> Decision:
        """The decoder's own way from the problem to `self._decision(...)`."""

    def _problem(
        self,
        candidates: Texts,
        references: Texts | None,
        target: Any,
        guides: Any,
        source: str | None,
        seed: int,
        full_matrix: npt.ArrayLike | None,
    ) -> Problem:
        hypotheses = Candidates.of(candidates)
        pseudo = hypotheses if references is None else Candidates.of(references)
        listed = guides if isinstance(guides, (list, tuple)) else (guides,)
        given = {
            "target": target is not None,
            "guide": len(listed) > 0,
            "logprobs": hypotheses.logprobs is not None,
            "references": references is not None,
        }
        for need in sorted(self.needs):
            if not given[need]:
                raise ValueError(f"{self.name} needs {_REMEDIES[need]}")
        full = None if full_matrix is None else np.asarray(full_matrix, dtype=np.float64)
        if full is not None and full.shape != (len(hypotheses), len(pseudo)):
            raise ValueError(f"full_matrix has shape {full.shape}, expected {(len(hypotheses), len(pseudo))} (unique)")

        def prepared(utility: Any) -> Scorer:
            return as_utility(utility).prepare(hypotheses.texts, pseudo.texts, source)

        return Problem(
            hypotheses,
            pseudo,
            source,
            seed,
            None if target is None or "target" not in self.needs else prepared(target),
            tuple(prepared(guide) for guide in listed) if "guide" in self.needs else (),
            full,
        )

    def options(self) -> Mapping[str, object]:
        """What goes into the signature besides utilities, sizes and seed: the decoder's fields."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]
        return {k: "+".join(map(str, value)) if isinstance(value, tuple) else value for k, value in values.items()}

    def _decision(
        self,
        problem: Problem,
        expected: FloatArray,
        status: str,
        *,
        deciding: Scorer | None,
        rates: Sequence[tuple[Scorer, float]] = (),
        matrix: FloatArray | None = None,
        **fields: Any,
    ) -> Decision:
        """Put the Decision together; `deciding` is the utility that `expected` belongs to."""
        utility = None if deciding is None else deciding.utility
        return Decision(
            candidates=problem.candidates,
            expected=expected,
            higher_is_better=utility is None or utility.higher_is_better,
            status=status,
            signature=self._signature(problem),
            calls=problem.calls(),
            seconds=dict(problem.seconds),
            paper_cost=sum(s.utility.parameters / rate for s, rate in rates) if rates else None,
            completion_error=None if utility is None else completion_error(problem, matrix, utility.scale),
            matrix=matrix,
            **fields,
        )

    def _signature(self, problem: Problem) -> str:
        parts: dict[str, object] = {"hf_acpmbr": __version__, "decoder": self.name}
        if problem.target is not None:
            parts["target"] = _nested(problem.target)
        if problem.guides:
            parts["guide"] = "+".join(_nested(guide) for guide in problem.guides)
        parts.update(self.options())
        parts.update(n=problem.drawn[0], m=problem.drawn[1], unique=f"{problem.shape[0]}x{problem.shape[1]}")
        parts["seed"] = problem.seed
        return "|".join(f"{key}:{value}" for key, value in parts.items())


_REMEDIES = {
    "target": "a target utility: pass target=",
    "guide": "a guide (the distilled utility): pass guides=",
    "logprobs": "log-probabilities: pass Candidates with logprobs (the sampler gives them)",
    "references": "the real references: pass references=",
}


def _nested(scorer: Scorer) -> str:
    """A utility's own signature as one field of ours: chrF2|case:mixed|nc:6 → chrF2[case:mixed,nc:6]."""
    name, *settings = scorer.utility.signature.split("|")
    return f"{name}[{','.join(settings)}]" if settings else name


def completion_error(problem: Problem, matrix: FloatArray | None, scale: float) -> float | None:
    """Mean squared error on a 0–100 scale, every entry counted as often as it was drawn."""
    if matrix is None or problem.full_matrix is None:
        return None
    squared = np.square((matrix - problem.full_matrix) * (100.0 / scale))
    return float(problem.candidates.weights @ squared @ problem.references.weights)


def exact_decision(decoder: Decoder, problem: Problem, scorer: Scorer, status: str = "exact") -> Decision:
    """Full MBR with one utility: argmax_i Σ_j weight_j u(y_i, ŷ_j)."""
    observed = problem.score(scorer, Pairs.full(problem.shape))
    matrix = observed.values.reshape(problem.shape)
    return decoder._decision(
        problem,
        matrix @ problem.references.weights,
        status,
        deciding=scorer,
        rates=[(scorer, 1.0)],
        matrix=matrix,
        exact=True,
        observed=observed,
    )
