"""The same work by mbrs and by this package, in one run: `python -m evaluation.benchmarks.peers`.

mbrs 0.1.8 needs an older transformers, so it gets a virtual environment of its own, made on first use (--environment).
Both libraries run one after the other on this machine with one thread, on the same strings; CPU seconds, best of
`--repeats`, from the list of strings to the decision. Where mbrs cannot be installed the script says so and ends.

The strings are 1,024 samples for each source from the word graph of real system outputs (`candidate_lists.py`) with the
duplicates that come with it, and one list without duplicates: the worst case for a library that counts them. Real
outputs come from the data folder (`--data`, ACPMBR_DATA); `--data builtin` takes eleven sentences of this project.

Each library's part runs as `peers --worker LIBRARY REQUEST.json ANSWER.json` in that library's environment, so the
imports at the top are what both environments have. Imports and set-up are not timed; a decision is, from the list of
strings to the chosen one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import tempfile
import venv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evaluation.assets import DATA_OR_BUILTIN_HELP
from evaluation.benchmarks.candidate_lists import candidate_lists

if TYPE_CHECKING:
    from hf_acpmbr.decoding import Decoder

ROOT = Path(__file__).resolve().parents[2]
PEER = ["mbrs==0.1.8", "transformers==4.57.*", "setuptools<81"]
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
# What both libraries do, with a name, a kind and repeats: an ALS of n × n scores (n, rate, sweeps), or a decision among
# texts (metric, fast, texts, maybe rate). Answers hold what came out and the lowest CPU seconds.
Task = dict[str, Any]
Answer = dict[str, Any]
Work = Callable[[], Answer]


class Missing(Exception):
    """The peer cannot be had here."""


def peer_python(folder: Path) -> Path:
    """Return the Python of the peer's environment, which is made if it does not exist."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)

    def failure(*arguments: str) -> str | None:
        done = subprocess.run([python, *arguments], capture_output=True, text=True)
        return (done.stderr.strip() or "no message").splitlines()[-1] if done.returncode else None

    if failure("-c", "import mbrs"):
        torch = f"torch=={importlib.metadata.version('torch').split('+')[0]}"  # the same for both
        if reason := failure("-m", "pip", "install", "--quiet", torch, *PEER):
            raise Missing(f"pip could not install {' '.join(PEER)}: {reason}")
        if reason := failure("-c", "import mbrs"):
            raise Missing(f"mbrs was installed but does not import: {reason}")
    return python


def make_tasks(lists: int, count: int, repeats: int, data: str | None) -> list[Task]:
    """List what both libraries do."""
    tasks: list[Task] = [
        {"name": f"ALS, N={count}, r={rate}, 30 sweeps", "kind": "als", "n": count, "rate": rate, "sweeps": 30}
        for rate in (16, 512)
    ]
    drawn = candidate_lists(lists, count, data=data)
    unique = max((list(dict.fromkeys(entry.texts)) for entry in candidate_lists(8, 4 * count, data=data)), key=len)
    for k, texts in enumerate([*(entry.texts for entry in drawn), unique[:count]]):
        label = f"{len(texts)} samples, {len(set(texts))} unique"
        chrf: Task = {"metric": "chrf", "fast": True, "texts": texts}
        tasks.append({"name": f"chrF MBR, {label}", "kind": "mbr", **chrf})
        if k in (0, lists):
            tasks += [
                {"name": f"chrF PMBR r=16, {label}", "kind": "pmbr", "rate": 16, **chrf},
                {"name": f"chrF PMBR r=512, {label}", "kind": "pmbr", "rate": 512, **chrf},
                {"name": f"chrF pruning, {label}", "kind": "pruning", **chrf},
                {"name": f"chrF aggregation, {label}", "kind": "aggregation", **chrf},
            ]
    few = drawn[0].texts[:128]
    label = f"{len(few)} samples, {len(set(few))} unique"
    by_sacrebleu: Task = {"kind": "mbr", "metric": "chrf", "fast": False, "texts": few}
    tasks.append({"name": f"chrF MBR, {label}, sacrebleu", **by_sacrebleu})
    tasks.append({"name": f"BLEU MBR, {label}", "kind": "mbr", "metric": "bleu", "texts": few})
    return [{"repeats": repeats, **task} for task in tasks]


def cpu() -> float:
    """Return the CPU seconds of this process and of those it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in usage)


def fastest(work: Work, repeats: int) -> Answer:
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
    from hf_acpmbr.completion.observation import Uniform
    from hf_acpmbr.decoding import MBR, PMBR, AggregationMBR, PruningMBR
    from hf_acpmbr.matrix import ObservedScores
    from hf_acpmbr.recipe import Budget

    torch.set_num_threads(1)
    kind = task["kind"]
    if kind == "als":
        observed = ObservedScores.from_dense(*als_problem(task["n"], task["rate"]))
        solver = ALS(rank=8, regularization=0.1, max_sweeps=task["sweeps"], tolerance=0.0, center=False)
        # mbrs's start. The first half-sweep replaces the row factors, so only the column factors matter.
        generator = torch.Generator().manual_seed(0)
        init = tuple(torch.rand((task["n"], 8), generator=generator).numpy() * (task["n"] * 8) ** -0.5 for _ in "uv")

        def factorize() -> Answer:
            return {"expected": solver.solve(observed, [], init=init).expected().tolist()}

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


def work(library: str, request: Path, answer: Path) -> None:
    """Do one library's part."""
    warnings.simplefilter("ignore")  # either library's convergence warnings would be timed
    make, results = {"mbrs": mbrs_work, "hf_acpmbr": our_work}[library], []
    for task in json.loads(request.read_text(encoding="utf-8")):
        decide = make(task)
        make({**task, "texts": task.get("texts", [])[:8], "n": 32})()  # warm up
        results.append(fastest(decide, task["repeats"]))
        print(f"{library}: {task['name']}: {results[-1]['cpu']:.2f} s CPU", file=sys.stderr, flush=True)
    answer.write_text(json.dumps(results), encoding="utf-8")


def run(python: Path | str, library: str, tasks: list[Task], folder: Path) -> list[Answer]:
    request, answer = folder / "request.json", folder / f"{library}.json"
    request.write_text(json.dumps(tasks), encoding="utf-8")
    worker: list[str | Path] = [python, "-m", "evaluation.benchmarks.peers", "--worker", library, request, answer]
    subprocess.run(worker, check=True, cwd=ROOT, env={**os.environ, **THREADS})
    results: list[Answer] = json.loads(answer.read_text(encoding="utf-8"))
    return results


def peer_calls(task: Task) -> int | None:
    """Count what mbrs scores: each drawn pair, or one in r of them; of pruning it does not say."""
    if task["kind"] not in ("mbr", "pmbr"):
        return None
    return -(-(len(task["texts"]) ** 2) // int(task.get("rate", 1)))


def agreement(task: Task, ours: Answer, peer: Answer) -> str:
    """Compare decisions if the methods are the same; otherwise say what each choice loses against full MBR."""
    if task["kind"] == "als":
        gap = np.abs(np.array(ours["expected"]) - np.array(peer["expected"])).max()
        return f"expected utilities equal to {gap:.0e}"
    if task["kind"] in ("mbr", "aggregation"):
        gap = abs(ours["score"] - peer["score"])
        return f"{'same' if ours['text'] == peer['text'] else 'OTHER'} decision, score equal to {gap:.0e}"
    from evaluation.benchmarks.measures import regret
    from hf_acpmbr.decoding import MBR

    full = MBR().decode(task["texts"], target=task["metric"])
    lost = [regret(full.expected, full.candidates.texts.index(r["text"]), scale=100) for r in (ours, peer)]
    return f"chrF lost against MBR: ours {lost[0]:.2f}, mbrs {lost[1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--environment", type=Path, default=ROOT / "build" / "peers", help="folder of mbrs's environment"
    )
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--lists", type=int, default=3, help="candidate lists with duplicates (default: 3)")
    parser.add_argument("--candidates", type=int, default=1024, help="samples per list (default: 1024)")
    parser.add_argument("--repeats", type=int, default=2, help="the best one counts (default: 2)")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        library, request, answer = arguments.worker
        work(library, Path(request), Path(answer))
        return
    tasks = make_tasks(arguments.lists, arguments.candidates, arguments.repeats, arguments.data)
    try:
        python = peer_python(arguments.environment)
    except (Missing, OSError, subprocess.CalledProcessError) as reason:
        print(f"skipped: mbrs cannot be compared with here. {reason}")
        return
    with tempfile.TemporaryDirectory() as folder:
        ours = run(sys.executable, "hf_acpmbr", tasks, Path(folder))
        peer = run(python, "mbrs", tasks, Path(folder))
    print(f"CPU seconds, one thread, best of {arguments.repeats}; calls: pairs scored")
    print(f"{'work':<52} {'mbrs':>8} {'ours':>8} {'ratio':>7} {'mbrs calls':>11} {'ours':>9}  agreement")
    for task, a, b in zip(tasks, ours, peer, strict=True):
        calls = [f"{value:,}" if value is not None else "" for value in (peer_calls(task), a.get("calls"))]
        seconds = f"{b['cpu']:>8.3f} {a['cpu']:>8.3f} {b['cpu'] / a['cpu']:>6.1f}×"
        print(f"{task['name']:<52} {seconds} {calls[0]:>11} {calls[1]:>9}  {agreement(task, a, b)}")
    slower = [task["name"] for task, a, b in zip(tasks, ours, peer, strict=True) if b["cpu"] < a["cpu"]]
    print(f"slower than mbrs on: {', '.join(slower) if slower else 'nothing'}")


if __name__ == "__main__":
    main()
