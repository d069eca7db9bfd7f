"""The selection benchmark on small matrices: every method, resumed results, table and picture."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import sem

from evaluation.benchmarks import selection
from evaluation.benchmarks.matrices import made_up
from hf_acpmbr.decoding import RoundsMBR
from hf_acpmbr.recipe import Budget


def test_every_method_on_small_matrices(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "LEVELS", (1.0, 4.0))
    cases = made_up(size=24)[:1]
    file = tmp_path / "results.json"
    results = selection.collect(cases, ["none", "good"], 2, file)
    assert len(results) == 2 * sum(1 for kind in ("none", "good") for _ in selection.tasks(kind))
    for key, values in results.items():
        assert values["regret"] >= 0
        assert values["guide"] == 0 or "|good|" in key
        assert (values["target"] > 0) == (not key.startswith("distilled-mbr"))
    # A second call takes what is stored.
    stored = json.loads(file.read_text())
    stored[next(iter(stored))]["regret"] = 123.0
    file.write_text(json.dumps(stored))
    again = selection.collect(cases, ["none", "good"], 2, file)
    assert next(iter(again.values()))["regret"] == 123.0
    text = selection.table(again, {cases[0].name})
    assert all(name in text for name in (*selection.DECODERS, "pruning", "max_regret", "distilled-mbr"))
    selection.picture(again, {cases[0].name}, tmp_path / "selection.png")
    assert (tmp_path / "selection.png").stat().st_size > 1000


def test_the_table_s_intervals_are_those_of_the_means_over_sources():
    draw = np.random.default_rng(0)
    names = [f"source {k}" for k in range(9)]
    regrets = {method: draw.uniform(size=(9, 2)) for method in ("rounds", "halving")}
    results = {
        f"{method}|1|none|{name}|{seed}": {"regret": values[k, seed], "target": 1.0, "guide": 0.0, "cpu": 0.0}
        for method, values in regrets.items()
        for k, name in enumerate(names)
        for seed in range(2)
    }

    def interval(values):
        return f"{values.mean():.3f} ± {1.96 * sem(values):.3f}"

    line = next(line for line in selection.table(results, set(names)).splitlines() if line.startswith("halving"))
    rounds, halving = (regrets[method].mean(1) for method in ("rounds", "halving"))
    assert interval(halving) in line
    assert interval(halving - rounds) in line


def test_only_the_methods_asked_for_are_measured(tmp_path):
    results = selection.collect(made_up(size=12)[:1], ["none"], 1, tmp_path / "results.json", ["halving"])
    assert {key.split("|")[0] for key in results} == {"halving"}


def test_exact_mbr_loses_nothing_and_a_random_choice_does():
    case = made_up(size=24)[0]
    full = selection.measured(case, "none", lambda: RoundsMBR(Budget(reduction=1)), 0)
    assert full["regret"] == 0
    assert full["stated"] == 0
    assert full["target"] == 24 * 24 / case.counts.sum()
    lost = [case.regret(k) for k in range(24)]
    assert max(lost) == pytest.approx(100 * (case.expected.max() - case.expected.min()))


def test_a_random_guide_keeps_the_scores_and_loses_the_candidates():
    case = made_up(size=30)[0]
    random, good = case.guide("random", 1), case.guide("good", 1)
    np.testing.assert_allclose(np.sort(random, axis=None), np.sort(good, axis=None))
    rows = np.corrcoef(random.mean(1), good.mean(1))[0, 1]
    assert abs(rows) < 0.6
