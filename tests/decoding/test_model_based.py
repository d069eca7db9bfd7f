from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import Candidates
from hf_acpmbr.decoding import MBR, ModelBasedMBR

from .worlds import World


@given(st.integers(0, 1000))
def test_equals_the_plain_sum_over_unique_references(seed):
    world = World.make(seed)
    target = world.target()
    mass = sum(math.exp(world.logprobs[r]) for r in world.texts)
    expected = [
        sum(math.exp(world.logprobs[r]) / mass * target.of_texts(h, r) for r in world.texts) for h in world.texts
    ]
    got = ModelBasedMBR().decode(world.candidates(), target=target)
    np.testing.assert_allclose(got.expected, expected, atol=1e-12)
    assert got.text == world.texts[int(np.argmax(expected))]


def test_equal_probabilities_are_mbr_over_unique_references():
    world = World.make(1)
    candidates = Candidates.from_texts(world.drawn, logprobs=[-700.0] * len(world.drawn))
    got = ModelBasedMBR().decode(candidates, target=world.target())
    np.testing.assert_allclose(got.expected, MBR().decode(world.texts, target=world.target()).expected, atol=1e-12)


def test_length_normalisation_uses_the_token_ids():
    world = World.make(2, unique=3, draws=3)
    ids = [[1], [1, 2], [1, 2, 3, 4]]
    candidates = Candidates.from_texts(world.texts, token_ids=ids, logprobs=[-1.0, -1.0, -1.0])
    decoder = ModelBasedMBR(length_normalized=True)
    got = decoder.decode(candidates, target=world.target())
    weights = np.exp([-1.0, -0.5, -0.25])
    np.testing.assert_allclose(decoder.weights(candidates), weights / weights.sum())
    np.testing.assert_allclose(got.expected, got.matrix @ weights / weights.sum())
    plain = Candidates.from_texts(world.texts, logprobs=[-1.0, -1.0, -1.0])
    with pytest.raises(ValueError, match="length_normalized needs token ids"):
        ModelBasedMBR(length_normalized=True).decode(plain, target=world.target())


def test_separate_references_need_their_own_log_probabilities():
    world = World.make(3)
    with pytest.raises(ValueError, match="pass references as Candidates with logprobs"):
        ModelBasedMBR().decode(world.candidates(), references=world.drawn, target=world.target())
    with pytest.raises(ValueError, match="or candidates with them and no references"):
        ModelBasedMBR().decode(world.drawn, target=world.target())
    pseudo = Candidates.from_texts(["text 0", "text 1"], logprobs=[-1.0, -2.0])
    got = ModelBasedMBR().decode(world.texts, references=pseudo, target=world.target())
    weights = np.exp([-1.0, -2.0]) / np.exp([-1.0, -2.0]).sum()
    np.testing.assert_allclose(got.expected, got.matrix @ weights)
    zero = Candidates.from_texts(["text 0", "text 1"], logprobs=[-1.0, -np.inf])
    with pytest.raises(ValueError, match="must be finite"):
        ModelBasedMBR().decode(zero, target=world.target())
