"""The selection benchmark on small matrices: every method, resumed results, table and picture."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evaluation.benchmarks import selection
from evaluation.benchmarks.matrices import made_up


def test_every_method_on_small_matrices(tmp_path):
    cases = made_up(size=24)[:1]
    file = tmp_path / "results.json"
    results = selection.collect(cases, [4], ["good", "random"], 2, file)
    unguided = len(selection.UNGUIDED)
    assert len(results) == 2 * (unguided + 2 * (len(selection.METHODS) - unguided))
    for values in results.values():
        assert values["regret"] >= 0
        assert values["rank"] >= 1
        assert (values["same"] == 1) == (values["rank"] == 1)
    # A second call takes what is stored.
    stored = json.loads(file.read_text())
    stored[next(iter(stored))]["regret"] = 123.0
    file.write_text(json.dumps(stored))
    again = selection.collect(cases, [4], ["good", "random"], 2, file)
    assert next(iter(again.values()))["regret"] == 123.0
    text = selection.table(again, [4], ["good", "random"])
    assert all(name in text for name in selection.METHODS)
    selection.picture(again, [4], ["good", "random"], tmp_path / "selection.png")
    assert (tmp_path / "selection.png").stat().st_size > 1000


def test_measures_of_full_mbr_and_of_the_worst_choice():
    case = made_up(size=12)[0]
    truth = case.expected
    best = selection.measures(case, int(truth.argmax()), case.target)
    assert best == {"mse": 0.0, "regret": 0.0, "rank": 1.0, "same": 1.0}
    worst = selection.measures(case, int(truth.argmin()), None)
    assert worst["mse"] is None
    assert worst["rank"] == 12
    assert worst["regret"] == pytest.approx(100 * (truth.max() - truth.min()))


def test_a_random_guide_keeps_the_scores_and_loses_the_candidates():
    case = made_up(size=30)[0]
    random, good = case.guide("random", 1), case.guide("good", 1)
    np.testing.assert_allclose(np.sort(random, axis=None), np.sort(good, axis=None))
    rows = np.corrcoef(random.mean(1), good.mean(1))[0, 1]
    assert abs(rows) < 0.6
