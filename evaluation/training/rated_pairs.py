"""Reference–hypothesis pairs with a score: files, MQM and BLEURT-20 ratings, and batches for a BLEURT network."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import torch

from evaluation.assets import find, read_lines
from evaluation.training.trainer import length_batches
from evaluation.training.translation import pad_rows
from hf_acpmbr.files import write_atomically

SPECIAL_PIECES = ("[CLS]", "[SEP]")
# MQM has a long tail of very bad segments that would rule a squared error.
WORST_MQM = -15.0
# Hypotheses of one reference that a batch keeps together, so that their order can be learnt.
GROUP = 6


@dataclass(frozen=True)
class RatedPair:
    reference: str
    hypothesis: str
    score: float


def cached_chunks(folder: Path, chunks: int, make: Callable[[int], list[RatedPair]]) -> list[list[RatedPair]]:
    """Return `make(k)` for each k, reading from `folder` what an earlier run has made."""
    result = []
    for k in range(chunks):
        path = folder / f"pairs-{k:03d}.jsonl.gz"
        if not path.exists():
            lines = "".join(json.dumps(vars(pair), ensure_ascii=False) + "\n" for pair in make(k))
            write_atomically(path, gzip.compress(lines.encode()))
            print(f"{path.name}: {k + 1} of {chunks}", flush=True)
        result.append([RatedPair(**row) for row in read_lines(path)])
    return result


def read_ratings(data: Path | None, kind: str, part: str) -> list[RatedPair]:
    """Read the ratings of a kind ("mqm", "bleurt20") in the data folder, for "train" or "test"."""
    rows = read_lines(find("ratings", f"{kind}.{part}.en-de.jsonl.gz", data))
    return [RatedPair(row["reference"], row["hypothesis"], float(row[kind])) for row in rows]


def training_ratings(data: Path | None) -> tuple[list[RatedPair], list[RatedPair]]:
    """Read BLEURT-20 scores as they are, and MQM moved to their mean and spread."""
    bleurt, mqm = (read_ratings(data, kind, "train") for kind in ("bleurt20", "mqm"))
    scores = np.array([pair.score for pair in bleurt])
    human = np.array([max(pair.score, WORST_MQM) for pair in mqm])
    moved = (human - human.mean()) / human.std() * scores.std() + scores.mean()
    return bleurt, [RatedPair(p.reference, p.hypothesis, float(s)) for p, s in zip(mqm, moved, strict=True)]


def joined(pairs: Sequence[RatedPair], number: int) -> list[RatedPair]:
    """Make `number` texts of two to four segments in a row, rated as MQM does it: their faults add up.

    Each row of references has GROUP rows of hypotheses. The faults of a segment are the distance of its score from the
    best score of `pairs`, and no text falls below the worst score. The same pairs give the same result.
    """
    rng = random.Random(0)
    best, worst = max(pair.score for pair in pairs), min(pair.score for pair in pairs)
    hypotheses: dict[str, list[RatedPair]] = {}
    for pair in pairs:
        hypotheses.setdefault(pair.reference, []).append(pair)
    references, result = sorted(hypotheses), list[RatedPair]()
    while len(result) < number:
        row = rng.sample(references, rng.randint(2, 4))
        for _ in range(GROUP):
            chosen = [rng.choice(hypotheses[reference]) for reference in row]
            faults = sum(best - pair.score for pair in chosen)
            texts = " ".join(row), " ".join(pair.hypothesis for pair in chosen)
            result.append(RatedPair(*texts, max(worst, best - faults)))
    return result[:number]


@dataclass(frozen=True)
class PairBatch:
    """`[CLS] reference [SEP] hypothesis [SEP]` of B pairs: ids, segments and mask (B, L), scores and groups (B,).

    Pairs of one group have the same reference.
    """

    ids: torch.Tensor
    segments: torch.Tensor
    mask: torch.Tensor
    scores: torch.Tensor
    groups: torch.Tensor

    @property
    def tokens(self) -> int:
        return self.ids.numel()


class RatedPairs:
    """Token ids and scores of rated pairs; each side keeps at most half of the network's positions."""

    def __init__(self, pairs: Sequence[RatedPair], pieces: Path, positions: int) -> None:
        model = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
        self.cls, self.sep = (model.piece_to_id(piece) for piece in SPECIAL_PIECES)
        room = (positions - 3) // 2
        self.references = [row[:room] for row in model.encode([pair.reference for pair in pairs])]
        self.hypotheses = [row[:room] for row in model.encode([pair.hypothesis for pair in pairs])]
        self.scores = np.array([pair.score for pair in pairs], dtype=np.float32)
        sides = zip(self.references, self.hypotheses, strict=True)
        self.lengths = np.array([len(reference) + len(hypothesis) + 3 for reference, hypothesis in sides])
        numbers: dict[str, int] = {}
        self.groups = np.array([numbers.setdefault(pair.reference, len(numbers)) for pair in pairs])

    def __len__(self) -> int:
        return len(self.scores)

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[np.ndarray]:
        """Plan one epoch: indices of each batch. At most GROUP pairs of one reference, drawn anew, stay together."""
        order = np.random.default_rng([seed, epoch, 2]).permutation(len(self))
        order = order[np.argsort(self.groups[order], kind="stable")]
        starts = np.flatnonzero(np.diff(self.groups[order], prepend=-1))
        # The place of each pair within its group decides where the next part begins.
        place = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
        parts = np.split(order, np.flatnonzero(place % GROUP == 0)[1:])
        longest = np.array([[self.lengths[part].max()] for part in parts])
        sizes = np.array([len(part) for part in parts])
        batches = length_batches(longest, batch_tokens, seed, epoch, sizes)
        return [np.concatenate([parts[k] for k in batch]) for batch in batches]

    def batch(self, indices: np.ndarray) -> PairBatch:
        rows, segments = [], []
        for k in indices:
            reference, hypothesis = self.references[k], self.hypotheses[k]
            rows.append([self.cls, *reference, self.sep, *hypothesis, self.sep])
            segments.append([0] * (len(reference) + 2) + [1] * (len(hypothesis) + 1))
        ids = pad_rows(rows, 0)
        scores, groups = torch.from_numpy(self.scores[indices]), torch.from_numpy(self.groups[indices])
        return PairBatch(ids, pad_rows(segments, 0), ids != 0, scores, groups)
