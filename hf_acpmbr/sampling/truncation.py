"""Which next tokens may be drawn, and with what probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checks import integer, number
from ..stage import Configured, setting

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList


@dataclass(frozen=True)
class Truncation(Configured):
    """The sampling distribution, applied after the processors that constrain.

    The default is ε-sampling as in the paper (https://arxiv.org/abs/2512.01316): tokens below probability 0.02 are cut
    and the rest is renormalised; if no token reaches ε the most probable one is taken. Order and meaning are those of
    transformers' warpers, which do the work, so plain `generate` with the same settings has the same distribution.
    """

    epsilon: float = setting(0.02, number(0, 1, below=True, note="0 switches it off"))
    temperature: float = setting(1.0, number(0, above=True, note="1 leaves the model as it is"))
    top_k: int = setting(0, integer(0))
    top_p: float = setting(1.0, number(0, 1, above=True, note="1 switches it off"))
    min_p: float = setting(0.0, number(0, 1, below=True, note="0 switches it off"))
    typical_p: float = setting(1.0, number(0, 1, above=True, note="1 switches it off"))
    eta: float = setting(0.0, number(0, 1, below=True, note="0 switches it off"))

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
        return self._warpers(device, self.epsilon)

    def _warpers(self, device: str, epsilon: float) -> LogitsProcessorList:
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
        if epsilon:
            warpers.append(lp.EpsilonLogitsWarper(epsilon))
        if self.eta:
            warpers.append(lp.EtaLogitsWarper(self.eta, device=device))
        return warpers

    def up_to_epsilon(self, device: str = "cpu") -> tuple[LogitsProcessorList, float | None]:
        """(the warpers to run, ε), for those who cut at ε themselves as the last step; None if ε is off or not last."""
        if not self.epsilon or self.eta:
            return self.warpers(device), None
        return self._warpers(device, 0.0), self.epsilon


EPSILON_SAMPLING = Truncation()
