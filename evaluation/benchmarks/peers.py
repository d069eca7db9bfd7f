"""The same work by mbrs and by this package, in one run: `python -m evaluation.benchmarks.peers`.

mbrs 0.1.8 needs an older transformers, so it gets a virtual environment of its own, made on first use (--environment).
Both libraries run one after the other on this machine with one thread, on the same strings; CPU seconds, best of
`--repeats`, from the list of strings to the decision. Where mbrs cannot be installed the script says so and ends.

The strings are 1,024 samples for each source from the word graph of real system outputs (`candidate_lists.py`) with the
duplicates that come with it, and one list without duplicates: the worst case for a library that counts them. Real
outputs come from the data folder (`--data`, ACPMBR_DATA); `--data builtin` takes eleven sentences of this project.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np

from evaluation.assets import DATA_OR_BUILTIN_HELP
from evaluation.benchmarks.candidate_lists import candidate_lists
from evaluation.benchmarks.measures import regret
from evaluation.benchmarks.peers_worker import Answer, Task
from hf_acpmbr.decoding import MBR

ROOT = Path(__file__).resolve().parents[2]
PEER = ["mbrs==0.1.8", "transformers==4.57.*", "setuptools<81"]
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


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


def run(python: Path | str, library: str, tasks: list[Task], folder: Path) -> list[Answer]:
    request, answer = folder / "request.json", folder / f"{library}.json"
    request.write_text(json.dumps(tasks), encoding="utf-8")
    worker = Path(__file__).with_name("peers_worker.py")
    subprocess.run([python, worker, library, request, answer], check=True, env={**os.environ, **THREADS})
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
    arguments = parser.parse_args()
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
