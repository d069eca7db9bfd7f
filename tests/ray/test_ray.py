"""ACPMBR in batches as Ray Data hands them out, and files made by a cluster's actors."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_acpmbr import ACPMBR, Recipe
from hf_acpmbr.cli.main import main
from hf_acpmbr.embedded import TRANSLATOR
from hf_acpmbr.runs.output import parts_of
from hf_acpmbr.runs.ray import Reranker, Translator

ROOT = Path(__file__).resolve().parents[2]
POOLS = [["the cat sat", "the cat sat", f"a cat {k} sat down", f"dogs {k % 3} run"] for k in range(12)]


def batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows as Ray's default format has them: a NumPy array per column."""
    return {name: np.fromiter((row[name] for row in rows), dtype=object, count=len(rows)) for name in rows[0]}


def rows_of(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True)]


def test_other_columns_pass_through_and_choices_are_those_of_the_library() -> None:
    data = [{"id": k, "list": np.array(pool, dtype=object)} for k, pool in enumerate(POOLS)]
    made = rows_of(Reranker("fast", candidates="list", prediction="best", nbest=2, target="chrf")(batch(data)))
    mbr = ACPMBR(target="chrf", recipe="fast")
    for row, pool in zip(made, POOLS, strict=True):
        expected = mbr.rerank(pool).nbest(2)
        assert row["best"] == expected[0].text
        assert row["best_utility"] == expected[0].expected
        assert row["best_nbest"] == [entry.text for entry in expected]
        assert row["best_nbest_utility"] == [entry.expected for entry in expected]
        assert row["best_error"] == ""
    assert [row["id"] for row in made] == list(range(len(POOLS)))
    assert [list(row["list"]) for row in made] == POOLS


def test_counts_sources_references_and_a_recipe_as_json_are_used() -> None:
    recipe = Recipe.named("auto", target="chrf", decoder="mbr").to_dict()
    row = {"candidates": ["red sun", "blue moon"], "n": [1, 5], "refs": ["a red sun"]}
    assert Reranker(recipe, counts="n")(batch([row]))["prediction"].tolist() == ["blue moon"]
    assert Reranker(recipe, counts="n", references="refs")(batch([row]))["prediction"].tolist() == ["red sun"]


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, len(POOLS)), max_size=4), order=st.permutations(range(len(POOLS))))
def test_results_depend_neither_on_the_batch_nor_on_its_order(cuts: list[int], order: list[int]) -> None:
    one = Reranker(target="embedded-d1", decoder="mbr")
    data = [{"id": k, "candidates": pool} for k, pool in enumerate(POOLS)]
    together = {row["id"]: row for row in rows_of(one(batch(data)))}
    shuffled = [data[k] for k in order]
    places = sorted({0, *cuts, len(POOLS)})
    for first, last in itertools.pairwise(places):
        for row in rows_of(one(batch(shuffled[first:last]))):
            other = together[row["id"]]
            assert (row["prediction"], row["prediction_utility"]) == (other["prediction"], other["prediction_utility"])


def test_an_error_of_a_row_is_a_column_and_the_others_are_decided() -> None:
    rerank = Reranker(target="chrf", decoder="mbr", counts="n")
    data = [{"candidates": pool, "n": [1] * len(pool)} for pool in (["a", "b"], [], ["c"], "text", ["d"])]
    data[2]["n"] = [0]
    made = rows_of(rerank(batch(data)))
    assert [row["prediction"] for row in made] == ["a", "", "", "", "d"]
    assert [bool(row["prediction_error"]) for row in made] == [False, True, True, True, False]
    assert "a list of texts is needed, got 'text'" in made[3]["prediction_error"]
    assert [np.isnan(row["prediction_utility"]) for row in made] == [False, True, True, True, False]
    with pytest.raises(ValueError, match="no column 'n' in the dataset, which has candidates"):
        rerank({"candidates": made})


@pytest.mark.skipif(not (TRANSLATOR / "config.json").is_file(), reason="the embedded translator is not there")
def test_a_translator_gives_what_map_fn_gives_for_each_row_alone() -> None:
    options = {"target": "chrf", "decoder": "mbr", "num_candidates": 8}
    translate = Translator(source="en", generate={"max_new_tokens": 12}, load={"device": "cpu"}, **options)
    data = [{"en": text} for text in ("Good morning!", "", "Where is the station?", "\ud800")]
    made = rows_of(translate(batch(data)))
    alone = [rows_of(translate(batch([row])))[0]["prediction"] for row in data]
    assert [row["prediction"] for row in made] == alone
    assert [bool(row["prediction"]) for row in made] == [True, False, True, False]
    assert [bool(row["prediction_error"]) for row in made] == [False, False, False, True]


def test_the_classes_come_without_ray_and_their_arguments_can_be_sent() -> None:
    program = "import sys, hf_acpmbr.runs.ray; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"
    kept = pickle.loads(pickle.dumps({"recipe": Recipe.named("fast", target="chrf"), "nbest": 2}))
    assert Reranker(**kept)(batch([{"candidates": ["a", "a", "b"]}]))["prediction"].tolist() == ["a"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--ray", "--shard", "0/2"], "--ray divides the file between its actors itself: leave out --shard"),
        (["--ray", "--merge"], "leave out --shard, --merge and launchers"),
        (["--ray-options", "num_gpus=0.5"], "--ray-options are for --ray: leave them out"),
        (["--ray", "--output", "-"], "give --output FILE"),
        (["--ray", "--input", "-"], "give --input FILE"),
    ],
)
def test_what_a_cluster_cannot_share_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('["a", "b"]\n', encoding="utf-8")
    files = ["--input", str(source), "--output", str(tmp_path / "out")]
    assert main(["rerank", *files, "--decoder", "mbr", *more]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}


def needs_ray() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: make test-ray")


def test_one_of_two_nodes_is_lost_and_another_comes_and_nothing_changes(tmp_path: Path) -> None:
    needs_ray()
    command = [sys.executable, "-m", "tests.ray.cluster", str(tmp_path)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=900)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("a node was killed") == 2


def write_inputs(folder: Path) -> dict[str, list[str]]:
    """The same candidates as JSON lines, parquet and text, with the options that read them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = [{"candidates": [f"the cat {k} sat", f"a cat {k} sat", f"dogs {k % 7} run"]} for k in range(100)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lists), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(lists), folder / "in.parquet")
    (folder / "in.txt").write_text("".join(f"{text}\n" for row in lists for text in row["candidates"]))
    return {"in.jsonl": [], "in.parquet": [], "in.txt": ["--candidates-per-source", "3"]}


def finish(command: list[str], folder: Path) -> None:
    subprocess.run(command, env=environment(), cwd=folder, check=True, timeout=600)


def kill_after_two_shards(command: list[str], folder: Path, output: Path) -> None:
    process = subprocess.Popen(command, env=environment(), cwd=folder)
    while len(list(parts_of(str(output)).glob("[0-9]*.json"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists()


ON_RAY = ["--ray", "--ray-options", "num_cpus=0.5", "size=1"]


def test_ray_of_this_machine_writes_the_bytes_of_one_process_for_any_input_and_after_a_kill(tmp_path: Path) -> None:
    needs_ray()
    program = [sys.executable, "-m", "hf_acpmbr", "rerank", "--target", "embedded-d1", "--decoder", "mbr"]
    written = set()
    for name, more in write_inputs(tmp_path).items():
        one, output = tmp_path / f"one.{name}", tmp_path / f"ray.{name}"
        files = [*program, "--input", name, *more]
        finish([*files, "--output", str(one), "--quiet"], tmp_path)
        command = [*files, "--output", output.name, *ON_RAY]
        if name == "in.jsonl":
            kill_after_two_shards(command, tmp_path, output)
            command.append("--resume")
        finish(command, tmp_path)
        assert output.read_bytes() == one.read_bytes()
        written.add(one.read_bytes())
    assert len(written) == 1
    changed = [*command, "--resume", "--target", "embedded-d2"]
    done = subprocess.run(changed, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "is of another run (target: " in done.stderr


@pytest.mark.skipif(not (TRANSLATOR / "config.json").is_file(), reason="the embedded translator is not there")
def test_translate_on_ray_writes_the_bytes_of_one_process_after_a_kill(tmp_path: Path) -> None:
    needs_ray()
    lines = [f"The cat has {k} kittens." if k % 7 else "" for k in range(40)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    program = [sys.executable, "-m", "hf_acpmbr", "translate", "--input", "in.txt", "--device", "cpu"]
    options = ["--target", "chrf", "--num-candidates", "8", "--max-new-tokens", "16", "--format", "jsonl"]
    one, output = tmp_path / "one", tmp_path / "out"
    finish([*program, *options, "--output", str(one), "--quiet"], tmp_path)
    command = [*program, *options, "--output", output.name, *ON_RAY]
    kill_after_two_shards(command, tmp_path, output)
    finish([*command, "--resume"], tmp_path)
    assert output.read_bytes() == one.read_bytes()
    written = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [bool(record["text"]) for record in written] == [bool(line) for line in lines]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "one", "one.run.json", "out", "out.run.json"]
