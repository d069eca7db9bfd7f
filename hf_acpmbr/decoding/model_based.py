"""Model-based estimation: pseudo-references weighted by the model's probability, not by how often they were drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..candidates import Candidates, FloatArray
from ..config import flag, setting
from ..decision import Decision
from ..scoring import Ask
from .base import Decoder, Problem, Steps


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
