"""The comparison with mbrs and its candidate lists, on small inputs."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter

import numpy as np
import pytest

from evaluation.benchmarks import peers
from evaluation.benchmarks.candidate_lists import BUILT_IN, candidate_lists, word_graph_samples


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
