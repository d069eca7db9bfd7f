"""Which next tokens may be drawn, and with what probability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..config import Configured, integer, number, setting

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList

_OFF_AT_0 = number(0, 1, below=True, note="0 switches it off")
_OFF_AT_1 = number(0, 1, above=True, note="1 switches it off")


@dataclass(frozen=True)
class Truncation(Configured):
    """The sampling distribution, applied after the processors that constrain.

    The default is ε-sampling as in the paper (https://arxiv.org/abs/2512.01316): tokens below probability 0.02 are cut
    and the rest is renormalised; if no token reaches ε the most probable one is taken. Order and meaning are those of
    transformers' warpers, which do the work, so plain `generate` with the same settings has the same distribution.
    """

    epsilon: float = setting(0.02, _OFF_AT_0, help="cut tokens below this probability (ε); 0 switches it off.")
    temperature: float = setting(
        1.0,
        number(0, above=True, note="1 leaves the model as it is"),
        help="divide the logits by it; 1 leaves the model as it is.",
    )
    top_k: int = setting(0, integer(0), help="keep this number of the most probable tokens; 0 keeps all.")
    top_p: float = setting(
        1.0, _OFF_AT_1, help="keep the most probable tokens that together reach this probability; 1 switches it off."
    )
    min_p: float = setting(
        0.0, _OFF_AT_0, help="cut tokens below this share of the highest probability; 0 switches it off."
    )
    typical_p: float = setting(
        1.0,
        _OFF_AT_1,
        help="keep the tokens of most typical surprise that together reach this probability; 1 switches it off.",
    )
    eta: float = setting(
        0.0, _OFF_AT_0, help="cut tokens below a threshold that falls with the entropy (η-sampling); 0 switches it off."
    )

    @classmethod
    def from_generation_config(cls, config: GenerationConfig) -> Truncation:
        """Take the sampling fields of a GenerationConfig; fields it leaves unset are off (no hidden top_k=50)."""
        fields = {"epsilon": "epsilon_cutoff", "eta": "eta_cutoff"}
        given = {name: getattr(config, fields.get(name, name), None) for name in cls.field_names()}
        return cls.from_dict({"epsilon": 0.0, **{name: value for name, value in given.items() if value is not None}})

    def warpers(self, device: str = "cpu") -> LogitsProcessorList:
        """Make the warpers in the order in which `generate` applies them.

        Each sees the distribution renormalised by those before it.
        """
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

    def up_to_epsilon(self, device: str = "cpu") -> tuple[LogitsProcessorList, float | None]:
        """Return (the warpers to run, ε) for callers that cut at ε themselves as the last step.

        ε is None if it is off, or not last; then the warpers are all of them.
        """
        if not self.epsilon or self.eta:
            return self.warpers(device), None
        return replace(self, epsilon=0.0).warpers(device), self.epsilon
