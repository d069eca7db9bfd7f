"""What every decoder shares: its problem, and the way from the problem to a Decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..candidates import Candidates, FloatArray, IntArray
from ..config import DECODERS, Stage, number, setting
from ..decision import Decision, nested_signature, signature_text
from ..matrix import ObservedScores, Pairs
from ..scoring import Ask, Meter, Scorer, Source, Utility, UtilityLike, as_utility, decide_together
from ..scoring import Steps as Steps

if TYPE_CHECKING:
    from ..recipe import Level
    from .draw_loss import Part

D = TypeVar("D", bound="Decoder")
Texts: TypeAlias = "Candidates | Iterable[str] | dict[str, int]"
Need: TypeAlias = Literal["target", "guide", "logprobs", "references"]

# The stated loss "auto", as a part of the utility's scale (docs/beyond_the_paper.md has what is lost with it).
AUTO_REGRET = 0.001

_REMEDIES: dict[str, str] = {
    "target": "a target utility: pass target=",
    "guide": "a distilled utility as its guide: pass distilled= (guides= of a decoder)",
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
        bonus: (n,) what is added to each candidate's expected gain, in the target's units; None for nothing.
        loss_share: the part of a stated loss that may be lost among these candidates; draws not taken have the rest.
        came: (n,) how many had been drawn when each text first came, if draws come in parts; the texts are then used
            in that order, so that what was scored with fewer of them serves again.
        meter: the seconds spent.

    Attributes:
        scorers: all that may be asked.
        shape: (n, m) unique candidates and pseudo-references.
        drawn: (N, M) the same with duplicates.
    """

    candidates: Candidates
    references: Candidates
    source: str | None
    seed: int
    prepared_target: Scorer | None
    guides: tuple[Scorer, ...]
    full_matrix: FloatArray | None = None
    context: dict[str, object] = field(default_factory=dict)
    bonus: FloatArray | None = None
    loss_share: float = 1.0
    came: IntArray | None = None
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        target = [] if self.prepared_target is None else [self.prepared_target]
        self.scorers: list[Scorer] = [*target, *self.guides]
        self.shape = (len(self.candidates.texts), len(self.references.texts))
        self.drawn = (self.candidates.total, self.references.total)

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

    def merit(self, utility: Utility | None, scores: FloatArray, rows: IntArray | None = None) -> FloatArray:
        """Return what is to be maximised: gains of candidates `rows` (default: all) and the bonus of each.

        Args:
            utility: that `scores` belong to; None if they are gains already.
            scores: (k,), or (k, columns) against single pseudo-references.
        """
        gained = scores if utility is None or utility.higher_is_better else -scores
        if self.bonus is None:
            return gained
        bonus = self.bonus if rows is None else self.bonus[rows]
        return gained + bonus.reshape(-1, *[1] * (scores.ndim - 1))

    def continue_from(self, earlier: Source[Any]) -> None:
        """Take over the scores, costs and seconds of the same source with fewer candidates."""
        self.meter = earlier.meter
        for own, old in zip(self.scorers, earlier.scorers, strict=False):
            own.learn(old)
            for kept in (self.meter.scoring, self.meter.pace):
                if old in kept:
                    kept[own] = kept.pop(old)

    def seed_for(self, stage: int) -> int:
        """Derive different random numbers for every stage and utility from one seed."""
        return int(np.random.SeedSequence((self.seed, stage)).generate_state(1, np.uint64)[0]) >> 1

    def observe(self, jobs: Sequence[tuple[Scorer, Pairs]]) -> Steps[list[ObservedScores]]:
        """Ask several utilities at once, each for its own pairs."""
        values = yield [Ask(scorer, pairs.rows, pairs.columns) for scorer, pairs in jobs]
        return [ObservedScores(pairs, scores) for (_, pairs), scores in zip(jobs, values, strict=True)]

    def shortlist(self, judged: FloatArray, guide: Scorer, size: int) -> IntArray:
        """Return the sorted indices of the `size` best by a guide's gains; a bonus counts on the guide's scale."""
        if self.bonus is not None:
            judged = judged + self.bonus * (guide.utility.scale / self.target.utility.scale)
        return top(judged, size)

    def among_candidates(self, utility: Utility) -> Scorer:
        """Prepare a utility for candidates against candidates; the target's own scorer if it serves."""
        target = self.prepared_target
        if target is not None and utility is target.utility and self.references.texts == self.candidates.texts:
            return target
        self.scorers.append(utility.prepare(self.candidates.texts, self.candidates.texts, self.source))
        return self.scorers[-1]

    def exact_calls(self, utility: Utility) -> int:
        """Count the pairs that full MBR would score: a symmetric utility needs each pair of texts once."""
        n, m = self.shape
        if not utility.needs_reference:
            return n
        both = len(set(self.candidates.texts) & set(self.references.texts)) if utility.symmetric else 0
        return n * m - both * (both - 1) // 2

    def calls(self) -> dict[str, int]:
        """Count the pairs really scored so far, per utility."""
        return self.costs()[0]

    def costs(self) -> tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, float]]:
        """Add up calls, cached pairs, encodings and seconds, per utility; the choice's own seconds are "choice".

        Two utilities of one name are told apart by their checkpoints, else by number.
        """
        utilities = dict.fromkeys(scorer.utility for scorer in self.scorers)
        labels = {}
        for utility in utilities:
            alike = [other for other in utilities if other.name == utility.name]
            checkpoints, place = [other.checkpoint_name for other in alike], alike.index(utility)
            labels[utility] = utility.name
            if len(alike) > 1 and utility.checkpoint_name and checkpoints.count(utility.checkpoint_name) == 1:
                labels[utility] += f"[{utility.checkpoint_name}]"
            elif place:
                labels[utility] += f"#{place + 1}"
        calls, cached, encodings = Counter[str](), Counter[str](), Counter[str]()
        seconds: dict[str, float] = {}
        for scorer in self.scorers:
            label = labels[scorer.utility]
            calls[label] += scorer.statistics.calls
            if scorer.statistics.cached:
                cached[label] += scorer.statistics.cached
            if scorer.statistics.encoded:
                encodings[label] += scorer.statistics.encoded
            if scorer in self.meter.scoring:
                seconds[label] = seconds.get(label, 0.0) + self.meter.scoring[scorer]
        return dict(calls), dict(cached), dict(encodings), {**seconds, "choice": self.meter.computing}


@dataclass(frozen=True, eq=False, repr=False)
class Decoder(Stage, ABC):
    """Candidates → Decision. Subclasses are frozen dataclasses of their options; each has its own file.

    `needs` names what a decoder cannot do without: "target", "guide", "logprobs", "references" (real ones). It takes
    one guide if it needs one, else none, unless `any_guides` says that it takes any number. The choice maximises
    `Problem.merit` of the expected utilities, so a decoder that drops or compares candidates does so by it.
    """

    _: KW_ONLY  # what subclasses add comes first where settings are given by position
    logprob_weight: float = setting(
        0.0,
        number(0),
        help="w: choose by expected utility + w · log-probability of the whole text (nats, under the model), which "
        "keeps string metrics from choosing texts that are only long; in the target's units.",
        quiet=True,
    )

    needs: ClassVar[frozenset[Need]] = frozenset({"target"})
    any_guides: ClassVar[bool] = False

    def loss_bound(self, target: Utility) -> float | None:
        """Return the expected loss at which it may stop, in the target's units; None if it states none."""
        return None

    @classmethod
    def at(cls: type[D], level: Level, guides: int, **stages: Any) -> D:
        """Make the decoder as a named recipe has it; one with a budget reads it from the level.

        Args:
            level: what may be spent, and how closely the paper is followed.
            guides: how many there are.
            stages: settings that the caller has chosen.
        """
        return cls(**stages)

    def most_calls(self, unique: tuple[int, int], drawn: tuple[int, int], guides: int) -> tuple[int, ...]:
        """Bound the calls of the target (if it is needed) and of each guide, for a source of these sizes."""
        n, m = unique
        return (n * m,) * (("target" in self.needs) + guides)

    def check_utilities(self, target: bool, guides: int) -> None:
        """Refuse to go on without a utility that is needed, or with one that would be ignored."""
        for need, given in (("target", target), ("guide", guides > 0)):
            if need in self.needs and not given:
                raise ValueError(f"{self.name} needs {_REMEDIES[need]}")
        if target and "target" not in self.needs:
            raise ValueError(f"{self.name} uses no target utility: leave target out")
        most = int("guide" in self.needs)
        if guides > most and not self.any_guides:
            kinds = map(DECODERS.get, DECODERS)
            takers = [kind.name for kind in kinds if kind.any_guides or "guide" in kind.needs]
            what = f"uses {most} of the {guides}" if most else "uses no"
            raise ValueError(
                f"{self.name} {what} distilled utilities (guides): leave them out, or choose a decoder that takes them "
                f"({', '.join(takers)})"
            )

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
        decides = None if target is None else as_utility(target)
        helping = [as_utility(guide) for guide in (guides if isinstance(guides, (list, tuple)) else [guides])]
        options: dict[str, Any] = {"source": source, "seed": seed, "full_matrix": full_matrix, "context": context}
        return decide_together([self.start(candidates, references, decides, helping, **options)])[0]

    def start(
        self,
        candidates: Texts,
        references: Texts | None = None,
        target: Utility | None = None,
        guides: Sequence[Utility] = (),
        *,
        source: str | None = None,
        seed: int = 0,
        full_matrix: npt.ArrayLike | None = None,
        context: Mapping[str, object] | None = None,
        part: Part | None = None,
    ) -> Source[Decision]:
        """Check the arguments of `decode` and make one source for `decide_together` of them.

        With `part` the candidates are the first of more that could be drawn.
        """
        pool = Candidates.of(candidates)
        pseudo = pool if references is None else Candidates.of(references)
        self.check_utilities(target is not None, len(guides))
        for need, given in (("logprobs", pool.logprobs), ("references", references)):
            if need in self.needs and given is None:
                raise ValueError(f"{self.name} needs {_REMEDIES[need]}")
        full = None if full_matrix is None else np.asarray(full_matrix, dtype=np.float64)
        if full is not None and full.shape != (len(pool), len(pseudo)):
            raise ValueError(f"full_matrix has shape {full.shape}, expected {(len(pool), len(pseudo))} (unique)")
        decides = None if target is None else target.prepare(pool.texts, pseudo.texts, source)
        helping = tuple(guide.prepare(pool.texts, pseudo.texts, source) for guide in guides)
        bonus = self._bonus(pool) if self.logprob_weight else None
        problem = Problem(pool, pseudo, source, seed, decides, helping, full, dict(context or {}), bonus)
        steps = self.decide(problem) if part is None else part.decide(self, problem)
        return Source(steps, problem.scorers, problem.meter)

    def _bonus(self, pool: Candidates) -> FloatArray:
        if pool.logprobs is None or not np.isfinite(pool.logprobs).all():
            raise ValueError(
                f"logprob_weight={self.logprob_weight:g} needs a finite log-probability of every candidate: pass "
                "Candidates with logprobs (the sampler gives them), or leave it out"
            )
        return np.asarray(self.logprob_weight * pool.logprobs)

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
        target = None if problem.prepared_target is None else problem.target.utility.snapshot()
        written = partial(
            self._signature,
            dict(problem.context),
            target,
            [guide.utility.snapshot() for guide in problem.guides],
            {"n": problem.drawn[0], "m": problem.drawn[1], "unique": f"{problem.shape[0]}x{problem.shape[1]}"},
            problem.seed,
        )
        calls, cached, encodings, seconds = problem.costs()
        if problem.bonus is not None:
            fields.setdefault("order", best_first(problem.merit(utility, expected)))
        if matrix is not None and problem.full_matrix is not None and deciding is problem.prepared_target:
            # On a 0–100 scale, every entry counted as often as it was drawn.
            squared = np.square((matrix - problem.full_matrix) * (100.0 / problem.target.utility.scale))
            fields["completion_error"] = float(problem.candidates.weights @ squared @ problem.references.weights)
        return Decision(
            candidates=problem.candidates,
            expected=expected,
            higher_is_better=utility is None or utility.higher_is_better,
            status=status,
            full_signature=written,  # type: ignore[arg-type]  # made when it is first read
            calls=calls,
            encodings=encodings,
            cached=cached,
            exact_calls=None if utility is None else problem.exact_calls(utility),
            seconds=seconds,
            paper_cost=sum(s.utility.parameters / rate for s, rate in rates) if rates else None,
            matrix=matrix,
            **fields,
        )

    def _signature(
        self,
        context: dict[str, object],
        target: Utility | None,
        guides: Sequence[Utility],
        sizes: dict[str, object],
        seed: int,
    ) -> str:
        utilities = {} if target is None else {"target": nested_signature(target.signature)}
        if guides:
            utilities["guide"] = "+".join(nested_signature(guide.signature) for guide in guides)
        return signature_text({**context, "decoder": self.name, **utilities, **self.parts(), **sizes, "seed": seed})

    def exact(self, problem: Problem, scorer: Scorer, status: str = "exact") -> Steps[Decision]:
        """Score every pair by one utility and choose argmax_i Σ_j weight_j u(y_i, ŷ_j)."""
        matrix = yield Ask.block(scorer)
        return self.exact_decision(problem, scorer, matrix, status)

    def exact_decision(
        self, problem: Problem, scorer: Scorer, matrix: FloatArray, status: str = "exact", **fields: Any
    ) -> Decision:
        """Put the Decision of full MBR together from all scores."""
        return self.decision(
            problem,
            matrix @ problem.references.weights,
            status,
            deciding=scorer,
            rates=[(scorer, 1.0)],
            matrix=matrix,
            exact=True,
            observed=partial(ObservedScores.from_dense, matrix),
            **{"expected_regret": 0.0, **fields},
        )

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
            order=best_first(stays, problem.merit(problem.target.utility, expected), judged),
            shortlist=shortlist,
            guide_gains=judged,
        )


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

    def apply(self, scores: ObservedScores) -> ObservedScores:
        return scores.with_values(np.asarray((self.sign * scores.values + self.shift) / self.scale))

    def undo(self, gains: FloatArray) -> FloatArray:
        return np.asarray((gains * self.scale - self.shift) * self.sign)


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
