from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import Candidates

texts = st.lists(st.text(alphabet="ab \u0301é", max_size=3), min_size=1, max_size=30)


@given(texts)
def test_counting_keeps_the_order_of_first_appearance_and_loses_nothing(drawn):
    got = Candidates.from_texts(drawn)
    assert got.texts == tuple(dict.fromkeys(drawn))
    assert got.counts.tolist() == [drawn.count(text) for text in got.texts]
    assert sorted(got.expanded()) == sorted(drawn)
    assert got.total == len(drawn)
    assert got.weights.sum() == pytest.approx(1)


def test_equality_is_of_the_exact_text():
    got = Candidates.from_texts(["a", "a ", "A", "e\u0301", "\u00e9", ""])
    assert len(got) == 6


def test_from_counts_and_of():
    counts = {"x": 3, "y": 1}
    assert Candidates.from_counts(counts).counts.tolist() == [3, 1]
    assert Candidates.of(counts).texts == ("x", "y")
    made = Candidates.of(["x", "x"])
    assert Candidates.of(made) is made


def test_two_tokenisations_of_a_text_add_their_probability_and_repeated_draws_do_not():
    got = Candidates.from_texts(
        ["ab", "ab", "ab", "c"],
        token_ids=[[1, 2], [3], [3], [4]],
        logprobs=np.log([0.1, 0.3, 0.3, 0.2]),
        sampling_logprobs=np.log([0.2, 0.5, 0.5, 0.3]),
    )
    assert got.counts.tolist() == [3, 1]
    assert got.token_ids == ((3,), (4,))
    np.testing.assert_allclose(np.exp(got.logprobs), [0.4, 0.2])
    np.testing.assert_allclose(np.exp(got.sampling_logprobs), [0.7, 0.3])


def test_counts_given_with_the_texts_are_added():
    got = Candidates.from_texts(["a", "b", "a"], counts=[5, 1, 2], token_ids=[[1], [2], [3]])
    assert got.counts.tolist() == [7, 1]
    assert got.token_ids == ((1,), (2,)), "without log-probabilities the ids drawn most often are kept"


def test_a_candidate_of_probability_zero_is_kept():
    got = Candidates.from_texts(["a"], logprobs=[-math.inf])
    assert got.logprobs.tolist() == [-math.inf]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Candidates.from_texts([]), "empty"),
        (lambda: Candidates.from_texts("abc"), "single string"),
        (lambda: Candidates.from_texts(["a", None]), r"candidates\[1\] is NoneType"),
        (lambda: Candidates(("a", "a"), np.ones(2, int)), "repeated texts"),
        (lambda: Candidates(("a",), np.zeros(1, int)), "at least 1, got 0"),
        (lambda: Candidates(("a",), np.array([1.5])), r"counts\[0\] must be an integer, got 1.5"),
        (lambda: Candidates.from_texts(["a"], logprobs=[1.0, 2.0]), r"logprobs has shape \(2,\)"),
        (lambda: Candidates.from_texts(["a"], logprobs=[math.nan]), "logprobs has NaN at index 0"),
        (lambda: Candidates.from_texts(["a"], token_ids=[]), "token_ids has 0 rows"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_arrays_cannot_be_changed_afterwards():
    got = Candidates.from_texts(["a", "b"])
    with pytest.raises(ValueError, match="read-only"):
        got.counts[0] = 9


def test_features_are_log_counts_and_the_log_probabilities_where_all_are_finite():
    drawn = Candidates(("a", "b", "c"), np.array([1, 4, 2]))
    np.testing.assert_allclose(drawn.features, np.log([[1], [4], [2]]))
    with_model = Candidates(drawn.texts, drawn.counts, logprobs=np.array([-3.0, -1.0, -2.0]))
    np.testing.assert_allclose(with_model.features, [[0, -3], [math.log(4), -1], [math.log(2), -2]])
    impossible = Candidates(drawn.texts, drawn.counts, logprobs=np.array([-3.0, -math.inf, -2.0]))
    assert impossible.features.shape == (3, 1)


@pytest.mark.parametrize("count", [1.9, "3", True, 0, -1, None, math.nan, math.inf, 2**53, 2**63, [1], np.float64(2.5)])
def test_counts_that_are_no_counts_are_refused_wherever_they_come_from(count):
    for make in (
        lambda: Candidates(("a", "b"), [1, count]),
        lambda: Candidates.from_texts(["a", "b"], counts=[1, count]),
        lambda: Candidates.from_counts({"a": 1, "b": count}),
    ):
        with pytest.raises(ValueError, match="counts"):
            make()


def test_the_sum_of_counts_cannot_overflow():
    for counts in ([2**62, 2**62], [2**52, 2**52], np.array([2**62, 2**62])):
        with pytest.raises(ValueError, match=r"counts must sum to less than 2\*\*53"):
            Candidates(("a", "b"), counts)
    assert Candidates(("a", "b"), np.array([2**51, 3], dtype=np.uint64)).total == 2**51 + 3
    assert Candidates(("a", "b"), np.array([2, 3], dtype=np.int8)).counts.tolist() == [2, 3]


def test_log_probabilities_are_numbers_below_infinity():
    for value, name in ((math.nan, "NaN"), (math.inf, "infinity")):
        with pytest.raises(ValueError, match=f"logprobs has {name} at index 1"):
            Candidates(("a", "b"), [1, 1], logprobs=[-1.0, value])
