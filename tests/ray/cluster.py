"""A cluster of two nodes on one machine, one of which is lost in the middle of the work; another one comes.

python -m tests.ray.cluster FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import ray.data
from ray.cluster_utils import Cluster

from hf_acpmbr import ACPMBR
from hf_acpmbr.cli.main import main
from hf_acpmbr.runs.output import parts_of
from hf_acpmbr.runs.ray import Reranker

T = TypeVar("T")
ROWS = 240
SETTINGS = {"target": "embedded-d1", "decoder": "mbr"}
START = time.monotonic()


def log(text: str) -> None:
    print(f"{time.monotonic() - START:6.1f} s  {text}", flush=True)


def rows() -> list[dict[str, Any]]:
    lists = [[f"the cat {k} sat", f"a cat {k} sat down", f"dogs {k % 7} run", f"cat {k}"] for k in range(ROWS)]
    return [{"id": k, "candidates": texts} for k, texts in enumerate(lists)]


class Slow(Reranker):
    """As slow as a larger metric, so that a node is lost in the middle."""

    def __call__(self, batch: Any) -> Any:
        time.sleep(1)
        return super().__call__(batch)


def lose_one(cluster: Cluster, node: Any, when: Callable[[], bool], work: Callable[[], T]) -> T:
    """Do the work in a thread; once `when` says so, kill a node without warning and add another one.

    A new node sets signal handlers, which only the main thread may.
    """
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while not when():
            assert not working.done(), working.exception() or "the work was over before a node was lost"
            time.sleep(0.1)
        cluster.remove_node(node, allow_graceful=False)
        log("a node was killed")
        cluster.add_node(num_cpus=1)
        log("another one was added")
        return working.result()


def in_python(cluster: Cluster, nodes: list[Any]) -> None:
    actors = ray.data.ActorPoolStrategy(size=2)
    made = ray.data.from_items(rows(), override_num_blocks=24).map_batches(
        Slow, fn_constructor_kwargs=SETTINGS, batch_size=10, compute=actors, num_cpus=1
    )
    found: dict[int, dict[str, Any]] = {}

    def collect() -> None:
        for row in made.iter_rows():
            assert row["id"] not in found, "no row twice"
            found[row["id"]] = row

    lose_one(cluster, nodes.pop(), lambda: len(found) >= 40, collect)
    assert len(found) == ROWS
    log(f"map_batches: {len(found)} of {ROWS} rows, each once")
    mbr = ACPMBR(**SETTINGS)
    for row in rows():
        decision, got = mbr.rerank(row["candidates"]), found[row["id"]]
        assert got["prediction"] == decision.text
        assert got["prediction_utility"] == decision.nbest(1)[0].expected, "to the last bit"
        assert got["prediction_error"] == ""
    log("map_batches: every choice and utility is that of this process, to the last bit")


def by_command(cluster: Cluster, nodes: list[Any], folder: Path) -> None:
    source, one, output = folder / "lists.jsonl", folder / "one.jsonl", folder / "ray.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows() * 4), encoding="utf-8")
    options = ["--input", str(source), "--target", "embedded", "--decoder", "mbr", "--format", "jsonl"]
    assert main(["rerank", *options, "--output", str(one), "--quiet"]) == 0
    log(f"one process: {len(one.read_bytes().splitlines())} lines")
    shards = parts_of(str(output))
    on_ray = ["--output", str(output), "--ray", cluster.address, "--ray-options", "num_cpus=1"]

    def begun() -> bool:
        return len(list(shards.glob("[0-9]*.json"))) >= 5

    assert lose_one(cluster, nodes.pop(), begun, lambda: main(["rerank", *options, *on_ray])) == 0
    assert output.read_bytes() == one.read_bytes()
    log("acpmbr rerank --ray: the bytes of one process")
    assert sorted(path.name for path in folder.glob("ray*")) == ["ray.jsonl", "ray.jsonl.run.json"]


if __name__ == "__main__":
    home = Path(sys.argv[1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    log("two nodes with a processor each")
    in_python(cluster, nodes)
    by_command(cluster, nodes, home)
    ray.shutdown()
    cluster.shutdown()
