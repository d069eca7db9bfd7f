from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, CoarseToFine

from .worlds import World, shuffled


@given(
    st.integers(0, 1000),
    st.integers(1, 12),
    st.sampled_from([None, 1, 5, 30, 99]),
    st.sampled_from([None, 4, 30]),
)
def test_equals_the_two_plain_stages(seed, keep, coarse, fine):
    world = World.make(seed)
    target, guide = world.target(), world.guide()
    coarse_sample, fine_sample = shuffled(world.drawn, seed, 0)[:coarse], shuffled(world.drawn, seed, 1)[:fine]

    def mean(utility, h, sample):
        return sum(utility.of_texts(h, r) for r in sample) / len(sample)

    kept = sorted(world.texts, key=lambda h: -mean(guide, h, coarse_sample))[:keep]
    expected = {h: mean(target, h, fine_sample) for h in kept}
    decoder = CoarseToFine(keep=keep, coarse_references=coarse, fine_references=fine)
    got = decoder.decode(world.drawn, target=target, guides=guide, seed=seed)
    assert got.text == max(expected, key=expected.__getitem__)
    assert {r.text for r in got.nbest(keep)} == set(kept)
    for text, value in zip(got.candidates.texts, got.expected, strict=True):
        assert value == pytest.approx(expected[text]) if text in kept else np.isnan(value)
    assert got.calls["target"] == keep * len(set(fine_sample))


def test_keeping_all_is_mbr_without_guide_calls():
    world = World.make(5)
    got = CoarseToFine(keep=12).decode(world.drawn, target=world.target(), guides=world.guide())
    assert got.calls["guide"] == 0
    np.testing.assert_allclose(got.expected, MBR().decode(world.drawn, target=world.target()).expected)


def test_the_rest_follows_in_the_guides_order():
    world = World.make(6)
    guide = MBR().decode(world.drawn, target=world.guide())
    got = CoarseToFine(keep=3).decode(world.drawn, target=world.target(), guides=world.guide())
    assert [r.text for r in got.nbest()][3:] == [r.text for r in guide.nbest()][3:]


@pytest.mark.parametrize("options", [{"keep": 0}, {"coarse_references": 0}, {"fine_references": 1.5}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        CoarseToFine(**options)
