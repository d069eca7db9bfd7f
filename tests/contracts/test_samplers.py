"""What every sampler keeps, whatever its method."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hf_acpmbr.config import SAMPLERS
from hf_acpmbr.sampling import Truncation

from ..models import EOS, tiny_model
from ..sampling.requests import SOURCES, request

every_sampler = pytest.mark.parametrize("name", SAMPLERS)
DRAWING = [name for name in SAMPLERS if "max_rows" in SAMPLERS.get(name).field_names()]
KINDS = ("m2m100", "llama")


def drawn(name, kind, seed=0, sources=SOURCES, n=30, **options):
    sampler = SAMPLERS.build(name, **options)
    return sampler.sample(request(tiny_model(kind), sources, max_new_tokens=4), n, seed)


@every_sampler
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_distinct_counted_and_ended(name, kind):
    for samples in drawn(name, kind):
        assert len(set(samples.token_ids)) == len(samples)
        assert 1 <= samples.total <= 30
        assert samples.counts.min() >= 1
        for ids, finished in zip(samples.token_ids, samples.finished, strict=True):
            assert 1 <= len(ids) <= 4
            assert finished == (ids[-1] == EOS)
            assert EOS not in ids[:-1]
        assert samples.model_rows > 0


@every_sampler
@pytest.mark.parametrize("kind", KINDS)
def test_a_source_has_the_same_samples_in_any_batch(name, kind):
    together = drawn(name, kind)
    for source, samples in zip(SOURCES, together, strict=True):
        (alone,) = drawn(name, kind, sources=[source])
        assert alone.token_ids == samples.token_ids
        assert alone.counts.tolist() == samples.counts.tolist()


@every_sampler
def test_the_same_seed_gives_the_same_samples(name):
    one, two, other = (drawn(name, "llama", seed=seed) for seed in (3, 3, 4))
    assert [s.token_ids for s in one] == [s.token_ids for s in two]
    if name in DRAWING:
        assert [(s.token_ids, s.counts.tolist()) for s in one] != [(s.token_ids, s.counts.tolist()) for s in other]


@pytest.mark.parametrize("name", DRAWING)
def test_draws_belong_to_their_source_and_not_to_its_distribution(name):
    """Two sources for which the model says the same have draws of their own; the same source twice has the same."""
    asked = request(tiny_model("llama"), [SOURCES[0]] * 2, max_new_tokens=4)
    sampler = SAMPLERS.build(name, truncation=Truncation(epsilon=0.0))
    for request_of_both, equal in ((asked, True), (replace(asked, keys=(b"one", b"other")), False)):
        one, other = (dict(zip(s.token_ids, s.counts, strict=True)) for s in sampler.sample(request_of_both, 30, 0))
        assert (one == other) == equal


@pytest.mark.parametrize("name", DRAWING)
def test_the_truncation_holds(name):
    greedy = drawn(name, "llama", truncation=Truncation(epsilon=0.0, top_k=1))
    assert all(len(samples) == 1 and samples.total == 30 for samples in greedy)
    flat = drawn(name, "llama", truncation=Truncation(epsilon=0.0, temperature=50.0))
    assert all(len(samples) > 3 for samples in flat)


@pytest.mark.parametrize("name", DRAWING)
def test_log_probabilities_are_those_of_the_tokens(name):
    free = drawn(name, "llama", truncation=Truncation(epsilon=0.0))
    for samples in free:
        assert (samples.sampling_logprobs >= samples.logprobs - 1e-6).all(), "one token is suppressed"
        assert np.exp(samples.sampling_logprobs).sum() <= 1 + 1e-6


@every_sampler
def test_no_samples_are_refused(name):
    with pytest.raises(ValueError, match="at least 1"):
        drawn(name, "llama", n=0)


@every_sampler
def test_the_json_form_is_the_sampler(name):
    sampler = SAMPLERS.build(name)
    written = json.loads(json.dumps(sampler.to_dict()))
    assert written["name"] == name
    assert SAMPLERS.build(written) == sampler
    assert SAMPLERS.build({**written, "truncation": {"epsilon": 0.3}}) != sampler
    assert str(SAMPLERS.build({**written, "truncation": {"epsilon": 0.3}})) != str(sampler)
