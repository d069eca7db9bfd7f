"""What every observation keeps, whatever pairs it chooses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_acpmbr.config import OBSERVATIONS

every_observation = pytest.mark.parametrize("name", OBSERVATIONS)


@every_observation
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(1, 25), st.integers(1, 400), st.integers(0, 99))
def test_never_more_than_the_budget_and_no_pair_twice(name, n, m, budget, seed):
    asked = OBSERVATIONS.build(name).mask((n, m), budget, seed).flat
    assert 1 <= len(asked) <= budget
    assert len(np.unique(asked)) == len(asked)
    assert asked.min() >= 0
    assert asked.max() < n * m


@every_observation
def test_a_mask_depends_on_the_seed_and_on_nothing_else(name):
    first, second, third = (OBSERVATIONS.build(name).mask((30, 25), 150, seed).flat.tolist() for seed in (5, 5, 6))
    assert first == second != third


@every_observation
def test_masks_have_just_the_budget(name):
    observation = OBSERVATIONS.build(name)
    assert len(observation.mask((20, 30), 123, 4)) == 123
    assert observation.mask((5, 4), 20, 0).complete


@every_observation
def test_the_json_form_is_the_observation(name):
    observation = OBSERVATIONS.build(name)
    written = json.loads(json.dumps(observation.to_dict()))
    assert written["name"] == name
    assert OBSERVATIONS.build(written) == observation
    with pytest.raises(ValueError, match="'misspelt' is not a setting"):
        OBSERVATIONS.build({**written, "misspelt": 1})
