"""How much to do for a request within its time limit.

Levels go from quick to thorough. What each costs per text is measured while the service runs, and a request gets the
most thorough level that is expected to end in time. The limit is kept by prediction: what has begun is finished.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from hf_acpmbr import ACPMBR
from hf_acpmbr.mapping import decide_texts


@dataclass(frozen=True)
class Level:
    """So many candidates, and so many target scores for each."""

    num_candidates: int
    scores_per_row: int


LEVELS = (Level(8, 2), Level(32, 4), Level(128, 8), Level(512, 16))


class Translator:
    """Translates batches at a level and learns what each level costs.

    Args:
        model, tokenizer, generate: as `hf_acpmbr.models.load_model` gives them.
        target, distilled: the utilities, loaded once for all levels.
        caution: a level must be expected to take no more than this share of what is left of the limit.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        generate: dict[str, Any],
        target: str = "chrf",
        distilled: tuple[str, ...] = (),
        levels: tuple[Level, ...] = LEVELS,
        caution: float = 0.7,
    ) -> None:
        self.model, self.generate, self.caution = model, generate, caution
        first = ACPMBR(tokenizer, target=target, distilled=distilled)
        self.levels = [
            ACPMBR(
                tokenizer,
                target=first.target,
                distilled=first.guides,
                num_candidates=level.num_candidates,
                scores_per_row=level.scores_per_row,
            )
            for level in levels
        ]
        self.seconds = [0.0] * len(levels)  # per text, an average that follows the load

    def warm_up(
        self, texts: tuple[str, ...] = ("Hello!", "It is late.", "I see a house.", "She bought a book.")
    ) -> None:
        """Measure every level once, on a small batch; the first call of all pays for loading and is not counted."""
        self.translate(list(texts), 0)
        for level in range(len(self.levels)):
            self.seconds[level] = self._timed(list(texts), level)[1] / len(texts)

    def level_for(self, texts: int, seconds: float) -> int:
        """The most thorough level that should be done in time; the quickest if none is."""
        fitting = [k for k, cost in enumerate(self.seconds) if cost * texts <= self.caution * seconds]
        return max(fitting, default=0)

    def translate(self, texts: list[str], level: int) -> list[dict[str, Any]]:
        """One result for each text."""
        results, seconds = self._timed(texts, level)
        self.seconds[level] += 0.3 * (seconds / len(texts) - self.seconds[level])
        return results

    def _timed(self, texts: list[str], level: int) -> tuple[list[dict[str, Any]], float]:
        start = time.perf_counter()
        decided = decide_texts(self.levels[level], self.model, texts, generate=self.generate)
        results = [
            {
                "text": "" if decision is None else decision.text,
                "expected_utility": None if decision is None else float(decision.expected[decision.index]),
                "candidates": 0 if decision is None else decision.candidates.total,
            }
            for decision in decided.decisions
        ]
        return results, time.perf_counter() - start
