"""Functions as utilities: what they may return, and when their scores are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_acpmbr.scoring import as_utility

HYPOTHESES, REFERENCES = ["a", "bb", "ccc"], ["x", "y", "z"]


@pytest.mark.parametrize(
    "convert",
    [
        lambda values: values,
        tuple,
        np.array,
        lambda values: np.array(values, dtype=np.float32),
        lambda values: torch.tensor(values, requires_grad=True),
        lambda values: torch.tensor(values, dtype=torch.bfloat16),
        lambda values: [torch.tensor(value, requires_grad=True) for value in values],
        lambda values: [np.float64(value) for value in values],
        lambda values: [int(value) for value in values],
    ],
    ids=["list", "tuple", "array", "float32", "grad", "bfloat16", "tensors", "numbers of numpy", "integers"],
)
def test_scores_in_any_form_are_taken(convert: Callable[[list[float]], Any]) -> None:
    scores = as_utility(lambda h, r: convert([float(len(x)) for x in h]), name="f").score(HYPOTHESES, REFERENCES)
    assert scores.dtype == np.float64
    assert scores.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "'f' returned None: return one number for each of the 3 pairs"),
        (0.5, "'f' returned a single number for 3 pairs: it is called with lists of texts"),
        (torch.tensor(0.5), "'f' returned a single number for 3 pairs"),
        (["1", "2", "3"], "'f' returned .* which is not a list of numbers"),
        ([1.0, None, 2.0], "'f' returned .* which is not a list of numbers"),
        ({"scores": [1, 2, 3]}, "'f' returned .* which is not a list of numbers"),
        ([[1.0], [2.0, 3.0], [1.0]], "'f' returned lists inside a list"),
        ([1.0, 2.0], r"'f' gave \(2,\) scores for 3 pairs"),
        ([1.0, float("nan"), 2.0], "'f' gave NaN or infinity for 1 of 3 pairs"),
    ],
    ids=str,
)
def test_what_is_not_one_number_per_pair_is_explained(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_utility(lambda h, r: value, name="f").score(HYPOTHESES, REFERENCES)


class Lengths:
    higher_is_better = True

    def score(self, hypotheses: list[str], references: list[str]) -> list[float]:
        return [float(len(h)) for h in hypotheses]


def test_a_function_is_cached_only_under_a_name_and_version_that_the_user_gives(tmp_path: Path) -> None:
    cache = tmp_path / "scores.db"
    for options in ({}, {"name": "f"}, {"version": "1"}):
        for utility in (lambda h, r: [1.0] * len(h), Lengths()):
            with pytest.raises(ValueError, match="cache= of a Python function needs name= and version="):
                as_utility(utility, cache=cache, **options)
    assert not cache.exists()
    weights = {"value": 1.0}

    def by_table(h: list[str], r: list[str]) -> list[float]:
        return [weights["value"]] * len(h)

    def scored(version: str) -> float:
        return float(as_utility(by_table, name="f", version=version, cache=cache).score(["a"], ["b"])[0])

    assert scored("1") == 1.0
    weights["value"] = 2.0  # what no digest of the code shows
    assert scored("2") == 2.0, "another version shares no scores"


def test_an_object_may_bring_its_name_and_version(tmp_path: Path) -> None:
    class Named(Lengths):
        name, version = "lengths", "3"

    utility = as_utility(Named(), cache=tmp_path / "scores.db")
    assert utility.score(["abc"], ["x"]).tolist() == [3.0]
    assert "|version:3|" in f"{utility.signature}|"
    assert as_utility(Lengths()).name == "Lengths"
