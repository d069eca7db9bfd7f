"""The engine: what is computed and what is not, errors, batches, memory, two devices, the persistent cache."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import ACPMBR
from hf_acpmbr.scoring import Ask, MatrixUtility, Meter, Source, as_utility, decide_together, load_utility
from hf_acpmbr.scoring.cache import CacheError, ScoreCache

from ..metrics.checkpoints import SENTENCES, write_bleurt


class Counting:
    """Length difference, with a record of the pairs it was asked for."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        self.pairs += list(zip(hypotheses, references, strict=True))
        return [abs(len(h) - len(r)) for h, r in zip(hypotheses, references, strict=True)]


def test_each_pair_is_computed_once_ever() -> None:
    count = Counting()
    scorer = as_utility(count).prepare(["a", "bb", "ccc"], ["bb", "dddd"])
    first = scorer(np.array([0, 0, 2]), np.array([1, 1, 0]))
    second = scorer(np.array([2, 0, 1]), np.array([0, 1, 0]))
    assert first.tolist() == [3, 3, 1]
    assert second.tolist() == [1, 3, 0]
    assert sorted(count.pairs) == [("a", "dddd"), ("bb", "bb"), ("ccc", "bb")]
    assert scorer.calls == 3
    assert scorer.statistics.requested == 6


def test_symmetric_twins_are_computed_once_even_between_lists() -> None:
    count = Counting()
    scorer = as_utility(count, symmetric=True).prepare(["a", "bb", "ccc"], ["ccc", "a"])
    scores = scorer(np.array([0, 2, 1]), np.array([0, 1, 1]))
    assert scores.tolist() == [2, 2, 1]
    assert len(count.pairs) == 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=40))
def test_scores_are_those_of_the_matrix(asked: list[tuple[int, int]]) -> None:
    matrix = np.random.default_rng(0).normal(size=(6, 5))
    hypotheses, references = [f"h{i}" for i in range(6)], [f"r{j}" for j in range(5)]
    scorer = MatrixUtility(matrix, hypotheses, references).prepare(hypotheses, references)
    rows, columns = (np.array([pair[side] for pair in asked], dtype=np.int64) for side in (0, 1))
    np.testing.assert_array_equal(scorer(rows, columns), matrix[rows, columns])
    assert scorer.calls == len(set(asked))


def test_bad_scores_name_the_texts() -> None:
    utility = as_utility(lambda h, r: [float("nan") if x == "bad" else 1.0 for x in h], name="shaky")
    with pytest.raises(
        ValueError, match=r"'shaky' gave NaN or infinity for 1 of 2 pairs: nan for hypothesis 'bad', ref"
    ):
        utility.score(["good", "bad"], ["x", "y"])
    with pytest.raises(ValueError, match="scores for 2 pairs"):
        as_utility(lambda h, r: [1.0]).score(["a", "b"], ["x", "y"])


@pytest.mark.parametrize("score", [1e101, -1e200, 1e308])
@pytest.mark.parametrize("decoder", ["rounds", "mbr", "pmbr"])
def test_scores_whose_squares_would_overflow_are_refused_by_name(score: float, decoder: str) -> None:
    utility = as_utility(lambda h, r: [score * (1 + len(x)) / 4 for x in h], name="huge")
    named = r"'huge' gave numbers beyond 1e\+100 for .* pairs: .* divide them|gave NaN or infinity"
    with pytest.raises(ValueError, match=named):
        ACPMBR(target=utility, decoder=decoder).rerank([f"text {k}" for k in range(40)])
    large = as_utility(lambda h, r: [1e98 * len(x) for x in h], name="large")
    texts = [*(f"text {k}" for k in range(60)), "a longer text"]
    assert ACPMBR(target=large, decoder=decoder).rerank(texts).text == texts[-1]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [([0, 5], [0, 0], "rows has indices outside 0..1"), ([0], [0, 1], "equally long"), ([[0]], [[0]], "must be 1-D")],
)
def test_wrong_indices_are_named(rows: list, columns: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_utility("chrf").prepare(["a", "b"], ["c", "d"])(np.array(rows), np.array(columns))


def test_wrong_texts_are_named() -> None:
    with pytest.raises(TypeError, match="single string"):
        load_utility("chrf").prepare("abc", ["abc"])
    with pytest.raises(TypeError, match=r"\[1\] is int, expected str"):
        load_utility("chrf").score(["a", 3], ["a", "b"])
    with pytest.raises(ValueError, match="equally long"):
        load_utility("chrf").score(["a", "b"], ["c"])


def test_two_devices_are_scored_at_the_same_time_with_the_same_result() -> None:
    meeting = threading.Barrier(2, timeout=20)

    def slow(h: Sequence[str], r: Sequence[str]) -> list[float]:
        meeting.wait()  # passes only if both run at once
        return [float(len(x)) for x in h]

    rows, columns = np.array([0, 1]), np.array([1, 0])
    texts = ["a", "bb"]
    one, two = (as_utility(slow, device=device).prepare(texts, texts) for device in ("cuda:0", "cuda:1"))
    assert ask_at_once([Ask(one, rows, columns), Ask(two, rows[::-1], columns)]) == [[1, 2], [2, 1]]


def ask_at_once(asks: list[Ask]) -> list[list[float]]:
    """What one source is answered."""

    def steps():
        values = yield asks
        return [value.tolist() for value in values]

    return decide_together([Source(steps(), [ask.scorer for ask in asks], Meter())])[0]


def test_one_device_keeps_the_order() -> None:
    order: list[str] = []

    def record(name: str):
        def score(h: Sequence[str], r: Sequence[str]) -> list[float]:
            order.append(name)
            return [0.0] * len(h)

        return as_utility(score).prepare(["a"], ["b"])

    zero = np.array([0])
    ask_at_once([Ask(record(name), zero, zero) for name in ("first", "second")])
    assert order == ["first", "second"]


def test_the_cache_makes_a_second_run_free(tmp_path: Path) -> None:
    rows, columns = np.divmod(np.arange(144), 12)
    runs = []
    for _ in range(2):
        scorer = load_utility("chrf", cache=tmp_path / "deep" / "scores.db").prepare(SENTENCES, SENTENCES)
        runs.append((scorer(rows, columns), scorer.calls, scorer.statistics.cached))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert (runs[0][1:], runs[1][1:]) == ((144, 0), (0, 144))
    other = load_utility("chrf", beta=1, cache=tmp_path / "deep" / "scores.db").prepare(SENTENCES, SENTENCES)
    other(rows[:5], columns[:5])
    assert other.statistics.cached == 0, "another signature shares no scores"


def test_the_cache_knows_checkpoints_and_sources(tmp_path: Path) -> None:
    cache = tmp_path / "scores.db"
    for seed in (0, 1):
        utility = load_utility(str(write_bleurt(tmp_path / str(seed) / "same-name", seed=seed)), cache=cache)
        utility.score(["a bird"], ["the window"])
    assert len(ScoreCache(cache, "any")) == 2

    def with_source(h: Sequence[str], r: Sequence[str], sources: Sequence[str]) -> list[float]:
        return [float(len(s)) for s in sources]

    keyed = as_utility(with_source, name="length", version="1", cache=tmp_path / "other.db")
    assert keyed.score(["x", "x"], ["y", "y"], ["s", "long"]).tolist() == [1, 4]
    for _ in range(2):
        assert keyed.score(["x", "x"], ["y", "y"], ["long", "s"]).tolist() == [4, 1]
        assert keyed.score(["x", "x"], ["y", "y"], ["s", "long"]).tolist() == [1, 4]
    assert len(ScoreCache(tmp_path / "other.db", "any")) == 2


WRITER = textwrap.dedent(
    """
    import sys, time
    import numpy as np
    from hf_acpmbr.scoring import as_utility
    path, tag, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
    def score(h, r):
        time.sleep(pause)
        return [float(len(x) + len(y)) for x, y in zip(h, r)]
    texts = [tag + "x" * k for k in range(60)]
    scorer = as_utility(score, name="slow", version="1", cache=path).prepare(texts, texts)
    scorer.cache.block = 100
    rows, columns = np.divmod(np.arange(3600), 60)
    scorer(rows, columns)
    print(scorer.calls, flush=True)
    """
)


def _start(path: Path, tag: str, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), tag, str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})


def test_the_cache_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    process = _start(path, "a", 0.05)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or _rows(path) < 500):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = _rows(path)
    assert 500 <= kept < 3600
    second = _start(path, "a", 0.0)
    assert int(second.communicate(timeout=60)[0]) == 3600 - kept, "only what is missing is computed"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_several_processes_share_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    processes = [_start(path, tag, 0.0) for tag in ("a", "a", "b")]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert _rows(path) == 7200


def _rows(path: Path) -> int:
    try:
        return len(ScoreCache(path, "any"))
    except CacheError:
        return 0


def test_a_folder_is_no_cache(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder"):
        load_utility("chrf", cache=tmp_path).score(["a"], ["b"])


def test_aligned_scoring_in_blocks_equals_pair_by_pair() -> None:
    rng = np.random.default_rng(0)
    hypotheses = [" ".join(rng.choice(["a", "b", "c", "dd"], 4)) for _ in range(200)]
    references = [" ".join(rng.choice(["a", "b", "c", "dd"], 5)) for _ in range(200)]
    utility = load_utility("chrf")
    whole = utility.score(hypotheses, references)
    type(utility).pairs_at_once, before = 7, type(utility).pairs_at_once
    try:
        np.testing.assert_array_equal(utility.score(hypotheses, references), whole)
    finally:
        type(utility).pairs_at_once = before


def test_progress_shows_one_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    utility = load_utility(str(write_bleurt(tmp_path / "shown")), progress=True)
    utility.score(SENTENCES[:3], SENTENCES[3:6])
    assert "shown" in capfd.readouterr().err
