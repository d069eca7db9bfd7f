"""Texts translated within a time: candidates, as many as there should be time for, then scores until it is over."""

from __future__ import annotations

import time
from typing import Any

from hf_acpmbr import ACPMBR, Candidates, Decision
from hf_acpmbr.generation.corpus import decide_texts

SIZES = (8, 32, 128, 512)
SAMPLING_SHARE = 0.5
SCORING_SHARE = 0.8  # of what is left then: a round that has begun is finished
LEAST_SECONDS = 0.001


class Translator:
    """Translates batches of texts, each batch within a number of seconds.

    Sampling cannot be cut short, so what each number of candidates costs is measured while the service runs. Scoring
    can: `time_limit` ends it within one round.

    Args:
        model, tokenizer, generate: as `hf_acpmbr.generation.models.load_model` gives them.
        target, distilled: the utilities, loaded once.
        sizes: numbers of candidates to choose from, rising.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        generate: dict[str, Any],
        target: str = "chrf",
        distilled: tuple[str, ...] = (),
        sizes: tuple[int, ...] = SIZES,
    ) -> None:
        self.model, self.generate = model, generate
        self.scoring = ACPMBR(target=target, distilled=distilled)
        # "map" takes the most probable candidate and scores nothing: all that is wanted of these are candidates.
        self.samplers = [ACPMBR(tokenizer, decoder="map", num_candidates=size) for size in sizes]
        self.seconds = [0.0] * len(sizes)  # of sampling per text, averages that follow the load

    def warm_up(
        self, texts: tuple[str, ...] = ("Hello!", "It is late.", "I see a house.", "She bought a book.")
    ) -> None:
        """Measure every number of candidates once; the first call of all pays for loading and is not counted."""
        self.translate(list(texts), seconds=1.0)
        for size, sampler in enumerate(self.samplers):
            start = time.perf_counter()
            decide_texts(sampler, self.model, list(texts), generate=self.generate)
            self.seconds[size] = (time.perf_counter() - start) / len(texts)

    def size_for(self, texts: int, seconds: float) -> int:
        """The place of the largest number of candidates that half of the time should be enough for, or the smallest."""
        fitting = [size for size, cost in enumerate(self.seconds) if cost * texts <= SAMPLING_SHARE * seconds]
        return max(fitting, default=0)

    def translate(self, texts: list[str], seconds: float) -> list[dict[str, Any]]:
        """One result for each text."""
        ends = time.perf_counter() + seconds
        size, start = self.size_for(len(texts), seconds), time.perf_counter()
        drawn = decide_texts(self.samplers[size], self.model, texts, generate=self.generate).decisions
        self.seconds[size] += 0.3 * ((time.perf_counter() - start) / len(texts) - self.seconds[size])
        pools = {k: decision.candidates for k, decision in enumerate(drawn) if decision is not None}
        chosen = self.choose(list(pools.values()), [texts[k] for k in pools], ends - time.perf_counter())
        results = dict(zip(pools, map(shown, chosen), strict=True))
        blank = {"text": "", "expected_utility": None, "candidates": 0, "status": "blank"}
        return [results.get(k, blank) for k in range(len(texts))]

    def choose(self, pools: list[Candidates], sources: list[str], seconds: float) -> list[Decision]:
        """The choices of all texts, with as many scores as there is time for; their scores are computed together."""
        limit = max(SCORING_SHARE * seconds / max(len(pools), 1), LEAST_SECONDS)
        mbr = ACPMBR(target=self.scoring.target, distilled=self.scoring.guides, time_limit=limit)
        return mbr.rerank_many(pools, sources)


def shown(decision: Decision) -> dict[str, Any]:
    """A result as JSON."""
    return {
        "text": decision.text,
        "expected_utility": float(decision.expected[decision.index]),
        "candidates": decision.candidates.total,
        "status": decision.status,
    }
