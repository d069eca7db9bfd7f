"""The score cache: what its keys stand for, and files that are damaged, locked or not there."""

from __future__ import annotations

import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hf_acpmbr.cli.main import main
from hf_acpmbr.scoring import Utility, load_utility
from hf_acpmbr.scoring.cache import CacheError, ScoreCache

from ..metrics.checkpoints import write_bleurt

HYPOTHESES, REFERENCES = ["a bird", "the window"], ["a bird sang", "a door"]


def scored(utility: Utility) -> tuple[list[float], int]:
    """Scores and how many came from the cache."""
    scorer = utility.prepare(HYPOTHESES, REFERENCES)
    rows, columns = np.divmod(np.arange(4), 2)
    return scorer(rows, columns).tolist(), scorer.statistics.cached


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount > 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE scores SET value = 9e999",
        "UPDATE scores SET value = NULL",
        "UPDATE scores SET value = 'much'",
    ],
)
def test_what_is_no_finite_number_is_computed_again(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "scores.db"
    right, _ = scored(load_utility("chrf", cache=path))
    change(path, statement)
    assert scored(load_utility("chrf", cache=path)) == (right, 0)
    assert scored(load_utility("chrf", cache=path)) == (right, 4), "and kept"


def break_file(path: Path) -> None:
    path.write_bytes(b"this is not a database, but it is long enough to look at" * 50)


def break_schema(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE scores (other TEXT)")


@pytest.mark.parametrize("spoil", [break_file, break_schema, lambda path: path.parent.joinpath("file").touch()])
def test_a_file_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: object
) -> None:
    path = tmp_path / "scores.db"
    spoil(path)  # type: ignore[operator]
    if not path.exists():
        path = tmp_path / "file" / "scores.db"  # its folder is a file
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(CacheError, match=r"the score cache .*scores\.db cannot be used \(.*score without cache="):
        scored(load_utility("chrf", cache=path))
    assert (path.read_bytes() if path.exists() else None) == before, "it is not touched"
    texts = tmp_path / "texts"
    texts.write_text("a\n", encoding="utf-8")
    command = ["score", "--utility", "chrf", "--hypotheses", str(texts), "--references", str(texts), "--option"]
    assert main([*command, f"cache={path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"acpmbr score: the score cache {path} cannot be used (")
    assert error.count("\n") == 1


def test_a_locked_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScoreCache, "timeout", 0.05)
    path = tmp_path / "scores.db"
    right, _ = scored(load_utility("chrf", cache=path))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CacheError, match=r"cannot be used \(database is locked\)"):
            load_utility("chrf", beta=1, cache=path).score(["a"], ["b"])
    assert scored(load_utility("chrf", cache=path)) == (right, 4)


def test_other_code_of_a_metric_shares_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.db"
    scored(load_utility("chrf", cache=path))
    assert scored(load_utility("chrf", cache=path))[1] == 4
    monkeypatch.setattr("hf_acpmbr.scoring.engine.code_version", lambda *parts: "newer")
    assert scored(load_utility("chrf", cache=path))[1] == 0
    monkeypatch.undo()
    kind = type(load_utility("chrf"))
    own = type(kind.__name__, (kind,), {"kernel": lambda self, *arguments: kind.kernel(self, *arguments)})
    assert scored(own(cache=path))[1] == 0, "nor does a class of one's own"


def test_every_option_is_in_the_key(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    scored(load_utility("chrf", cache=path))
    for options in ({"beta": 1}, {"char_order": 4}, {"word_order": 2}, {"lowercase": True}, {"whitespace": True}):
        assert scored(load_utility("chrf", cache=path, **options))[1] == 0


def test_weights_changed_in_the_middle_share_no_scores(tmp_path: Path) -> None:
    path, folder = tmp_path / "scores.db", write_bleurt(tmp_path / "checkpoint")
    scored(load_utility(str(folder), cache=path))
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert scored(load_utility(str(folder), cache=path))[1] == 0


def test_a_string_that_is_not_text_is_explained(tmp_path: Path) -> None:
    assert np.isfinite(load_utility("chrf").score(["a \ud800"], ["a b"])).all(), "taken where it can be"
    utility = load_utility(str(write_bleurt(tmp_path / "checkpoint")))
    with pytest.raises(ValueError, match=r"'a \\ud800' has half of a surrogate pair, which is not text: remove it"):
        utility.score(["a \ud800"], ["a b"])


def test_no_warning_where_all_is_well(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            scored(load_utility("chrf", cache=tmp_path / "scores.db"))
