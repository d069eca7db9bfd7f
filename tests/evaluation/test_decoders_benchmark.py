"""The benchmarks of the decoders, on small inputs."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter

import numpy as np
import pytest
from scipy.stats import sem

from evaluation.benchmarks import decoders, peers
from evaluation.benchmarks.candidate_lists import BUILT_IN, candidate_lists, word_graph_samples
from evaluation.benchmarks.decoders import SENTENCES, sampled
from hf_acpmbr import load_utility
from hf_acpmbr.decoding import DECODERS, MAP
from hf_acpmbr.recipe import Budget

from ..models import tiny_pair


def test_word_graph_samples_come_as_often_as_their_probability_says():
    texts, logprobs = word_graph_samples(["a b c", "a b d", "a e"], 6000, seed=0, context=1)
    probabilities = {text: math.exp(value) for text, value in zip(texts, logprobs, strict=True)}
    assert probabilities == pytest.approx({"a b c": 1 / 3, "a b d": 1 / 3, "a e": 1 / 3})
    for text, count in Counter(texts).items():
        assert count / 6000 == pytest.approx(probabilities[text], abs=0.03)


def test_candidate_lists_have_duplicates_and_are_repeatable():
    first, again = candidate_lists(2, 100, data="builtin"), candidate_lists(2, 100, data="builtin")
    assert [entry.texts for entry in first] == [entry.texts for entry in again]
    assert 1 < len(set(first[0].texts)) < 100
    assert len(BUILT_IN) == len(set(BUILT_IN))


def row(cost, regret):
    return decoders.Row("x", "", cost, regret, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_the_front_has_what_nothing_beats():
    marked = decoders.mark_front([row(1, 0.0), row(0.1, 1.0), row(0.1, 2.0), row(0.5, 1.0), row(0.01, 3.0)])
    assert [r.front for r in marked] == [True, True, False, False, True]


def test_the_error_of_a_regret_is_that_of_its_mean_over_sources_and_seeds():
    cases = decoders.strings(3, 24, "builtin")
    halving = DECODERS.build("halving", budget=Budget(scores_per_row=1))
    regrets = [
        case.regret(halving.decode(case.candidates, target=case.target, seed=seed).index)
        for case in cases.cases
        for seed in range(3)
    ]
    row = decoders.measure(halving, cases, seeds=3)
    assert sem(regrets) > 0
    assert (row["regret"], row["error"]) == (pytest.approx(np.mean(regrets)), pytest.approx(sem(regrets)))


def test_the_decoder_benchmark_runs_and_draws(monkeypatch, tmp_path, capsys):
    picture = tmp_path / "decoders.png"
    command = [
        "decoders",
        "--sets",
        "strings",
        "--lists",
        "1",
        "--candidates",
        "24",
        "--seeds",
        "1",
        "--data",
        "builtin",
    ]
    monkeypatch.setattr(sys, "argv", [*command, "--plot", str(picture)])
    decoders.main()
    printed = capsys.readouterr().out
    for name in ("mbr", "halving", "aggregation", "model-based"):
        assert name in printed
    assert picture.stat().st_size > 10_000


def test_a_peer_that_cannot_be_installed_is_skipped_with_the_reason(monkeypatch, tmp_path, capsys):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["peers", "--environment", str(tmp_path), "--data", "builtin"])
    peers.main()
    assert "skipped: mbrs cannot be compared with here. pip could not install" in capsys.readouterr().out


def test_our_part_of_the_comparison(tmp_path, monkeypatch):
    texts = candidate_lists(1, 20, data="builtin")[0].texts
    chrf = {"metric": "chrf", "fast": True, "texts": texts, "repeats": 1}
    tasks = [
        {"name": "als", "kind": "als", "n": 40, "rate": 4, "sweeps": 3, "repeats": 1},
        {"name": "mbr", "kind": "mbr", **chrf},
        {"name": "pmbr", "kind": "pmbr", "rate": 4, **chrf},
        {"name": "pruning", "kind": "pruning", **chrf},
        {"name": "aggregation", "kind": "aggregation", **chrf},
    ]
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    request.write_text(json.dumps(tasks), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["peers", "--worker", "hf_acpmbr", str(request), str(answer)])
    peers.main()
    results = json.loads(answer.read_text(encoding="utf-8"))
    assert np.isfinite(results[0]["expected"]).all()
    assert all(result["text"] in texts and result["cpu"] >= 0 for result in results[1:])
    assert peers.agreement(tasks[1], results[1], results[1]).startswith("same decision")
    assert "ours 0.00" in peers.agreement(tasks[3], results[1], results[1])


def test_samples_of_a_translator_become_cases(monkeypatch):
    model, tokenizer = tiny_pair("m2m100")
    monkeypatch.setattr(tokenizer, "get_lang_id", lambda language: 5, raising=False)
    target, guide = load_utility("chrf"), load_utility("bleu")
    cases = sampled(model, tokenizer, target, guide, count=12)
    assert len(cases) == len(SENTENCES)
    for case in cases:
        assert case.candidates.total == 12
        assert case.candidates.logprobs is not None
        assert case.matrix.shape == (len(case.candidates),) * 2
    assert decoders.measure(MAP(), decoders.CaseSet("x", cases), seeds=1)["cost"] == 0
