"""One library's part of the comparison in `peers.py`, run in that library's own environment.

    python peers_worker.py mbrs|hf_acpmbr REQUEST.json ANSWER.json

Imports one of the two libraries and nothing else of this project, so that it runs where only the other is installed.
Imports and set-up are not timed; a decision is, from the list of strings to the chosen one.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hf_acpmbr.decoding import Decoder


# What both libraries do, with a name, a kind and repeats: an ALS of n × n scores (n, rate, sweeps), or a decision among
# texts (metric, fast, texts, maybe rate). Answers hold what came out and the lowest CPU seconds.
Task = dict[str, Any]
Answer = dict[str, Any]
Work = Callable[[], Answer]


def cpu() -> float:
    """Return the CPU seconds of this process and of those it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in usage)


def measure(work: Work, repeats: int) -> Answer:
    """Repeat the work and return its fastest answer."""
    answers = []
    for _ in range(repeats):
        start = cpu()
        answers.append(work())
        answers[-1]["cpu"] = cpu() - start
    return min(answers, key=lambda answer: answer["cpu"])


def als_problem(n: int, rate: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Make the same noisy low-rank scores in [0, 1] and mask for both libraries."""
    random = np.random.default_rng(0)
    scores = 0.6 + 0.03 * random.normal(size=(n, 8)) @ random.normal(size=(8, n)) + 0.02 * random.normal(size=(n, n))
    mask = np.zeros(n * n, dtype=bool)
    mask[random.permutation(n * n)[: n * n // rate]] = True
    return scores.astype(np.float32), mask.reshape(n, n)


def mbrs_work(task: Task) -> Work:
    """Set up the task for mbrs. chrF by its Rust version, its fastest, unless the task says otherwise."""
    import torch
    from mbrs import decoders, metrics
    from mbrs.modules.als import MatrixFactorizationALS

    torch.set_num_threads(1)
    kind = task["kind"]
    if kind == "als":
        scores, mask = (torch.from_numpy(part) for part in als_problem(task["n"], task["rate"]))
        solver = MatrixFactorizationALS(regularization_weight=0.1, rank=8)

        def factorize() -> Answer:
            x, y = solver.factorize(scores * mask, mask, niter=task["sweeps"], tolerance=float("-inf"), seed=0)
            return {"expected": (x @ y.mean(0)).tolist()}

        return factorize
    if task["metric"] == "chrf":
        metric = metrics.MetricChrF(metrics.MetricChrF.Config(fastchrf=task["fast"], num_workers=1))
    else:
        metric = metrics.MetricBLEU(metrics.MetricBLEU.Config(num_workers=1))
    cls, options = {
        "mbr": (decoders.DecoderMBR, {}),
        "aggregation": (decoders.DecoderAggregateMBR, {}),
        "pmbr": (decoders.DecoderProbabilisticMBR, {"reduction_factor": task.get("rate"), "niter": 30}),
        "pruning": (decoders.DecoderPruningMBR, {}),
    }[kind]
    decoder = cls(cls.Config(**options), metric)
    texts = task["texts"]

    def decode() -> Answer:
        output = decoder.decode(texts, texts, nbest=1)
        return {"text": output.sentence[0], "score": float(output.score[0])}

    return decode


def our_work(task: Task) -> Work:
    """Set up the task for hf_acpmbr, with the same settings."""
    import torch

    from hf_acpmbr.completion import ALS
    from hf_acpmbr.decoding import MBR, PMBR, AggregationMBR, PruningMBR
    from hf_acpmbr.observation import Budget, Uniform

    torch.set_num_threads(1)
    kind = task["kind"]
    if kind == "als":
        scores, mask = als_problem(task["n"], task["rate"])
        solver = ALS(rank=8, regularization=0.1, max_sweeps=task["sweeps"], tolerance=0.0, center=False)
        # mbrs's start. The first half-sweep replaces the row factors, so only the column factors matter.
        generator = torch.Generator().manual_seed(0)
        init = tuple(torch.rand((task["n"], 8), generator=generator).numpy() * (task["n"] * 8) ** -0.5 for _ in "uv")

        def factorize() -> Answer:
            return {"expected": solver.complete(scores, mask, init=init).expected().tolist()}

        return factorize
    makers: dict[str, Callable[[], Decoder]] = {
        "mbr": MBR,
        "aggregation": AggregationMBR,
        "pmbr": lambda: PMBR(ALS(max_sweeps=30), Uniform(), Budget(reduction=task["rate"])),
        "pruning": lambda: PruningMBR(alpha=0.99, schedule=(8, 16, 32, 64, 128, 256), bootstrap=500),
    }
    decoder, texts = makers[kind](), task["texts"]

    def decode() -> Answer:
        decision = decoder.decode(texts, target=task["metric"])
        score = float(decision.expected[decision.index])
        return {"text": decision.text, "score": score, "calls": decision.total_calls}

    return decode


def main() -> None:
    library, request, answer = sys.argv[1:]
    tasks: list[Task] = json.loads(Path(request).read_text(encoding="utf-8"))
    make = {"mbrs": mbrs_work, "hf_acpmbr": our_work}[library]
    warnings.simplefilter("ignore")  # either library's convergence warnings would be timed
    results = []
    for task in tasks:
        work = make(task)
        small: Task = {**task, "texts": task.get("texts", [])[:8], "n": 32}
        make(small)()  # warm up
        results.append(measure(work, task["repeats"]))
        print(f"{library}: {task['name']}: {results[-1]['cpu']:.2f} s CPU", file=sys.stderr, flush=True)
    Path(answer).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
