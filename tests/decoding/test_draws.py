"""Pseudo-references in random order, for counts of any size."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import Candidates
from hf_acpmbr.decoding.draws import Draws

HUGE = 2**50


def draws(counts: dict[str, int], seed: int = 0) -> Draws:
    return Draws.of(SimpleNamespace(references=Candidates.from_counts(counts), seed_for=lambda stage: seed + stage))


COUNTS = st.lists(st.sampled_from([1, 2, 5, 2**20, HUGE]), min_size=1, max_size=6)


@given(COUNTS, st.integers(0, 99))
def test_all_of_them_are_the_counts_in_one_part_and_in_two(counts, seed):
    made = draws({str(k): count for k, count in enumerate(counts)}, seed)
    assert len(made) == sum(counts)
    for cut in (0, 1, min(7, len(made))):
        total = np.zeros(len(counts), dtype=np.int64)
        for start, stop in ((0, cut), (cut, len(made))):
            columns, taken = made.part(start, stop)
            assert len(set(columns.tolist())) == columns.size
            total[columns] += taken
        np.testing.assert_array_equal(total, counts)


@given(COUNTS, st.integers(1, 4))
def test_equal_parts_add_up_to_the_counts(counts, parts):
    made = draws({str(k): count for k, count in enumerate(counts)})
    split = made.split(min(parts, sum(counts)))
    np.testing.assert_allclose(split.sum(axis=0), counts, rtol=1e-12)
    assert np.ptp(split.sum(axis=1)) <= 1 + 1e-9 * sum(counts)


def test_the_first_draws_of_huge_counts_come_as_often_as_their_share():
    made = draws({"a": 3 * HUGE, "b": HUGE, "c": 1})
    columns, taken = made.part(0, 10_000)
    share = dict(zip(columns.tolist(), taken / taken.sum(), strict=True))
    assert share[0] == pytest.approx(0.75, abs=0.02)
    assert share[1] == pytest.approx(0.25, abs=0.02)
    assert 2 not in share


def test_a_text_drawn_once_among_very_many_is_seen_last():
    made = draws({"a": HUGE, "b": HUGE, "c": 1})
    assert 1 <= made.reach(1) < 100
    assert made.reach(2) < len(made)
    assert made.reach(3) == len(made)
