"""Plain decoding in chunks: the control for prefix sharing, and what only it can do."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import GenerationConfig

from hf_acpmbr.sampling import SAMPLERS, Truncation
from hf_acpmbr.sampling.base import Automatic, _announce
from hf_acpmbr.sampling.loops import BeamSearch, Chunked
from hf_acpmbr.sampling.prefix_sharing import PrefixSharing
from hf_acpmbr.sampling.probe import obstacle
from tests.models import EOS, tiny_model
from tests.sampling.enumeration import enumerate_sequences
from tests.sampling.requests import SOURCES, batch, request

EPSILON = Truncation(epsilon=0.1)


@pytest.fixture(autouse=True)
def _say_it_again() -> None:
    _announce.cache_clear()


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_plain_decoding_and_prefix_sharing_have_the_same_distribution(kind: str) -> None:
    n = 3000
    asked = request(tiny_model(kind), SOURCES[:2], max_new_tokens=3)
    pairs = zip(
        Chunked(truncation=EPSILON, max_rows=1000).sample(asked, n),
        PrefixSharing(truncation=EPSILON).sample(request(tiny_model(kind), SOURCES[:2], max_new_tokens=3), n),
        strict=True,
    )
    for plain, shared in pairs:
        left, right = (dict(zip(x.token_ids, x.counts.tolist(), strict=True)) for x in (plain, shared))
        common = [y for y in left | right if left.get(y, 0) + right.get(y, 0) >= 20]
        table = [[left.get(y, 0) for y in common], [right.get(y, 0) for y in common]]
        assert stats.chi2_contingency(table).pvalue > 1e-4
        assert plain.model_rows > 20 * shared.model_rows


@pytest.mark.parametrize("kind", ["t5", "qwen3"])
def test_log_probabilities_are_recorded_on_the_way(kind: str) -> None:
    drawn = Chunked(truncation=EPSILON, max_rows=16).sample(request(tiny_model(kind), SOURCES, max_new_tokens=4), 40)
    for source, samples in zip(SOURCES, drawn, strict=True):
        oracle = enumerate_sequences(kind, tuple(source), 4, 0.1)
        assert samples.total == 40
        np.testing.assert_allclose(samples.logprobs, [oracle[ids][0] for ids in samples.token_ids], atol=2e-4)
        np.testing.assert_allclose(
            samples.sampling_logprobs, [np.log(oracle[ids][1]) for ids in samples.token_ids], atol=2e-4
        )
        assert samples.finished.tolist() == [ids[-1] == EOS for ids in samples.token_ids]


def test_a_forced_first_token_is_no_part_of_the_log_probability() -> None:
    model = tiny_model("m2m100")
    asked = request(model, SOURCES[:1], max_new_tokens=4, forced_bos_token_id=5)
    encoder = batch(model, SOURCES[:1])
    for sampler in (Chunked(truncation=EPSILON), PrefixSharing(truncation=EPSILON)):
        (samples,) = sampler.sample(asked, 30)
        for ids, logprob in zip(samples.token_ids, samples.logprobs, strict=True):
            assert ids[0] == 5
            start = asked.input_ids[0].tolist()
            with torch.no_grad():
                logits = model(**encoder, decoder_input_ids=torch.tensor([[*start, *ids[:-1]]])).logits[0]
            each = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
            assert logprob == pytest.approx(float(each[1:].sum()), abs=2e-4)


def test_samples_of_a_source_do_not_depend_on_the_batch_or_on_the_global_generator() -> None:
    together = Chunked().sample(request(tiny_model("llama"), SOURCES, max_new_tokens=4), 50)
    for source, samples in zip(SOURCES, together, strict=True):
        (alone,) = Chunked().sample(request(tiny_model("llama"), [source], max_new_tokens=4), 50)
        assert alone.token_ids == samples.token_ids
        assert alone.counts.tolist() == samples.counts.tolist()


def test_beams_are_those_of_generate() -> None:
    model = tiny_model("m2m100")
    drawn = BeamSearch(num_beams=4).sample(request(model, SOURCES, max_new_tokens=4), 10)
    expected = model.generate(**batch(model, SOURCES), num_beams=4, num_return_sequences=4, max_new_tokens=4)
    for samples, rows in zip(drawn, expected.reshape(3, 4, -1).tolist(), strict=True):
        assert samples.counts.tolist() == [1] * len(samples)
        assert samples.logprobs is None
        for ids, row in zip(samples.token_ids, rows, strict=True):
            assert row[1 : 1 + len(ids)] == list(ids)


ROW_KEYED: list[tuple[str, dict[str, Any]]] = [
    ("m2m100", {"encoder_no_repeat_ngram_size": 1}),
    ("m2m100", {"encoder_repetition_penalty": 2.0}),
    ("llama", {"prefix_allowed_tokens_fn": lambda row, _: [EOS, 3 + row]}),
    ("llama", {"guidance_scale": 1.5}),
]


@pytest.mark.parametrize(("kind", "settings"), ROW_KEYED, ids=[next(iter(s)) for _, s in ROW_KEYED])
def test_row_keyed_processors_choose_chunks_and_say_so(
    kind: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    asked = request(tiny_model(kind), SOURCES, max_new_tokens=4, **settings)
    with caplog.at_level(logging.WARNING, logger="hf_acpmbr"):
        drawn = Automatic(truncation=EPSILON).sample(asked, 30)
    assert [record.message for record in caplog.records if "depend on the batch row" in record.message]
    said = len(caplog.records)
    Automatic(truncation=EPSILON).sample(asked, 2)
    assert len(caplog.records) == said, "once is enough"
    if "encoder_no_repeat_ngram_size" in settings:
        assert all(not set(ids) & set(source) for source, x in zip(SOURCES, drawn, strict=True) for ids in x.token_ids)
    if "prefix_allowed_tokens_fn" in settings:
        assert all(set(ids) <= {EOS, 3 + row} for row, x in enumerate(drawn) for ids in x.token_ids)


def test_automatic_choice_is_prefix_sharing_where_it_is_exact() -> None:
    asked = request(tiny_model("llama"), SOURCES, max_new_tokens=4)
    assert obstacle(asked) is None
    left, right = (SAMPLERS.build(name).sample(asked, 20) for name in ("auto", "prefix-sharing"))
    assert [x.token_ids for x in left] == [x.token_ids for x in right]


def test_samplers_by_name() -> None:
    assert all(SAMPLERS.build(name) for name in SAMPLERS)
    with pytest.raises(ValueError, match="sampler 'beam' is unknown"):
        SAMPLERS.build("beam")


def test_a_generation_config_says_how_candidates_come_about_and_nothing_else() -> None:
    assert SAMPLERS.build(GenerationConfig(num_beams=4, length_penalty=0.6)) == BeamSearch(
        num_beams=4, length_penalty=0.6
    )
    drawn = SAMPLERS.check("sampler", GenerationConfig(do_sample=True, min_p=0.1))
    assert drawn == Automatic(truncation=Truncation(epsilon=0.0, min_p=0.1))
    with pytest.raises(ValueError, match="repetition_penalty in a sampler's GenerationConfig would be ignored"):
        SAMPLERS.build(GenerationConfig(repetition_penalty=1.2))
    with pytest.raises(
        ValueError, match="length_penalty in a sampler's GenerationConfig has no effect without num_beams"
    ):
        SAMPLERS.build(GenerationConfig(length_penalty=0.6))


def test_drawn_beams_of_a_source_do_not_depend_on_the_batch() -> None:
    sampler = BeamSearch(num_beams=3, do_sample=True)
    together = sampler.sample(request(tiny_model("m2m100"), SOURCES, max_new_tokens=5), 3, seed=1)
    for source, samples in zip(SOURCES, together, strict=True):
        (alone,) = sampler.sample(request(tiny_model("m2m100"), [source], max_new_tokens=5), 3, seed=1)
        assert alone.token_ids == samples.token_ids
