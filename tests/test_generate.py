"""model.generate(custom_generate=ACPMBR(...)): the drop-in contract, with tiny real models and a real metric."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, pipeline

from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.generation.prompts import Prompting
from tests.models import DECODER_ONLY, ENCODER_DECODER, EOS, PAD, tiny_pair

TEXTS = ["the cat sat on the mat", "a dog ran", "we see the sun"]
KINDS = (*ENCODER_DECODER, "llama", "qwen3", "gemma3")


def chrf(kind: str, **settings: Any) -> ACPMBR:
    _, tokenizer = tiny_pair(kind)
    options = {"decoder": "mbr", "num_candidates": 40, "epsilon": 0.0, **settings}
    return ACPMBR(tokenizer, target="chrf", **options)


def generate(kind: str, mbr: ACPMBR, texts: list[str] = TEXTS, **settings: Any) -> Any:
    model, tokenizer = tiny_pair(kind)
    return model.generate(
        **Prompting().encode(tokenizer, texts, model), custom_generate=mbr, **{"max_new_tokens": 6, **settings}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_returns_the_chosen_sequences_as_generate_does(kind: str) -> None:
    model, tokenizer = tiny_pair(kind)
    before = model.generation_config.to_dict()
    ids = generate(kind, chrf(kind))
    out = generate(kind, chrf(kind), return_dict_in_generate=True)
    assert model.generation_config.to_dict() == before
    assert ids.dtype == torch.long
    assert torch.equal(ids, out.sequences)
    inputs = Prompting().encode(tokenizer, TEXTS, model)
    prompt = inputs["input_ids"] if kind in DECODER_ONLY else torch.full((3, 1), model.config.decoder_start_token_id)
    assert torch.equal(ids[:, : prompt.shape[1]], prompt)
    continuation = tokenizer.batch_decode(ids[:, prompt.shape[1] :], skip_special_tokens=True)
    assert continuation == [texts[0] for texts in out.texts] == [decision.text for decision in out.decisions]
    for row in ids[:, prompt.shape[1] :].tolist():
        if EOS in row:
            assert set(row[row.index(EOS) + 1 :]) <= {PAD}
    assert all(candidates.total == 40 for candidates in out.candidates)
    assert out.calls == {"chrf": sum(decision.calls["chrf"] for decision in out.decisions)}
    assert out.model_rows > 0
    assert out.seconds["sampling"] > 0


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_the_choice_is_the_one_rerank_makes_from_the_same_candidates(kind: str) -> None:
    mbr = chrf(kind)
    out = generate(kind, mbr, return_dict_in_generate=True)
    for decision, score in zip(out.decisions, out.sequences_scores.tolist(), strict=True):
        again = mbr.rerank(decision.candidates.expanded())
        assert again.text == decision.text
        assert score == pytest.approx(again.expected[again.index], rel=1e-5)


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_each_source_gets_the_same_in_any_batch(kind: str) -> None:
    together = generate(kind, chrf(kind), return_dict_in_generate=True)
    for row, text in enumerate(TEXTS):
        alone = generate(kind, chrf(kind), [text], return_dict_in_generate=True)
        assert alone.candidates[0].texts == together.candidates[row].texts
        assert alone.texts[0] == together.texts[row]


def test_matrices_on_request() -> None:
    full = generate("m2m100", chrf("m2m100"), return_dict_in_generate=True)
    part = generate("m2m100", chrf("m2m100", decoder="pmbr", scores_per_row=8), return_dict_in_generate=True)
    for out, partial in ((full, False), (part, True)):
        for decision, seen, done in zip(out.decisions, out.observed_scores(), out.completed_scores(), strict=True):
            size = len(decision.candidates)
            assert seen.shape == done.shape == (size, size)
            assert np.isnan(seen).any() == partial
            np.testing.assert_allclose(done @ decision.candidates.weights, decision.expected, rtol=1e-6)


def test_num_return_sequences_gives_the_best_distinct_ones() -> None:
    out = generate("llama", chrf("llama"), num_return_sequences=3, do_sample=True, return_dict_in_generate=True)
    assert out.sequences.shape[0] == 9
    for decision, texts in zip(out.decisions, out.texts, strict=True):
        assert len(set(texts)) == 3
        assert list(texts) == [entry.text for entry in decision.nbest(3)]
    one = generate("llama", chrf("llama"), return_dict_in_generate=True)
    assert [texts[0] for texts in out.texts] == [texts[0] for texts in one.texts]


def test_fewer_distinct_candidates_than_asked_for_repeat_the_last() -> None:
    mbr = chrf("llama", num_candidates=1)
    out = generate("llama", mbr, num_return_sequences=2, do_sample=True, return_dict_in_generate=True)
    assert all(texts[0] == texts[1] for texts in out.texts)


@pytest.mark.parametrize("flags", [{}, {"do_sample": True}, {"do_sample": True, "top_k": 50}])
def test_callers_flags_do_not_change_the_distribution(flags: dict[str, Any]) -> None:
    plain = generate("m2m100", chrf("m2m100"), return_dict_in_generate=True)
    flagged = generate("m2m100", chrf("m2m100"), return_dict_in_generate=True, **flags)
    assert [c.texts for c in plain.candidates] == [c.texts for c in flagged.candidates]


def test_conflicts_raise_or_warn() -> None:
    with pytest.raises(ValueError, match="num_beams=4 conflicts with MBR"):
        generate("m2m100", chrf("m2m100"), num_beams=4)
    with pytest.warns(UserWarning, match=r"ignored: temperature=0.5 \(here 1.0\), top_k=7 \(here 0\)"):
        generate("m2m100", chrf("m2m100"), do_sample=True, temperature=0.5, top_k=7)
    with pytest.raises(ValueError, match="needs the model's tokenizer"):
        generate("m2m100", ACPMBR(target="chrf", decoder="mbr"))


def test_constraints_of_the_caller_hold() -> None:
    _, tokenizer = tiny_pair("m2m100")
    word = tokenizer.convert_tokens_to_ids("katze")
    out = generate("m2m100", chrf("m2m100"), forced_bos_token_id=word, return_dict_in_generate=True)
    assert all(text.startswith("katze") for candidates in out.candidates for text in candidates.texts)


def test_separate_references_are_drawn_apart() -> None:
    mbr = chrf("m2m100", num_references=15, references_sampler=GenerationConfig(do_sample=True, temperature=0.5))
    out = generate("m2m100", mbr, return_dict_in_generate=True)
    for candidates, references, decision in zip(out.candidates, out.references, out.decisions, strict=True):
        assert references.total == 15
        assert references.texts != candidates.texts
        assert decision.text == mbr.rerank(candidates, references=references).text


def test_candidates_from_outside_are_chosen_from() -> None:
    given = [["a dog ran home", "a dog ran home", "we all see"], ["the sun"], {"hier": 2, "ein hund": 1}]
    out = generate("llama", chrf("llama"), candidates=given, return_dict_in_generate=True)
    assert [texts[0] for texts in out.texts] == ["a dog ran home", "the sun", "hier"]
    assert out.model_rows == 0
    _, tokenizer = tiny_pair("llama")
    assert tokenizer.decode(out.sequences[0], skip_special_tokens=True).endswith("a dog ran home")
    with pytest.raises(ValueError, match="one list of texts for each of the 3 sources"):
        generate("llama", chrf("llama"), candidates=given[:2])


def test_beams_of_a_beam_search_can_be_the_candidates() -> None:
    _, tokenizer = tiny_pair("m2m100")
    search = GenerationConfig(num_beams=5)
    mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=40, sampler=search)
    out = generate("m2m100", mbr, return_dict_in_generate=True)
    assert all(candidates.total == 5 for candidates in out.candidates)
    assert "beam-search(num_beams=5" in out.decisions[0].full_signature


class SourceAware:
    """Scores 1 if the hypothesis has as many words as the source; notes what sources it saw."""

    higher_is_better = True
    needs_source = True

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def score(self, hypotheses: list[str], references: list[str], sources: list[str] | None = None) -> np.ndarray:
        assert sources is not None
        self.seen |= set(sources)
        return np.array([float(len(h.split()) == len(s.split())) for h, s in zip(hypotheses, sources, strict=True)])


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_source_aware_utilities_get_the_source(kind: str) -> None:
    read_back, given = SourceAware(), SourceAware()
    _, tokenizer = tiny_pair(kind)
    generate(kind, ACPMBR(tokenizer, target=read_back, decoder="mbr", num_candidates=5))
    assert read_back.seen == set(TEXTS)
    named = ["one", "two", "three"]
    generate(kind, ACPMBR(tokenizer, target=given, decoder="mbr", num_candidates=5), sources=named)
    assert given.seen == set(named)
    with pytest.raises(ValueError, match="sources must be a list of 3 strings"):
        generate(kind, ACPMBR(tokenizer, target=given, decoder="mbr", num_candidates=5), sources=named[:1])


def test_chat_templates_score_only_the_continuation() -> None:
    model, tokenizer = tiny_pair("qwen3")
    inputs = Prompting("see {source}", chat=True).encode(tokenizer, TEXTS, model)
    out = model.generate(**inputs, custom_generate=chrf("qwen3"), max_new_tokens=4, return_dict_in_generate=True)
    assert tokenizer.decode(inputs["input_ids"][0]).endswith("</s> <s>")
    assert all(len(text.split()) <= 4 for candidates in out.candidates for text in candidates.texts)


def test_encoder_outputs_alone_are_enough() -> None:
    model, tokenizer = tiny_pair("m2m100")
    inputs = Prompting().encode(tokenizer, TEXTS, model)
    with torch.no_grad():
        encoded = model.get_encoder()(**inputs)
    ids = model.generate(
        encoder_outputs=encoded,
        attention_mask=inputs["attention_mask"],
        custom_generate=chrf("m2m100"),
        max_new_tokens=4,
    )
    assert ids.shape[0] == 3


def test_text_generation_pipeline() -> None:
    model, tokenizer = tiny_pair("llama")
    chat = pipeline("text-generation", model=copy.deepcopy(model), tokenizer=tokenizer, device="cpu")
    with pytest.warns(UserWarning, match="sampling settings given to generate are ignored: temperature=0.7"):
        (result,) = chat("a dog ran", custom_generate=chrf("llama"), max_new_tokens=6, return_full_text=False)
    expected = generate("llama", chrf("llama"), ["a dog ran"], return_dict_in_generate=True)
    assert result["generated_text"].strip() == expected.texts[0][0]


def test_log_probabilities_of_equal_texts_add_up() -> None:
    out = generate("llama", chrf("llama"), return_dict_in_generate=True)
    for candidates in out.candidates:
        assert isinstance(candidates, Candidates)
        assert candidates.logprobs is not None
        assert np.exp(candidates.logprobs).sum() <= 1 + 1e-6


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
@pytest.mark.parametrize("token", [10**7, -5, [EOS, 10**7]])
@pytest.mark.parametrize("name", ["forced_bos_token_id", "forced_eos_token_id"])
def test_a_forced_token_beyond_the_vocabulary_is_refused_by_name(kind: str, name: str, token: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}=.* is no token of this model, which has \d+: give the id of"):
        generate(kind, chrf(kind), **{name: token})


def test_texts_that_cannot_end_are_cut_with_the_warning_that_generate_gives() -> None:
    with pytest.warns(UserWarning, match="is larger than the maximum possible length"):
        out = generate("m2m100", chrf("m2m100"), min_new_tokens=99999, return_dict_in_generate=True)
    assert all(len(ids) == 6 and EOS not in ids for ids in out.candidates[0].token_ids)


@pytest.mark.parametrize(
    "sampler",
    ["auto", "prefix-sharing", "chunked", "beam-search", {"name": "beam-search", "do_sample": True}],
    ids=str,
)
def test_a_seed_of_any_size_is_one_of_its_own(sampler: Any) -> None:
    settings = {"sampler": sampler} if "beam" in str(sampler) else {"sampler": sampler, "num_candidates": 30}
    outs = [
        generate("m2m100", ACPMBR(tiny_pair("m2m100")[1], target="chrf", decoder="mbr", seed=seed, **settings))
        for seed in (2**70, 2**70, 2**70 + 1)
    ]
    assert torch.equal(outs[0], outs[1])


def test_do_sample_is_a_setting_of_beams_alone_and_top_k_0_cuts_nothing() -> None:
    for name in ("auto", "prefix-sharing", "chunked"):
        with pytest.raises(ValueError, match=f"'do_sample' is not a setting of '{name}'"):
            ACPMBR(target="chrf", sampler={"name": name, "do_sample": True})
    all_tokens = generate("m2m100", chrf("m2m100", num_candidates=60, top_k=0), return_dict_in_generate=True)
    the_same = generate("m2m100", chrf("m2m100", num_candidates=60), return_dict_in_generate=True)
    one = generate("m2m100", chrf("m2m100", num_candidates=60, top_k=1), return_dict_in_generate=True)
    assert [c.texts for c in all_tokens.candidates] == [c.texts for c in the_same.candidates]
    assert [len(c) for c in one.candidates] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_given_texts_come_as_finished_sequences_and_the_last_fills_up(kind: str) -> None:
    texts = ["the cat", "a dog", "the cat"]
    settings = {"candidates": [texts], "num_return_sequences": 4, "return_dict_in_generate": True}
    out = generate(kind, chrf(kind), TEXTS[:1], **settings)
    assert out.texts == (("the cat", "a dog", "a dog", "a dog"),)
    assert out.sequences_scores.tolist() == sorted(out.sequences_scores.tolist(), reverse=True)
    _, tokenizer = tiny_pair(kind)
    for row, text in zip(out.sequences.tolist(), out.texts[0], strict=True):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        while row[-1] == PAD:
            row.pop()
        assert row[-len(ids) - 1 :] == [*ids, EOS]


def test_pseudo_references_of_their_own_have_random_numbers_of_their_own() -> None:
    out = generate("m2m100", chrf("m2m100", num_references=40), return_dict_in_generate=True)
    for drawn, apart in zip(out.candidates, out.references, strict=True):
        assert apart.total == drawn.total == 40
        assert dict(zip(drawn.texts, drawn.counts, strict=True)) != dict(zip(apart.texts, apart.counts, strict=True))
