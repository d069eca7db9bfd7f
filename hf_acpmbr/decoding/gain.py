"""Between a utility's scores and gains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..candidates import FloatArray
from ..matrix import ObservedScores
from ..scoring import Utility


@dataclass(frozen=True)
class Gain:
    """Gains are scores where more is better and 1 is the paper's range.

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
