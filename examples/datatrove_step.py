"""A step of a datatrove pipeline (needs 'datatrove[io]'): the best of its candidates replaces the text of a document.

    python examples/datatrove_step.py candidates/ best/ --tasks 2

Lines are JSON: {"id": ..., "text": the source, "candidates": [...]}. datatrove's other executors take the same step.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

from hf_acpmbr import ACPMBR


class Rerank(PipelineStep):
    name = "MBR"
    type = "RERANK"

    def __init__(self, together: int = 16, **settings: Any) -> None:
        super().__init__()
        self.together, self.settings = together, settings  # of ACPMBR, which is loaded where the step runs

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        mbr, documents = ACPMBR(**self.settings), iter(data)
        while some := list(itertools.islice(documents, self.together)):
            lists = [document.metadata.pop("candidates") for document in some]
            decisions = mbr.rerank_many(lists, [document.text for document in some])
            for document, decision in zip(some, decisions, strict=True):
                document.metadata |= {"source": document.text, "expected": float(decision.expected[decision.index])}
                document.text = decision.text
                yield document


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--target", default="embedded")
    args = parser.parse_args()
    steps = [JsonlReader(args.input), Rerank(target=args.target), JsonlWriter(args.output, compression=None)]
    LocalPipelineExecutor(steps, tasks=args.tasks, workers=1, logging_dir=f"{args.output}/logs").run()
