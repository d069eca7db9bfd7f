"""Pre-training pairs for the utility, after BLEURT (Sellam et al. 2020): broken and rephrased references with signals.

A reference z translates a sentence s of the other language. Its candidates c are other translations of s from the
corpus, samples of the translator, damaged copies of z and foreign sentences. The signal joins what strings show (chrF,
BLEU) with what the translator understands: how well s can be told from c, between an unrelated sentence (0) and z (1).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from evaluation.training.bitext import Model, Tokenizer
from evaluation.training.rated_pairs import RatedPair
from evaluation.training.translation import mean_log_likelihoods, sample_translations
from hf_acpmbr import load_utility

CHRF_SHARE, BLEU_SHARE, MEANING_SHARE = 0.4, 0.1, 0.5
# Nats per token of the source between a true translation and an unrelated sentence.
LEAST_SPAN = 0.5


def damage(text: str, words: Sequence[str], rng: random.Random) -> str:
    """Drops, swaps, repeats or replaces some words."""
    tokens = text.split()
    for _ in range(rng.randint(1, max(1, len(tokens) // 3))):
        if len(tokens) < 2:
            break
        i = rng.randrange(len(tokens))
        kind = rng.random()
        if kind < 0.3:
            del tokens[i]
        elif kind < 0.5:
            j = rng.randrange(len(tokens))
            tokens[i], tokens[j] = tokens[j], tokens[i]
        elif kind < 0.6:
            tokens.insert(i, tokens[i])
        else:
            tokens[i] = rng.choice(words)
    return " ".join(tokens)


class SyntheticPairs:
    """Makes rated pairs from a parallel corpus and a translator, in chunks of sentences.

    Args:
        pairs: (English, German) sentences; some English ones have several translations and the other way round.
        translator: (model, tokenizer).
        samples: translator's samples for each reference.
        seed: same seed and chunk, same pairs.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        translator: tuple[Model, Tokenizer],
        samples: int = 3,
        seed: int = 1,
    ) -> None:
        self.pairs, self.samples, self.seed = list(pairs), samples, seed
        self.model, self.tokenizer = translator
        self.translations: tuple[dict[str, list[str]], ...] = (defaultdict(list), defaultdict(list))
        for pair in self.pairs:
            for side in (0, 1):
                self.translations[side][pair[1 - side]].append(pair[side])
        self.words = tuple(sorted({word for pair in self.pairs[::5] for word in pair[side].split()}) for side in (0, 1))
        self.chrf, self.bleu = load_utility("chrf"), load_utility("bleu")

    def chunk(self, number: int, sentences: int) -> list[RatedPair]:
        """Pairs of `sentences` references: half German, half English."""
        rng = random.Random(f"{self.seed}/{number}")
        torch.manual_seed(self.seed * 100_003 + number)
        result = []
        for side, source_language, language in ((1, "en", "de"), (0, "de", "en")):
            chosen = rng.sample(self.pairs, sentences // 2)
            sources, references = [pair[1 - side] for pair in chosen], [pair[side] for pair in chosen]
            drawn = sample_translations(self.model, self.tokenizer, sources, source_language, language, self.samples)
            rows = [
                (k, candidate)
                for k, samples in enumerate(drawn)
                for candidate in sorted({*samples, *self._candidates(sources[k], references[k], side, rng)})
                if candidate
            ]
            result += self._rate(sources, references, rows, language, source_language)
        rng.shuffle(result)
        return result

    def _candidates(self, source: str, reference: str, side: int, rng: random.Random) -> list[str]:
        others = [text for text in self.translations[side][source] if text != reference]
        candidates = rng.sample(others, min(2, len(others)))
        candidates += [damage(rng.choice([reference, *others]), self.words[side], rng) for _ in range(2)]
        if rng.random() < 0.3:
            candidates.append(rng.choice(self.pairs)[side])
        if rng.random() < 0.1:
            candidates.append(reference)
        return sorted(set(candidates))

    def _rate(
        self,
        sources: list[str],
        references: list[str],
        rows: list[tuple[int, str]],
        language: str,
        source_language: str,
    ) -> list[RatedPair]:
        """Scores of (sentence, candidate)."""
        sentence, candidates = np.array([k for k, _ in rows]), [candidate for _, candidate in rows]
        ours = [references[k] for k in sentence]
        unrelated = references[len(references) // 2 :] + references[: len(references) // 2]

        def told(texts: list[str], wanted: list[str]) -> np.ndarray:
            return mean_log_likelihoods(self.model, self.tokenizer, texts, wanted, language, source_language)

        floor = told(unrelated, sources)[sentence]
        span = told(references, sources)[sentence] - floor
        above = told(candidates, [sources[k] for k in sentence]) - floor
        chrf, bleu = (utility.score(candidates, ours) / utility.scale for utility in (self.chrf, self.bleu))
        # Where even the reference says little about its source the translator has no opinion, and chrF takes its place.
        meaning = np.where(span < LEAST_SPAN, chrf, np.clip(above / np.maximum(span, LEAST_SPAN), 0.0, 1.0))
        scores = CHRF_SHARE * chrf + BLEU_SHARE * bleu + MEANING_SHARE * meaning
        triples = zip(ours, candidates, scores, strict=True)
        return [RatedPair(reference, candidate, round(float(score), 4)) for reference, candidate, score in triples]
