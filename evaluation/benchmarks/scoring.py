"""What the scoring engine saves: `python -m evaluation.benchmarks.scoring`.

Each part scores the same pairs twice in one run, by the engine and by the loop one would first write, compares the
scores and prints pairs per CPU second.

The texts are real: WMT'23 outputs and references of the data folder (`--data`, ACPMBR_DATA).

1. BLEURT-20-D12's shape with random weights on WMT'23 pairs: fixed-size batches in file order, tokenised batch by
   batch, against batches sorted by length and filled by tokens. Bar: 2×.
2. BERTScore with a small random encoder: every pair's two texts encoded anew, against each text once. Bar: 20×.
3. chrF, chrF++, BLEU and TER on 256 × 256 real sentences: sacrebleu's sentence scores one by one. Bar: 10×. The slow
   loop is timed on a random sample of the pairs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import sacrebleu
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizer, PreTrainedModel

from evaluation.assets import DATA_HELP, find, read_lines
from evaluation.benchmarks.measures import Floats, cpu_seconds, full_matrix
from evaluation.training.utility_network import Size, build_network, export
from evaluation.wmt.data import load_wmt
from hf_acpmbr.embedded import UTILITY_FOLDERS
from hf_acpmbr.metrics.bleurt import BLEURT
from hf_acpmbr.scoring import load_utility
from hf_acpmbr.types import Tokenizer

D12, VOCABULARY = Size(12, 1024, 4096, 16, 64), 250300  # 167M parameters in all, as published
BARS = {"bleurt": 2.0, "bertscore": 20.0, "strings": 10.0}


class Texts:
    """Real texts of WMT'23 en→de."""

    def __init__(self, data: str | None) -> None:
        rows = read_lines(find("ratings", "mqm.test.en-de.jsonl.gz", data))
        self.unique = list({row["hypothesis"]: row for row in rows}.values())
        references = load_wmt("wmt23", "en-de", data)["reference"]
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


def write_encoder(folder: Path, texts: Sequence[str]) -> None:
    """Write a random encoder of MiniLM-L6's shape with a word-piece vocabulary of the texts."""
    words = Counter(word.strip(".,:;!?()\"'").lower() for text in texts for word in text.split())
    letters = sorted({letter for word in words for letter in word})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,:;!?()\"'-", *letters]
    vocabulary += [f"##{letter}" for letter in letters] + [word for word, _ in words.most_common(6000)]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(vocabulary))}
    BertTokenizer(vocab=numbers, model_max_length=512).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertModel(BertConfig.from_dict({"vocab_size": len(numbers), **shape})).save_pretrained(folder)


def bertscore_loop(
    tokenizer: Tokenizer, model: PreTrainedModel, hypotheses: list[str], references: list[str], size: int = 16
) -> Floats:
    """Encode both texts of each pair anew, batch by batch, and match greedily."""
    out = []
    for start in range(0, len(hypotheses), size):
        sides = []
        for texts in (hypotheses[start : start + size], references[start : start + size]):
            inputs = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
            with torch.inference_mode():
                states = torch.nn.functional.normalize(model(**inputs).last_hidden_state, dim=-1)
            sides.append((states, inputs["attention_mask"].bool(), inputs["attention_mask"].sum(dim=1)))
        (h, mask_h, size_h), (r, mask_r, size_r) = sides
        similarity = h @ r.mT
        precision = similarity.masked_fill(~mask_r[:, None, :], -2).amax(dim=2).masked_fill(~mask_h, 0)
        recall = similarity.masked_fill(~mask_h[:, :, None], -2).amax(dim=1).masked_fill(~mask_r, 0)
        for k in range(len(size_h)):
            p = float(precision[k, 1 : size_h[k] - 1].mean())
            q = float(recall[k, 1 : size_r[k] - 1].mean())
            out.append(2 * p * q / (p + q))
    return np.array(out)


def bench_bertscore(real: Texts, texts: int, sample: int) -> None:
    hypotheses, references = real.pairs(texts)
    references = list(dict.fromkeys(references))
    rows, columns = np.divmod(np.arange(len(hypotheses) * len(references)), len(references))
    chosen = np.random.default_rng(1).choice(rows.size, min(sample, rows.size), replace=False)
    left, right = [hypotheses[k] for k in rows[chosen]], [references[k] for k in columns[chosen]]
    with tempfile.TemporaryDirectory() as name:
        write_encoder(Path(name), real.pairs(2000)[0])
        utility = load_utility("bertscore", checkpoint=name, device="cpu", layer=6)
        utility.score(hypotheses[:1], references[:1])
        ours, matrix = cpu_seconds(lambda: full_matrix(utility, hypotheses, references).ravel())
        tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval()
        loop, expected = cpu_seconds(lambda: bertscore_loop(tokenizer, model, left, right))
    difference = float(np.abs(matrix[chosen] - expected).max())
    report("bertscore", ours, loop, rows.size, len(left), BARS["bertscore"], difference)


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
    parser.add_argument("--parts", nargs="+", default=list(BARS), choices=list(BARS), help="which of the three")
    parser.add_argument("--pairs", type=int, default=64, help="pairs of the BLEURT part")
    parser.add_argument("--batch-size", type=int, default=32, help="pairs per fixed-size batch")
    parser.add_argument("--texts", type=int, default=64, help="hypotheses of the BERTScore part")
    parser.add_argument("--sample", type=int, default=200, help="pairs on which the slow loops are timed")
    parser.add_argument("--ter-pairs", type=int, default=2000, help="random pairs of the TER part")
    parser.add_argument("--strings", nargs="+", default=list(STRINGS), choices=list(STRINGS))
    args = parser.parse_args()
    real = Texts(args.data)
    torch.set_num_threads(1)
    print("CPU seconds on one thread; both ways score the same pairs in this run", flush=True)
    if "bleurt" in args.parts:
        bench_bleurt(real, args.pairs, args.batch_size)
    if "bertscore" in args.parts:
        bench_bertscore(real, args.texts, args.sample)
    if "strings" in args.parts:
        bench_strings(real, args.strings, args.sample, args.ter_pairs)


if __name__ == "__main__":
    main()
