"""Which next tokens may be drawn, and with what probability."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList


@dataclass(frozen=True)
class Truncation:
    """The sampling distribution, applied after the processors that constrain.

    The default is ε-sampling as in the paper (https://arxiv.org/abs/2512.01316): tokens below probability 0.02 are cut
    and the rest is renormalised; if no token reaches ε the most probable one is taken. Order and meaning are those of
    transformers' warpers, which do the work, so plain `generate` with the same settings has the same distribution.
    """

    epsilon: float = 0.02
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    eta: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (("epsilon", 0, 1), ("min_p", 0, 1), ("eta", 0, 1)):
            value = getattr(self, name)
            if not low <= value < high:
                raise ValueError(f"{name} must be in [{low}, {high}), got {value}; 0 switches it off")
        for name in ("top_p", "typical_p"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name} must be in (0, 1], got {value}; 1 switches it off")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}; 1 leaves the model as it is")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or positive, got {self.top_k}")

    @classmethod
    def from_generation_config(cls, config: GenerationConfig) -> Truncation:
        """The sampling fields of a GenerationConfig; fields it leaves unset are off (no hidden top_k=50)."""

        def given(name: str, default: float) -> float:
            value = getattr(config, name, None)
            return default if value is None else value

        return cls(
            epsilon=given("epsilon_cutoff", 0.0),
            temperature=given("temperature", 1.0),
            top_k=int(given("top_k", 0)),
            top_p=given("top_p", 1.0),
            min_p=given("min_p", 0.0),
            typical_p=given("typical_p", 1.0),
            eta=given("eta_cutoff", 0.0),
        )

    def warpers(self, device: str = "cpu") -> LogitsProcessorList:
        """In the order in which `generate` applies them; each sees the distribution renormalised by those before."""
        from transformers.generation import logits_process as lp

        warpers = lp.LogitsProcessorList()
        if self.temperature != 1:
            warpers.append(lp.TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k:
            warpers.append(lp.TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(lp.TopPLogitsWarper(self.top_p))
        if self.min_p:
            warpers.append(lp.MinPLogitsWarper(self.min_p))
        if self.typical_p < 1:
            warpers.append(lp.TypicalLogitsWarper(self.typical_p))
        if self.epsilon:
            warpers.append(lp.EpsilonLogitsWarper(self.epsilon))
        if self.eta:
            warpers.append(lp.EtaLogitsWarper(self.eta, device=device))
        return warpers

    def bind(self, device: str = "cpu") -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        """A function of (ids, scores (U, V)) that gives the warped scores and which tokens may be drawn.

        ε alone, the usual case, needs one softmax and no warped copy; it keeps the same tokens as the warper.
        """
        if self.epsilon and dataclasses.replace(self, epsilon=0.0) == Truncation(epsilon=0.0):
            return lambda ids, scores: (scores, _at_least(scores, self.epsilon))
        warpers: Any = self.warpers(device)

        def warp(ids: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            warped = warpers(ids, scores)
            return warped, warped > -float("inf")

        return warp


def _at_least(scores: torch.Tensor, epsilon: float) -> torch.Tensor:
    """(U, V) where the probability reaches ε; the most probable token (all, if equal) where none does."""
    keep = scores.softmax(dim=-1) >= epsilon
    lost = ~keep.any(dim=-1)
    if bool(lost.any()):
        keep[lost] = scores[lost] == scores[lost].amax(dim=-1, keepdim=True)
    return keep


EPSILON_SAMPLING = Truncation()
