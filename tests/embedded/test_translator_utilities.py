"""The translator as a judge: likelihood of the source, sentence vectors, and the decoders that need them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evaluation.benchmarks import decoders
from evaluation.benchmarks.decoders import CaseSet, sampled
from evaluation.benchmarks.translator_utilities import EncoderCosine, SourceLikelihood
from hf_acpmbr import load_utility
from hf_acpmbr.decoding import CentroidMBR, QEFilterMBR, QERerank
from hf_acpmbr.embedded import load_translator

from .test_models import needs_translator

CANDIDATES = ["Ich sehe das Haus.", "Du mag Brot.", "Er finde einen Hund.", "Mein Bruder kaufe das alte Buch.", ""]


def test_likelihood_is_the_models_loss_for_the_source_alone(translator, tokenizer):
    got = SourceLikelihood(translator, tokenizer, "en", "de").score(CANDIDATES, sources=["I see the house."] * 5)
    tokenizer.src_lang, tokenizer.tgt_lang = "de", "en"
    for text, value in zip(CANDIDATES, got, strict=True):
        inputs = tokenizer(text, text_target="I see the house.", return_tensors="pt")
        with torch.no_grad():
            logits = translator(**inputs).logits[0]
        wanted = inputs["labels"][0]
        tokens = logits.log_softmax(-1)[torch.arange(len(wanted)), wanted]
        assert value == pytest.approx(float(tokens[1:].mean()), abs=1e-5)  # the language token is given


def test_vectors_are_the_means_of_the_encoders_states_alone(translator, tokenizer):
    scorer = EncoderCosine(translator, tokenizer, "de").prepare(CANDIDATES, CANDIDATES)
    tokenizer.src_lang = "de"
    means = []
    for text in CANDIDATES:
        with torch.no_grad():
            states = translator.get_encoder()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        means.append(states.mean(0).numpy())
    cosines = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in means] for a in means]
    rows, columns = np.divmod(np.arange(25), 5)
    np.testing.assert_allclose(scorer(rows, columns).reshape(5, 5), cosines, atol=1e-5)
    np.testing.assert_allclose(scorer.vector_scores(np.arange(5), np.array(means)), cosines, atol=1e-5)


def test_decoders_that_need_these_utilities_are_judged_by_the_target(translator, tokenizer):
    target, guide = load_utility("chrf"), load_utility("bleu")
    cases = CaseSet("x", sampled(translator, tokenizer, target, guide, count=12)[:2])
    unique = np.mean([len(case.candidates) for case in cases.cases])
    for decoder in (QERerank(), CentroidMBR(centroids=4), QEFilterMBR(keep=3)):
        assert decoders.obstacle(decoder, cases) is None
        row = decoders.measure(decoder, cases, seeds=1)
        assert row["guide_calls"] == unique
        assert row["target_calls"] == (9 if decoder.name == "qe-filter" else 0)
        assert row["regret"] >= 0
    for case in cases.cases:
        quality = case.quality.score(case.candidates.texts, sources=[case.source] * len(case.candidates))
        chosen = int(quality.argmax())
        lost = 100 * (case.expected.max() - case.expected[chosen])
        assert decoders.measure(QERerank(), CaseSet("x", [case]), seeds=1)["regret"] == pytest.approx(lost)


@needs_translator
def test_the_shipped_translator_knows_its_source_again():
    model, tokenizer = load_translator()
    english = ["I am tired.", "Where is the station?", "The dog is sleeping."]
    german = ["Ich bin müde.", "Wo ist der Bahnhof?", "Der Hund schläft."]
    rows, columns = np.divmod(np.arange(9), 3)
    quality = SourceLikelihood(model, tokenizer, "en", "de")
    scores = quality.score([german[k] for k in rows], sources=[english[k] for k in columns]).reshape(3, 3)
    assert scores.argmax(axis=0).tolist() == [0, 1, 2]
    alike = EncoderCosine(model, tokenizer, "de").score(["Ich bin sehr müde."] * 3, german)
    assert alike.argmax() == 0
