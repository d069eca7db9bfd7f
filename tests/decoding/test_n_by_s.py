from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, NByS

from .worlds import World, shuffled


@given(st.integers(0, 1000), st.integers(1, 29))
def test_equals_the_plain_mean_over_the_sampled_references(seed, size):
    world = World.make(seed)
    target = world.target()
    sample = shuffled(world.drawn, seed)[:size]
    means = {h: sum(target.of_texts(h, r) for r in sample) / size for h in world.texts}
    got = NByS(num_references=size).decode(world.drawn, target=target, seed=seed)
    np.testing.assert_allclose(got.expected, [means[h] for h in got.candidates.texts], atol=1e-12)
    assert got.text == max(means, key=means.__getitem__)
    assert got.calls == {"target": len(world.texts) * len(set(sample))}
    assert not got.exact


def test_all_references_are_full_mbr():
    world = World.make(3)
    got = NByS(num_references=1000).decode(world.drawn, target=world.target())
    assert got.exact
    np.testing.assert_array_equal(got.expected, MBR().decode(world.drawn, target=world.target()).expected)


def test_the_sample_is_unbiased_over_seeds():
    world = World.make(1)
    full = MBR().decode(world.drawn, target=world.target()).expected
    runs = [NByS(num_references=5).decode(world.drawn, target=world.target(), seed=s).expected for s in range(400)]
    np.testing.assert_allclose(np.mean(runs, axis=0), full, atol=4 * np.std(runs) / np.sqrt(400))


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "8", None])
def test_a_wrong_size_is_refused(value):
    with pytest.raises(ValueError, match="num_references must be"):
        NByS(num_references=value)
