"""The problems of the decoder benchmark: one source each, with the target's full matrix known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.assets import BUILTIN
from evaluation.benchmarks.candidate_lists import candidate_lists
from evaluation.benchmarks.matrices import load_cases
from evaluation.benchmarks.measures import Floats, full_matrix, regret
from hf_acpmbr import ACPMBR, Candidates, load_utility
from hf_acpmbr.utilities import MatrixUtility, Utility

SENTENCES = [
    "The old man was sitting on a bench in the park.",
    "I would like to know when the next train leaves.",
    "She has never told anyone what happened that night.",
    "If it does not rain tomorrow, we will go swimming.",
]


@dataclass(frozen=True)
class Case:
    """One source: what was drawn, who judges, and what full MBR would know.

    `quality` is reference-free and `vectors` compares sentence vectors: decoders that need such a utility get it
    instead of one that is not.
    """

    candidates: Candidates
    target: Utility
    guide: Utility
    matrix: Floats
    source: str | None = None
    quality: Utility | None = None
    vectors: Utility | None = None

    @property
    def expected(self) -> Floats:
        """(n,) the target's expected utilities, more is better, 1 is the utility's scale."""
        sign = 1.0 if self.target.higher_is_better else -1.0
        return np.asarray(sign * (self.matrix @ self.candidates.weights) / self.target.scale)

    def regret(self, chosen: int) -> float:
        return regret(self.expected, chosen)

    def price(self, utility: Utility) -> float:
        """What a run of a utility's network costs in target calls: by size, and the same for string metrics."""
        return utility.parameters / self.target.parameters if self.target.parameters else 1.0


@dataclass(frozen=True)
class CaseSet:
    """Cases of one kind."""

    name: str
    cases: Sequence[Case]


def matrices(data: str | None) -> CaseSet:
    """Full matrices of a target and a guide half its size (real ones: BERTScore with 12 and 6 layers)."""
    cases = []
    for stored in load_cases(data):
        candidates = stored.candidates
        target = MatrixUtility(stored.target, candidates.texts, name="target", parameters=12)
        guide = MatrixUtility(stored.guides["good"], candidates.texts, name="guide", parameters=6)
        cases.append(Case(candidates, target, guide, target.matrix))
    return CaseSet("made-up matrices (builtin)" if data == BUILTIN else "stored matrices (BERTScore)", cases)


def strings(number: int, count: int, data: str | None) -> CaseSet:
    """chrF on strings; the guide is sentence BLEU, which is about as cheap, so its calls count in full."""
    target, guide = load_utility("chrf"), load_utility("bleu")
    cases = []
    for entry in candidate_lists(number, count, data=data):
        candidates = Candidates.from_texts(entry.texts, logprobs=entry.logprobs)
        cases.append(
            Case(candidates, target, guide, full_matrix(target, candidates.texts, source=entry.source), entry.source)
        )
    return CaseSet(f"strings ({'builtin' if data == BUILTIN else 'pools'}; chrF; guide BLEU)", cases)


def embedded(count: int) -> CaseSet:
    """Samples of the embedded translator, judged by the embedded utility and guided by its distilled version."""
    from hf_acpmbr.embedded import load_translator

    model, tokenizer = load_translator()
    target, guide = load_utility("embedded"), load_utility("embedded-d1")
    return CaseSet("embedded models (guide: its distilled version)", sampled(model, tokenizer, target, guide, count))


def sampled(model: Any, tokenizer: Any, target: Utility, guide: Utility, count: int) -> list[Case]:
    """`count` samples of each sentence by a many-to-many translator, which also judges them in its own ways."""
    from evaluation.benchmarks.translator_utilities import EncoderCosine, SourceLikelihood

    quality, vectors = SourceLikelihood(model, tokenizer, "en", "de"), EncoderCosine(model, tokenizer, "de")
    tokenizer.src_lang = "en"
    draw = ACPMBR(tokenizer, decoder="map", num_candidates=count)
    cases = []
    for sentence in SENTENCES:
        output = model.generate(
            **tokenizer(sentence, return_tensors="pt"),
            forced_bos_token_id=tokenizer.get_lang_id("de"),
            max_new_tokens=64,
            custom_generate=draw,
            return_dict_in_generate=True,
        )
        candidates = output.candidates[0]
        matrix = full_matrix(target, candidates.texts, source=sentence)
        cases.append(Case(candidates, target, guide, matrix, sentence, quality, vectors))
    return cases
