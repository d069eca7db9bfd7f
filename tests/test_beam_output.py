"""`add_beam=`: the model's own output among the candidates; log-probabilities without a forced language token."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from hf_acpmbr import ACPMBR, load_model

from .models import tiny_pair
from .test_generate import generate

SOURCES = ["The cat sat on the mat.", "Can you help me carry this box?"]


@pytest.fixture(scope="module")
def translator():
    return load_model("embedded", source_language="en", target_language="de")


def decisions(translator, sources=SOURCES, **settings):
    model, tokenizer, options = translator
    inputs = tokenizer(sources, return_tensors="pt", padding=True)
    mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=12, **settings)
    return model.generate(**inputs, **options, custom_generate=mbr, return_dict_in_generate=True).decisions


def own_output(translator, source: str, beams: int) -> tuple[str, float]:
    """What plain `generate` gives, and its log-probability by one pass over it, without the language token."""
    model, tokenizer, options = translator
    inputs = tokenizer([source], return_tensors="pt")
    sequence = model.generate(**inputs, **options, num_beams=beams)
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=sequence[:, :-1]).logits.double().log_softmax(-1)
    of_each = logits.gather(2, sequence[:, 1:, None])[0, :, 0]
    return tokenizer.decode(sequence[0], skip_special_tokens=True), float(of_each[1:].sum())


@pytest.mark.parametrize(("add_beam", "beams"), [(True, 5), (3, 3), (1, 1)])
def test_the_models_own_output_is_one_more_candidate_counted_once(translator, add_beam, beams) -> None:
    plain, with_beam = decisions(translator), decisions(translator, add_beam=add_beam)
    for source, before, after in zip(SOURCES, plain, with_beam, strict=True):
        text, logprob = own_output(translator, source, beams)
        counts = dict(zip(before.candidates.texts, before.candidates.counts.tolist(), strict=True))
        assert dict(zip(after.candidates.texts, after.candidates.counts.tolist(), strict=True)) == {
            **counts,
            text: counts.get(text, 0) + 1,
        }
        k = after.candidates.texts.index(text)
        if text not in counts:
            assert after.candidates.logprobs[k] == pytest.approx(logprob, abs=1e-4)
            assert after.candidates.sampling_logprobs[k] == -np.inf, "it was not drawn"
        assert "add_beam=" in after.full_signature
        assert "add_beam" not in before.full_signature


@pytest.mark.parametrize("sampler", ["prefix-sharing", "chunked"])
def test_log_probabilities_leave_out_the_forced_language_token(translator, sampler: str) -> None:
    model, tokenizer, _ = translator
    (decision,) = decisions(translator, SOURCES[:1], sampler=sampler)
    inputs = tokenizer(SOURCES[:1], return_tensors="pt")
    start = model.config.decoder_start_token_id
    for ids, count, logprob in zip(
        decision.candidates.token_ids, decision.candidates.counts, decision.candidates.logprobs, strict=True
    ):
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=torch.tensor([[start, *ids[:-1]]])).logits.double()
        of_each = logits.log_softmax(-1).gather(2, torch.tensor(ids)[None, :, None])[0, :, 0]
        assert logprob >= float(of_each[1:].sum()) - 1e-4, "other tokenisations of the same text may add to it"
        assert count >= 1
        assert float(of_each[0]) < -1, "forced, though the model would hardly take it"


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_it_works_for_models_with_and_without_an_encoder(kind: str) -> None:
    _, tokenizer = tiny_pair(kind)
    mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=6, add_beam=2)
    for decision in generate(kind, mbr, ["a dog ran", "a cat"], return_dict_in_generate=True).decisions:
        assert decision.candidates.total == 7
        assert np.isfinite(decision.candidates.logprobs).all()


def test_the_weight_and_the_beam_choose_what_their_sum_says(translator) -> None:
    for decision in decisions(translator, add_beam=True, logprob_weight=1.5):
        total = decision.expected + 1.5 * decision.candidates.logprobs
        assert decision.index == int(np.argmax(total))


@pytest.mark.parametrize("value", [-1, 2.5, "five"])
def test_other_numbers_of_beams_are_refused(value) -> None:
    with pytest.raises(ValueError, match="add_beam must be"):
        ACPMBR(target="chrf", add_beam=value)


def test_true_takes_as_many_beams_as_the_model_says(translator) -> None:
    model, tokenizer, options = translator
    twin = copy.copy(model)
    twin.generation_config = copy.deepcopy(model.generation_config)
    twin.generation_config.num_beams = 3
    rows = []
    for one, beams in ((twin, True), (model, 3), (model, True)):
        mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=4, add_beam=beams)
        inputs = tokenizer(SOURCES[:1], return_tensors="pt")
        rows.append(one.generate(**inputs, **options, custom_generate=mbr, return_dict_in_generate=True).model_rows)
    assert rows[0] == rows[1] != rows[2]
