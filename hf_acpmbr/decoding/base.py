"""What every decoder shares: its inputs made ready, and the way to a Decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..candidates import Candidates, FloatArray
from ..config import Stage
from ..matrix import ObservedScores
from ..signature import Signature, nested_signature
from ..utilities import Scorer, Turn, UtilityLike, as_utility
from .decision import Decision
from .problem import Problem

Texts: TypeAlias = "Candidates | Iterable[str] | dict[str, int]"
Need: TypeAlias = Literal["target", "guide", "logprobs", "references"]

_REMEDIES: dict[str, str] = {
    "target": "a target utility: pass target=",
    "guide": "a guide (the distilled utility): pass distilled= (guides= of a decoder)",
    "logprobs": "log-probabilities: pass Candidates with logprobs (the sampler gives them)",
    "references": "the real references: pass references=",
}


class Decoder(Stage, ABC):
    """Candidates → Decision. Subclasses are frozen dataclasses of their options; each has its own file.

    `needs` names what a decoder cannot do without: "target", "guide", "logprobs", "references" (real ones).
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"target"})

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
        turn: Turn | None = None,
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
            context: what else the result depends on (model, sampling, …), for the signature.
            turn: the source's place among several that are decided together, see `utilities.lockstep`.
        """
        hypotheses = Candidates.of(candidates)
        pseudo = hypotheses if references is None else Candidates.of(references)
        listed = list(guides) if isinstance(guides, (list, tuple)) else [guides]
        self.check_utilities(target is not None, len(listed))
        for need, given in (("logprobs", hypotheses.logprobs is not None), ("references", references is not None)):
            if need in self.needs and not given:
                raise ValueError(f"{self.name} needs {_REMEDIES[need]}")
        full = None if full_matrix is None else np.asarray(full_matrix, dtype=np.float64)
        if full is not None and full.shape != (len(hypotheses), len(pseudo)):
            raise ValueError(f"full_matrix has shape {full.shape}, expected {(len(hypotheses), len(pseudo))} (unique)")

        def prepared(utility: object) -> Scorer:
            return as_utility(utility).prepare(hypotheses.texts, pseudo.texts, source, turn)

        problem = Problem(
            hypotheses,
            pseudo,
            source,
            seed,
            None if target is None else prepared(target),
            tuple(prepared(guide) for guide in listed),
            full,
            dict(context or {}),
            turn,
        )
        return self._decide(problem)

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
        """How many guides it can use; None for any number."""
        return 1 if "guide" in self.needs else 0

    @abstractmethod
    def _decide(self, problem: Problem) -> Decision:
        """The decoder's own way from the problem to `self._decision(...)`."""

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
            encodings=problem.encodings(),
            exact_calls=None if utility is None else problem.exact_calls(utility),
            seconds=dict(problem.seconds),
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


def completion_error(problem: Problem, matrix: FloatArray | None) -> float | None:
    """Mean squared error of the target's matrix on a 0–100 scale, every entry counted as often as it was drawn."""
    if matrix is None or problem.full_matrix is None:
        return None
    squared = np.square((matrix - problem.full_matrix) * (100.0 / problem.target.utility.scale))
    return float(problem.candidates.weights @ squared @ problem.references.weights)


def exact_decision(
    decoder: Decoder,
    problem: Problem,
    scorer: Scorer,
    status: str = "exact",
    observed: ObservedScores | None = None,
) -> Decision:
    """Full MBR with one utility: argmax_i Σ_j weight_j u(y_i, ŷ_j); `observed` are all scores where they are known."""
    observed = problem.score_everything(scorer) if observed is None else observed
    matrix = observed.values.reshape(problem.shape)
    return decoder._decision(
        problem,
        matrix @ problem.references.weights,
        status,
        deciding=scorer,
        rates=[(scorer, 1.0)],
        matrix=matrix,
        exact=True,
        expected_regret=0.0,
        observed=observed,
    )
