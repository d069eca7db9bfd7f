"""What every decoder shares: its problem, and the way from the problem to a Decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..budget import Level
from ..candidates import Candidates, FloatArray, IntArray
from ..config import Stage
from ..decision import Decision, Signature, nested_signature
from ..matrix import ObservedScores, Pairs
from ..scoring import Ask, Asks, Meter, Scorer, Source, Utility, UtilityLike, as_utility, decide_together

D = TypeVar("D", bound="Decoder")
T = TypeVar("T")
Texts: TypeAlias = "Candidates | Iterable[str] | dict[str, int]"
Need: TypeAlias = Literal["target", "guide", "logprobs", "references"]
# What a decoder is while it runs: it yields what it asks for, is sent the scores, and returns.
Steps: TypeAlias = "Generator[Asks, Any, T]"

_REMEDIES: dict[str, str] = {
    "target": "a target utility: pass target=",
    "guide": "a guide (the distilled utility): pass distilled= (guides= of a decoder)",
    "logprobs": "log-probabilities: pass Candidates with logprobs (the sampler gives them)",
    "references": "the real references: pass references=",
}


@dataclass(eq=False)
class Problem:
    """One source: candidates, pseudo-references and the utilities prepared for them, with what they have cost.

    Args:
        prepared_target: the utility that decides, if there is one; decoders that need it read `target`.
        guides: the scorers of the cheaper utilities.
        full_matrix: (n, m) all target scores, if known.
        context: what else the result depends on, for the signature.
        meter: the seconds spent.
    """

    candidates: Candidates
    references: Candidates
    source: str | None
    seed: int
    prepared_target: Scorer | None
    guides: tuple[Scorer, ...]
    full_matrix: FloatArray | None = None
    context: dict[str, object] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        target = [] if self.prepared_target is None else [self.prepared_target]
        self.scorers: list[Scorer] = [*target, *self.guides]

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
        """(n, m) unique candidates and pseudo-references."""
        return len(self.candidates), len(self.references)

    @property
    def drawn(self) -> tuple[int, int]:
        """(N, M) the same with duplicates."""
        return self.candidates.total, self.references.total

    def seed_for(self, stage: int) -> int:
        """Derive different random numbers for every stage and utility from one seed."""
        return int(np.random.SeedSequence((self.seed, stage)).generate_state(1, np.uint64)[0]) >> 1

    def observe(self, jobs: Sequence[tuple[Scorer, Pairs]]) -> Steps[list[ObservedScores]]:
        """Ask several utilities at once, each for its own pairs."""
        values = yield [Ask(scorer, pairs.rows, pairs.columns) for scorer, pairs in jobs]
        return [ObservedScores(pairs, scores) for (_, pairs), scores in zip(jobs, values, strict=True)]

    def everything(self, scorer: Scorer) -> Ask:
        """Ask for the (n, m) scores of all pairs."""
        return Ask.block(scorer, *map(np.arange, self.shape))

    def among_candidates(self, utility: Utility) -> Scorer:
        """Prepare a utility for candidates against candidates; the target's own scorer if it serves."""
        target = self.prepared_target
        if target is not None and utility is target.utility and self.references.texts == self.candidates.texts:
            return target
        self.scorers.append(utility.prepare(self.candidates.texts, self.candidates.texts, self.source))
        return self.scorers[-1]

    def label(self, scorer: Scorer) -> str:
        """Name a utility in calls and seconds; two of one name are told apart by checkpoint, else by number."""
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
        """Count the pairs that full MBR would score: a symmetric utility needs each pair of texts once."""
        n, m = self.shape
        if not utility.needs_reference:
            return n
        both = len(set(self.candidates.texts) & set(self.references.texts)) if utility.symmetric else 0
        return n * m - both * (both - 1) // 2

    def totals(self, count: Callable[[Scorer], T], zero: T) -> dict[str, T]:
        """Add up a number of every scorer, by utility."""
        totals: dict[str, Any] = {}
        for scorer in self.scorers:
            totals[self.label(scorer)] = totals.get(self.label(scorer), zero) + count(scorer)
        return totals

    def calls(self) -> dict[str, int]:
        """Count the pairs really scored so far, per utility."""
        return self.totals(lambda scorer: scorer.calls, 0)

    def seconds(self) -> dict[str, float]:
        """Add up the seconds of every utility that was asked, and of the choice itself."""
        scoring = self.totals(lambda scorer: self.meter.scoring.get(scorer, 0.0), 0.0)
        return {**{label: spent for label, spent in scoring.items() if spent}, "choice": self.meter.computing}


class Decoder(Stage, ABC):
    """Candidates → Decision. Subclasses are frozen dataclasses of their options; each has its own file.

    `needs` names what a decoder cannot do without: "target", "guide", "logprobs", "references" (real ones).
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"target"})

    @classmethod
    def at(cls: type[D], level: Level, guides: int, stages: Mapping[str, object]) -> D:
        """Make the decoder as a named recipe has it.

        Args:
            level: what may be spent, and how closely the paper is followed.
            guides: how many there are.
            stages: settings that the caller has chosen.
        """
        return cls.from_dict({**cls.level_settings(level, guides), **stages})

    @classmethod
    def level_settings(cls, level: Level, guides: int) -> dict[str, object]:
        """What `at` sets; a decoder with a budget reads it from the level."""
        return {}

    def most_calls(self, unique: tuple[int, int], drawn: tuple[int, int], guides: int) -> tuple[int, ...]:
        """Bound the calls of the target (if it is needed) and of each guide, for a source of these sizes."""
        n, m = unique
        return (n * m,) * (("target" in self.needs) + guides)

    def decode(
        self,
        candidates: Texts,
        references: Texts | None = None,
        target: UtilityLike | None = None,
        guides: UtilityLike | Sequence[UtilityLike] = (),
        *,
        source: str | None = None,
        seed: int = 0,
        full_matrix: npt.ArrayLike | None = None,
        context: Mapping[str, object] | None = None,
    ) -> Decision:
        """Choose among the candidates of one source.

        Args:
            candidates: strings (duplicates count as draws), a mapping text → count, or Candidates.
            references: pseudo-references; default: the candidates.
            target: the utility that decides: a Utility, a name, or an object with `score` and `higher_is_better`.
            guides: cheaper utilities that help: one, or a list.
            source: what was translated, for utilities that look at it.
            seed: same seed, same result.
            full_matrix: (n, m) all target scores, if known: the Decision then has the completion's error.
            context: what else the result depends on (model, sampling, …), for the signature.
        """
        given = self.start(
            *(candidates, references, target, guides),
            source=source,
            seed=seed,
            full_matrix=full_matrix,
            context=context,
        )
        return decide_together([given])[0]

    def start(
        self,
        candidates: Texts,
        references: Texts | None = None,
        target: UtilityLike | None = None,
        guides: UtilityLike | Sequence[UtilityLike] = (),
        *,
        source: str | None = None,
        seed: int = 0,
        full_matrix: npt.ArrayLike | None = None,
        context: Mapping[str, object] | None = None,
    ) -> Source[Decision]:
        """Check the arguments of `decode` and make one source for `decide_together` of them."""
        hypotheses = Candidates.of(candidates)
        pseudo = hypotheses if references is None else Candidates.of(references)
        listed = list(guides) if isinstance(guides, (list, tuple)) else [guides]
        self.check_utilities(target is not None, len(listed))
        for need, there in (("logprobs", hypotheses.logprobs is not None), ("references", references is not None)):
            if need in self.needs and not there:
                raise ValueError(f"{self.name} needs {_REMEDIES[need]}")
        full = None if full_matrix is None else np.asarray(full_matrix, dtype=np.float64)
        if full is not None and full.shape != (len(hypotheses), len(pseudo)):
            raise ValueError(f"full_matrix has shape {full.shape}, expected {(len(hypotheses), len(pseudo))} (unique)")

        def prepared(utility: object) -> Scorer:
            return as_utility(utility).prepare(hypotheses.texts, pseudo.texts, source)

        problem = Problem(
            hypotheses,
            pseudo,
            source,
            seed,
            None if target is None else prepared(target),
            tuple(prepared(guide) for guide in listed),
            full,
            dict(context or {}),
        )
        return Source(self.decide(problem), problem.scorers, problem.meter)

    def check_utilities(self, target: bool, guides: int) -> None:
        """Refuse to go on without a utility that is needed, or with one that would be ignored."""
        for need, given in (("target", target), ("guide", guides > 0)):
            if need in self.needs and not given:
                raise ValueError(f"{self.name} needs {_REMEDIES[need]}")
        if target and "target" not in self.needs:
            raise ValueError(f"{self.name} uses no target utility: leave target out")
        most = self.most_guides()
        if most is not None and guides > most:
            takers = "rounds, acpmbr, distilled-mbr, coarse-to-fine, qe-filter, ensemble"
            what = f"uses {most} of the {guides}" if most else "uses no"
            raise ValueError(
                f"{self.name} {what} distilled utilities (guides): leave them out, or choose a decoder that takes them "
                f"({takers})"
            )

    def most_guides(self) -> int | None:
        """Return how many guides it can use; None for any number."""
        return 1 if "guide" in self.needs else 0

    @abstractmethod
    def decide(self, problem: Problem) -> Steps[Decision]:
        """Yield what is to be scored, be sent the scores, and return `self.decision(...)`."""

    def decision(
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
        encodings = problem.totals(lambda scorer: scorer.statistics.encoded, 0)
        return Decision(
            candidates=problem.candidates,
            expected=expected,
            higher_is_better=utility is None or utility.higher_is_better,
            status=status,
            signature=self._signature(problem),
            calls=problem.calls(),
            encodings={label: total for label, total in encodings.items() if total},
            exact_calls=None if utility is None else problem.exact_calls(utility),
            seconds=problem.seconds(),
            paper_cost=sum(s.utility.parameters / rate for s, rate in rates) if rates else None,
            completion_error=completion_error(problem, matrix) if deciding is problem.prepared_target else None,
            matrix=matrix,
            **fields,
        )

    def _signature(self, problem: Problem) -> str:
        parts: dict[str, object] = {**problem.context, "decoder": self.name}
        if problem.prepared_target is not None:
            parts["target"] = nested_signature(problem.target.utility.signature)
        if problem.guides:
            parts["guide"] = "+".join(nested_signature(guide.utility.signature) for guide in problem.guides)
        parts.update(self.parts())
        parts.update(n=problem.drawn[0], m=problem.drawn[1], unique=f"{problem.shape[0]}x{problem.shape[1]}")
        return str(Signature({**parts, "seed": problem.seed}))

    def shortlist_decision(
        self, problem: Problem, shortlist: IntArray, means: FloatArray, judged: FloatArray
    ) -> Decision:
        """Put the Decision together if the first guide chose which candidates the target judges.

        Args:
            problem: with a target and a guide.
            shortlist: (k,) candidates that the target judged.
            means: (k,) what it said.
            judged: (n,) the guide's view of all candidates, more is better; the others are ranked by it.
        """
        n, guide = problem.shape[0], problem.guides[0]
        expected, stays = np.full(n, np.nan), np.zeros(n)
        expected[shortlist], stays[shortlist] = means, 1
        return self.decision(
            problem,
            expected,
            f"best {shortlist.size} of {n} by {guide.utility.name}",
            deciding=problem.target,
            rates=[(s, n * problem.shape[1] / s.calls) for s in (problem.target, guide) if s.calls],
            order=best_first(stays, gains(problem.target.utility, expected), judged),
            shortlist=shortlist,
            guide_gains=judged,
        )


def completion_error(problem: Problem, matrix: FloatArray | None) -> float | None:
    """Mean squared error of the target's matrix on a 0–100 scale, every entry counted as often as it was drawn."""
    if matrix is None or problem.full_matrix is None:
        return None
    squared = np.square((matrix - problem.full_matrix) * (100.0 / problem.target.utility.scale))
    return float(problem.candidates.weights @ squared @ problem.references.weights)


def gains(utility: Utility, scores: FloatArray) -> FloatArray:
    """Give scores the sign that makes more better."""
    return scores if utility.higher_is_better else -scores


def best_first(*keys: npt.ArrayLike) -> IntArray:
    """Sort indices by the first key, then the second, …; more is better, NaN is last, ties keep their order."""
    columns = [-np.asarray(key, dtype=np.float64) for key in reversed(keys)]
    return np.asarray(np.lexsort(columns), dtype=np.int64)


def top(values: FloatArray, count: int) -> IntArray:
    """Return the sorted indices of the `count` highest values; ties keep the earlier one."""
    return np.sort(best_first(values)[:count])
