"""Training pairs for the utility: groups of candidates of one source, rated against one reference.

A pool holds human translations of a sentence s, samples of the translator, copies of both with one planted error, and
now and then a foreign sentence. The quality of a sample joins what strings show (chrF and BLEU against every human
translation) with what the translator understands: how well s can be told from it, between an unrelated sentence (0) and
the reference (1). A planted error costs a fixed amount. References are human translations, against which a candidate's
score is its quality, and samples, as in MBR: there three quarters of the score are its likeness to the sample.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from evaluation.training.planted_errors import ORDER, Planter
from evaluation.training.rated_pairs import RatedPair
from evaluation.training.translation import Model, Tokenizer, mean_log_likelihoods, sample_translations
from hf_acpmbr import load_utility

# The share of a sample's quality that the translator's understanding decides; strings decide the rest.
MEANING_SHARE = 0.4
# If the reference is a sample, the share of the score that is the likeness to it; the rest is the quality itself.
SAMPLE_SHARE = 0.75
# What a planted error takes from the quality, if it leaves the meaning nearly as it was, and if not.
MILD_COST, COST = 0.15, 0.25
# Nats per token of the source between a true translation and an unrelated sentence.
LEAST_SPAN = 0.5
# At most this many human translations per pool, and candidates per reference.
HUMANS, GROUP = 3, 5
# The share of the pools with a foreign sentence, and the number of samples of the translator per source.
FOREIGN, SAMPLES = 0.2, 8
LANGUAGES = ("en", "de")


@dataclass
class Pool:
    """The texts of one source; `quality` has all of them."""

    source: str
    humans: list[str]
    samples: list[str]
    quality: dict[str, float] = field(default_factory=dict)


class SyntheticPairs:
    """Makes rated pairs from a parallel corpus and a translator, in chunks of sentences.

    Args:
        pairs: (English, German) sentences; some English ones have several translations and the other way round.
        translator: (model, tokenizer).
        seed: the same seed and chunk give the same pairs.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], translator: tuple[Model, Tokenizer], seed: int) -> None:
        self.pairs, self.seed = list(pairs), seed
        self.model, self.tokenizer = translator
        self.translations: tuple[dict[str, list[str]], ...] = (defaultdict(list), defaultdict(list))
        for pair in self.pairs:
            for side in (0, 1):
                self.translations[side][pair[1 - side]].append(pair[side])
        self.planters = [Planter([pair[side] for pair in self.pairs], LANGUAGES[side]) for side in (0, 1)]
        self.chrf, self.bleu = load_utility("chrf"), load_utility("bleu")

    def chunk(self, number: int, sentences: int) -> list[RatedPair]:
        """Make the pairs of `sentences` sources: half into German, half into English."""
        rng = random.Random(f"{self.seed}/{number}")
        torch.manual_seed(self.seed * 100_003 + number)
        return [row for side in (1, 0) for row in self._one_way(rng.sample(self.pairs, sentences // 2), side, rng)]

    def _one_way(self, chosen: list[tuple[str, str]], side: int, rng: random.Random) -> list[RatedPair]:
        sources, references = [pair[1 - side] for pair in chosen], [pair[side] for pair in chosen]
        languages = LANGUAGES[1 - side], LANGUAGES[side]
        drawn = sample_translations(self.model, self.tokenizer, sources, *languages, SAMPLES)
        pools = []
        for source, reference, samples in zip(sources, references, drawn, strict=True):
            others = sorted(set(self.translations[side][source]) - {reference})
            humans = [reference, *rng.sample(others, min(HUMANS - 1, len(others)))]
            pools.append(Pool(source, humans, sorted({text for text in samples if text} - {*others, reference})))
        self._rate_samples(pools, side)
        for pool in pools:
            pool.quality |= dict.fromkeys(pool.humans, 1.0)
            self._plant(pool, side, rng)
            if rng.random() < FOREIGN:
                pool.quality.setdefault(rng.choice(self.pairs)[side], 0.0)
        return self._groups(pools, rng)

    def _rate_samples(self, pools: list[Pool], side: int) -> None:
        """Set the qualities of the translator's samples."""
        rows = [(k, text) for k, pool in enumerate(pools) for text in pool.samples]
        owner, texts = np.array([k for k, _ in rows], dtype=int), [text for _, text in rows]
        likeness = np.full(len(rows), -np.inf)
        for h in range(HUMANS):
            has = [i for i, k in enumerate(owner) if h < len(pools[k].humans)]
            scores = self.likeness([texts[i] for i in has], [pools[owner[i]].humans[h] for i in has])
            likeness[has] = np.maximum(likeness[has], scores)
        sources, references = [pool.source for pool in pools], [pool.humans[0] for pool in pools]
        unrelated = references[len(references) // 2 :] + references[: len(references) // 2]

        def told(given: list[str], wanted: list[str]) -> np.ndarray:
            languages = LANGUAGES[side], LANGUAGES[1 - side]
            return mean_log_likelihoods(self.model, self.tokenizer, given, wanted, *languages)

        floor = told(unrelated, sources)
        span = (told(references, sources) - floor)[owner]
        above = told(texts, [sources[k] for k in owner]) - floor[owner]
        # If even the reference says little about its source the translator has no opinion: strings take its place.
        meaning = np.where(span < LEAST_SPAN, likeness, np.clip(above / np.maximum(span, LEAST_SPAN), 0.0, 1.0))
        quality = (1 - MEANING_SHARE) * likeness + MEANING_SHARE * meaning
        for k, text, value in zip(owner, texts, quality, strict=True):
            pools[k].quality[text] = float(value)

    def _plant(self, pool: Pool, side: int, rng: random.Random) -> None:
        """Add copies with one error: of a human translation and of a sample any, and of a human one its order."""
        for origins, kinds in ((pool.humans, None), (pool.samples or pool.humans, None), (pool.humans, ORDER)):
            origin = rng.choice(origins)
            planted = self.planters[side].plant(origin, rng, kinds)
            if planted:
                cost = MILD_COST if planted.mild else COST
                pool.quality.setdefault(planted.text, max(0.0, pool.quality[origin] - cost))

    def _groups(self, pools: list[Pool], rng: random.Random) -> list[RatedPair]:
        """Rate candidates of each pool against its reference, another human translation and two samples."""
        rows: list[tuple[Pool, str, str]] = []
        for pool in pools:
            chosen = [*pool.humans[:2], *rng.sample(pool.samples, min(2, len(pool.samples)))]
            for reference in chosen:
                texts = rng.sample(sorted(pool.quality), min(GROUP, len(pool.quality)))
                rows += [(pool, reference, text) for text in texts]
        likeness = self.likeness([text for _, _, text in rows], [reference for _, reference, _ in rows])
        result = []
        for (pool, reference, text), alike in zip(rows, likeness, strict=True):
            quality = pool.quality[text]
            if reference in pool.samples:
                quality += SAMPLE_SHARE * (float(alike) - quality)
            result.append(RatedPair(reference, text, round(quality, 4)))
        return result

    def likeness(self, texts: list[str], references: list[str]) -> np.ndarray:
        """Return the mean of chrF and BLEU, 0 to 1: what strings show of a text's likeness to another one."""
        chrf, bleu = (utility.score(texts, references) / utility.scale for utility in (self.chrf, self.bleu))
        return np.asarray(0.5 * chrf + 0.5 * bleu)
