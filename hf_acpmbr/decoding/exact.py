"""The choices that score everything, a sample of it, or nothing: full MBR and its weightings, the oracle, MAP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import Candidates, FloatArray
from ..config import flag, integer, setting
from ..decision import Decision
from ..scoring import Ask, Utility
from .base import AUTO_REGRET, Decoder, Need, Problem, Steps
from .draws import Draws


@dataclass(frozen=True)
class MBR(Decoder):
    """argmax_i (1/M) Σ_j u(y_i, ŷ_j), the choice that the others approximate.

    "Is MAP Decoding All You Need? The Inadequacy of the Mode in Neural Machine Translation",
    https://arxiv.org/abs/2005.10283
    """

    name: ClassVar[str] = "mbr"

    def loss_bound(self, target: Utility) -> float:
        return AUTO_REGRET * target.scale

    def decide(self, problem: Problem) -> Steps[Decision]:
        return (yield from self.exact(problem, problem.target))


@dataclass(frozen=True)
class NByS(Decoder):
    """MBR with S of the M pseudo-references, the same for all candidates: N·S calls.

    "Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine Translation",
    https://arxiv.org/abs/2108.04718
    """

    num_references: int = setting(
        32, integer(1), help="S, how many of the drawn pseudo-references to use; all if there are no more."
    )

    name: ClassVar[str] = "n-by-s"

    def decide(self, problem: Problem) -> Steps[Decision]:
        draws = Draws.of(problem)
        if self.num_references >= len(draws):
            return (yield from self.exact(problem, problem.target))
        columns, counts = draws.part(0, self.num_references)
        used = int(counts.sum())
        scores = yield Ask.block(problem.target, np.arange(problem.shape[0]), columns)
        return self.decision(
            problem,
            scores @ (counts / used),
            f"{used} of {len(draws)} pseudo-references",
            deciding=problem.target,
            rates=[(problem.target, len(draws) / used)],
        )


@dataclass(frozen=True)
class ModelBasedMBR(Decoder):
    """argmax_i Σ_j p_j u(y_i, ŷ_j) over unique pseudo-references with p_j ∝ P(ŷ_j | x), the model's own probability.

    The counts are a noisy estimate of P; where the log-probabilities are known this estimate has no sampling noise.

    "Model-Based Minimum Bayes Risk Decoding for Text Generation", https://arxiv.org/abs/2311.05263
    """

    length_normalized: bool = setting(
        False,
        flag,
        help="p_j ∝ P(ŷ_j | x)^(1/length), the paper's variant for tasks with outputs of very "
        "different lengths; needs token ids.",
    )

    name: ClassVar[str] = "model-based"

    def decide(self, problem: Problem) -> Steps[Decision]:
        weights = self.weights(problem.references)
        matrix = yield Ask.block(problem.target)
        return self.decision(
            problem,
            matrix @ weights,
            "every pair, weighted by model probability",
            deciding=problem.target,
            rates=[(problem.target, 1.0)],
            matrix=matrix,
        )

    def weights(self, references: Candidates) -> FloatArray:
        """Return (m,) weights of the pseudo-references, which sum to 1."""
        if references.logprobs is None:
            raise ValueError(
                f"{self.name} weights pseudo-references by their log-probabilities: pass references as Candidates with "
                "logprobs, or candidates with them and no references"
            )
        log_p = references.logprobs
        if not np.isfinite(log_p).all():
            raise ValueError("logprobs of the pseudo-references must be finite: a text that was drawn has p > 0")
        if self.length_normalized:
            if references.token_ids is None:
                raise ValueError(
                    "length_normalized needs token ids: pass Candidates with token_ids, or set it to False"
                )
            log_p = log_p / np.maximum([len(ids) for ids in references.token_ids], 1)
        weights = np.exp(log_p - log_p.max())
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class DistilledMBR(Decoder):
    """Full MBR with the first guide in the target's place: what AC-PMBR must beat at equal cost.

    `expected` is on the guide's scale. https://arxiv.org/abs/2512.01316
    """

    name: ClassVar[str] = "distilled-mbr"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide"})

    def decide(self, problem: Problem) -> Steps[Decision]:
        return (yield from self.exact(problem, problem.guides[0], "exact on the distilled utility"))


@dataclass(frozen=True)
class Oracle(Decoder):
    """The candidate with the best target score against the real references: an upper bound, not a decoder.

    The real references must be given as `references`; of several the mean score counts.
    """

    name: ClassVar[str] = "oracle"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "references"})

    def decide(self, problem: Problem) -> Steps[Decision]:
        return (yield from self.exact(problem, problem.target, "best against the real references"))


@dataclass(frozen=True)
class MAP(Decoder):
    """The candidate with the highest log-probability; `expected` holds the log-probabilities. No utility is called."""

    name: ClassVar[str] = "map"
    needs: ClassVar[frozenset[Need]] = frozenset({"logprobs"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logprob_weight:
            raise ValueError(f"{self.name} chooses by log-probability alone: leave logprob_weight out")

    def decide(self, problem: Problem) -> Steps[Decision]:
        yield []
        return self.decision(problem, problem.logprobs, "most probable", deciding=None)
