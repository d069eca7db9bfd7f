"""What the scoring engine saves: `python -m evaluation.benchmarks.scoring`.

Each part scores the same pairs twice in one run, by the engine and by the loop one would first write, compares the
scores and prints pairs per CPU second.

The texts are real: WMT'23 outputs and references of the data folder (`--data`, ACPMBR_DATA).

1. BLEURT-20-D12's shape with random weights on WMT'23 pairs: fixed-size batches in file order, tokenised batch by
   batch, against batches sorted by length and filled by tokens. Bar: 2×.
2. chrF, chrF++, BLEU and TER on 256 × 256 real sentences: sacrebleu's sentence scores one by one. Bar: 10×. The slow
   loop is timed on a random sample of the pairs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import sacrebleu
import torch

from evaluation.assets import DATA_HELP, find, read_lines
from evaluation.benchmarks.measures import Floats, cpu_seconds
from evaluation.training.utility_network import Size, build_network, export
from evaluation.wmt.data import load_wmt
from hf_acpmbr.embedded import UTILITY_FOLDERS
from hf_acpmbr.metrics.bleurt import BLEURT
from hf_acpmbr.scoring import load_utility

D12, VOCABULARY = Size(12, 1024, 4096, 16, 64), 250300  # 167M parameters in all, as published
BARS = {"bleurt": 2.0, "strings": 10.0}


class Texts:
    """Real texts of WMT'23 en→de."""

    def __init__(self, data: str | None) -> None:
        rows = read_lines(find("ratings", "mqm.test.en-de.jsonl.gz", data))
        self.unique = list({row["hypothesis"]: row for row in rows}.values())
        references = [sentence.reference for sentence in load_wmt("wmt23", "en-de", data)]
        self.references = list(dict.fromkeys(references))

    def pairs(self, count: int) -> tuple[list[str], list[str]]:
        """Draw distinct system outputs with their references, in random order."""
        chosen = np.random.default_rng(0).choice(len(self.unique), min(count, len(self.unique)), replace=False)
        return [self.unique[k]["hypothesis"] for k in chosen], [self.unique[k]["reference"] for k in chosen]


def report(name: str, ours: float, loop: float, pairs: int, loop_pairs: int, bar: float, difference: float) -> None:
    ratio = (pairs / ours) / (loop_pairs / loop)
    verdict = "reached" if ratio >= bar else "MISSED"
    print(
        f"{name:<12} engine {pairs / ours:>10.1f} pairs/s ({pairs} pairs), loop {loop_pairs / loop:>8.1f} pairs/s "
        f"({loop_pairs} pairs): {ratio:>6.1f}× (bar {bar:g}×: {verdict}), largest difference {difference:.1e}",
        flush=True,
    )


def write_bleurt(folder: Path) -> None:
    """Write a checkpoint of BLEURT-20-D12's shape in the public format, with the embedded utility's pieces."""
    torch.manual_seed(0)
    network = build_network(D12, VOCABULARY)
    torch.nn.init.normal_(network.classifier.weight, std=0.03)  # it starts as 0: all pairs would have one score
    export(network, UTILITY_FOLDERS["embedded"] / "spm.model", folder)


def bleurt_loop(utility: BLEURT, hypotheses: list[str], references: list[str], size: int) -> tuple[Floats, float]:
    """Score fixed-size batches in the given order, tokenised one by one; also the share of padding."""
    scores, real, padded = [], 0, 0
    with torch.inference_mode():
        for start in range(0, len(hypotheses), size):
            part = slice(start, start + size)
            left, right = utility.tokenizer.encode(references[part]), utility.tokenizer.encode(hypotheses[part])
            for r, h in zip(left, right, strict=True):
                while len(r) + len(h) > 509:  # the longer side is cut
                    (r if len(r) > len(h) else h).pop()
            cls, sep = utility.tokenizer.cls_id, utility.tokenizer.sep_id
            rows = [[cls, *r, sep, *h, sep] for r, h in zip(left, right, strict=True)]
            width = max(map(len, rows))
            ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
            types = torch.tensor([[0] * (len(r) + 2) + [1] * (width - len(r) - 2) for r in left])
            scores.append(utility.network(ids, types, ids != 0))
            real, padded = real + sum(map(len, rows)), padded + width * len(rows)
    return np.asarray(torch.cat(scores).numpy()), 1 - real / padded


def bench_bleurt(real: Texts, pairs: int, size: int) -> None:
    hypotheses, references = real.pairs(pairs)
    with tempfile.TemporaryDirectory() as name:
        write_bleurt(Path(name))
        utility = BLEURT(name, device="cpu", name="bleurt-20-d12-shape")
        utility.score(hypotheses[:1], references[:1])  # load and warm up
        loop, (expected, wasted) = cpu_seconds(lambda: bleurt_loop(utility, hypotheses, references, size))
        unique = list(dict.fromkeys(references))
        scorer, columns = utility.prepare(hypotheses, unique), np.array([unique.index(r) for r in references])
        ours, scores = cpu_seconds(lambda: scorer(np.arange(pairs), columns))
    print(
        f"BLEURT-20-D12's shape ({utility.parameters / 1e6:.0f}M parameters), {pairs} pairs of WMT'23 en→de: padding "
        f"{100 * scorer.statistics.padding:.0f}% in {scorer.statistics.batches} sorted batches, {100 * wasted:.0f}% in "
        f"batches of {size} as they come"
    )
    report("bleurt", ours, loop, pairs, pairs, BARS["bleurt"], float(np.abs(scores - expected).max()))


STRINGS: dict[str, Callable[[str, str], float]] = {
    "chrf": lambda h, r: float(sacrebleu.sentence_chrf(h, [r]).score),
    "chrf++": lambda h, r: float(sacrebleu.sentence_chrf(h, [r], word_order=2).score),
    "bleu": lambda h, r: float(sacrebleu.sentence_bleu(h, [r]).score),
    "ter": lambda h, r: float(sacrebleu.sentence_ter(h, [r]).score),
}


def bench_strings(real: Texts, names: Sequence[str], sample: int, ter_pairs: int) -> None:
    hypotheses, references = real.pairs(256)[0], real.references[:256]
    random = np.random.default_rng(2)
    for name in names:
        utility = load_utility(name)
        rows, columns = np.divmod(np.arange(256 * 256), 256)
        if name == "ter":
            subset = random.choice(rows.size, ter_pairs, replace=False)
            rows, columns = rows[subset], columns[subset]
        ours, scores = cpu_seconds(lambda: utility.prepare(hypotheses, references)(rows, columns))  # noqa: B023
        chosen = random.choice(rows.size, min(sample, rows.size), replace=False)
        pairs = [(hypotheses[rows[k]], references[columns[k]]) for k in chosen]
        loop, expected = cpu_seconds(lambda: [STRINGS[name](h, r) for h, r in pairs])  # noqa: B023
        difference = float(np.abs(scores[chosen] - expected).max())
        report(name, ours, loop, rows.size, len(pairs), BARS["strings"], difference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help=DATA_HELP)
    parser.add_argument("--parts", nargs="+", default=list(BARS), choices=list(BARS), help="which of the two")
    parser.add_argument("--pairs", type=int, default=64, help="pairs of the BLEURT part")
    parser.add_argument("--batch-size", type=int, default=32, help="pairs per fixed-size batch")
    parser.add_argument("--sample", type=int, default=200, help="pairs on which the slow loops are timed")
    parser.add_argument("--ter-pairs", type=int, default=2000, help="random pairs of the TER part")
    parser.add_argument("--strings", nargs="+", default=list(STRINGS), choices=list(STRINGS))
    args = parser.parse_args()
    real = Texts(args.data)
    torch.set_num_threads(1)
    print("CPU seconds on one thread; both ways score the same pairs in this run", flush=True)
    if "bleurt" in args.parts:
        bench_bleurt(real, args.pairs, args.batch_size)
    if "strings" in args.parts:
        bench_strings(real, args.strings, args.sample, args.ter_pairs)


if __name__ == "__main__":
    main()
