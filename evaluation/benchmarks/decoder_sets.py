"""The problems of the decoder benchmark: one source each, with the target's full matrix known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.benchmarks.candidate_lists import SHARED, candidate_lists
from hf_acpmbr import ACPMBR, Candidates, load_utility
from hf_acpmbr.utilities import MatrixUtility, Utility

Array = npt.NDArray[np.float64]
SENTENCES = [
    "The old man was sitting on a bench in the park.",
    "I would like to know when the next train leaves.",
    "She has never told anyone what happened that night.",
    "If it does not rain tomorrow, we will go swimming.",
]


@dataclass(frozen=True)
class Case:
    """One source: what was drawn, who judges, and what full MBR would know.

    `quality` is reference-free and `vectors` compares sentence vectors: decoders that need such a utility get it in the
    place of one that is not.
    """

    candidates: Candidates
    target: Utility
    guide: Utility
    matrix: Array
    source: str | None = None
    quality: Utility | None = None
    vectors: Utility | None = None

    @property
    def expected(self) -> Array:
        """(n,) the target's expected utilities, more is better, 1 is the utility's scale."""
        sign = 1.0 if self.target.higher_is_better else -1.0
        return np.asarray(sign * (self.matrix @ self.candidates.weights) / self.target.scale)

    def price(self, utility: Utility) -> float:
        """What a run of a utility's network costs in target calls: by size, and the same for string metrics."""
        return utility.parameters / self.target.parameters if self.target.parameters else 1.0


@dataclass(frozen=True)
class CaseSet:
    """Cases of one kind."""

    name: str
    cases: Sequence[Case]


class Missing(Exception):
    """What a set needs is not here."""


def stored_matrices(folder: Path = SHARED / "matrices") -> CaseSet:
    """Real BERTScore matrices: the target has 12 layers, the guide 6."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise Missing(f"no stored matrices in {folder}")
    cases = []
    for file in files:
        data = np.load(file)
        texts = tuple(str(i) for i in range(len(data["counts"])))
        target = MatrixUtility(data["target"], texts, name="target", parameters=12)
        guide = MatrixUtility(data["distilled"], texts, name="guide", parameters=6)
        cases.append(Case(Candidates(texts, data["counts"]), target, guide, target.matrix))
    return CaseSet("stored matrices (BERTScore, 12 layers; guide 6 layers)", cases)


def strings(number: int, count: int) -> CaseSet:
    """chrF on strings; the guide is sentence BLEU, which is about as cheap, so its calls count in full."""
    target, guide = load_utility("chrf"), load_utility("bleu")
    cases = []
    for entry in candidate_lists(number, count):
        candidates = Candidates.from_texts(entry.texts, logprobs=entry.logprobs)
        cases.append(Case(candidates, target, guide, full_matrix(target, candidates, entry.source), entry.source))
    return CaseSet("strings (chrF; guide BLEU)", cases)


def embedded(count: int) -> CaseSet:
    """Samples of the embedded translator, judged by the embedded utility and guided by its distilled version."""
    from hf_acpmbr.embedded import TRANSLATOR, UTILITIES, load_translator

    for folder in (TRANSLATOR, UTILITIES["embedded"], UTILITIES["embedded-d1"]):
        if not (folder / "config.json").is_file():
            raise Missing(f"there is no embedded model in {folder}")
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
        matrix = full_matrix(target, candidates, sentence)
        cases.append(Case(candidates, target, guide, matrix, sentence, quality, vectors))
    return cases


def full_matrix(utility: Utility, candidates: Candidates, source: str | None) -> Array:
    """(n, n) every pair."""
    n = len(candidates)
    scorer = utility.prepare(candidates.texts, candidates.texts, source)
    return scorer(np.repeat(np.arange(n), n), np.tile(np.arange(n), n)).reshape(n, n)
