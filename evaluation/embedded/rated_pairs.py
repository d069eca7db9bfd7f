"""Reference–hypothesis pairs with a score: files, MQM and BLEURT-20 ratings, and batches for a BLEURT network."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import torch

from evaluation.embedded.bitext import pad_rows
from evaluation.embedded.training import length_batches

SPECIAL_PIECES = ("[CLS]", "[SEP]")
# MQM has a long tail of very bad segments that would rule a squared error.
WORST_MQM = -15.0


@dataclass(frozen=True)
class RatedPair:
    reference: str
    hypothesis: str
    score: float


def write_rated_pairs(path: Path, pairs: Iterable[RatedPair]) -> None:
    """One JSON object a line, gzipped; all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with gzip.open(partial, "wt", encoding="utf-8") as file:
        for pair in pairs:
            file.write(json.dumps(vars(pair), ensure_ascii=False) + "\n")
    partial.rename(path)


def read_rated_pairs(path: Path) -> list[RatedPair]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [RatedPair(**json.loads(line)) for line in lines]


def cached_chunks(folder: Path, chunks: int, make: Callable[[int], list[RatedPair]]) -> list[list[RatedPair]]:
    """`make(k)` for each k; what an earlier run has already made is read from `folder`."""
    result = []
    for k in range(chunks):
        path = folder / f"pairs-{k:03d}.jsonl.gz"
        if not path.exists():
            write_rated_pairs(path, make(k))
            print(f"{path.name}: {k + 1} of {chunks}", flush=True)
        result.append(read_rated_pairs(path))
    return result


def read_ratings(folder: Path, name: str, score: str) -> list[RatedPair]:
    """A ratings file `{name}.en-de.jsonl.gz` with its column `score`."""
    with gzip.open(folder / f"{name}.en-de.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [RatedPair(row["reference"], row["hypothesis"], float(row[score])) for row in rows]


def training_ratings(folder: Path) -> list[RatedPair]:
    """BLEURT-20 scores as they are, and MQM moved to their mean and spread."""
    bleurt = read_ratings(folder, "bleurt20.train", "bleurt20")
    mqm = read_ratings(folder, "mqm.train", "mqm")
    scores = np.array([pair.score for pair in bleurt])
    human = np.array([max(pair.score, WORST_MQM) for pair in mqm])
    moved = (human - human.mean()) / human.std() * scores.std() + scores.mean()
    return bleurt + [RatedPair(p.reference, p.hypothesis, float(s)) for p, s in zip(mqm, moved, strict=True)]


def train_pieces(texts: Iterable[str], path: Path, size: int, seed: int) -> None:
    """BLEURT's kind of vocabulary: padding is 0 and `[CLS]`, `[SEP]` are pieces.

    No normalisation table: it would take a quarter of a megabyte in each of the three model folders.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sentencepiece.set_random_generator_seed(seed)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(path.with_suffix("")),
        model_type="unigram",
        vocab_size=size,
        character_coverage=0.9995,
        normalization_rule_name="identity",
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=list(SPECIAL_PIECES),
        num_threads=1,
        minloglevel=2,
    )
    path.with_suffix(".vocab").unlink()


@dataclass(frozen=True)
class PairBatch:
    """`[CLS] reference [SEP] hypothesis [SEP]` of B pairs: ids, segments and mask (B, L), scores (B,)."""

    ids: torch.Tensor
    segments: torch.Tensor
    mask: torch.Tensor
    scores: torch.Tensor

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
        self.lengths = np.array([[len(reference) + len(hypothesis) + 3] for reference, hypothesis in sides])

    def __len__(self) -> int:
        return len(self.scores)

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[np.ndarray]:
        """Pair indices of each batch of an epoch."""
        return length_batches(self.lengths, batch_tokens, seed, epoch)

    def batch(self, indices: np.ndarray) -> PairBatch:
        rows, segments = [], []
        for k in indices:
            reference, hypothesis = self.references[k], self.hypotheses[k]
            rows.append([self.cls, *reference, self.sep, *hypothesis, self.sep])
            segments.append([0] * (len(reference) + 2) + [1] * (len(hypothesis) + 1))
        ids = pad_rows(rows, 0)
        return PairBatch(ids, pad_rows(segments, 0), (ids != 0).long(), torch.from_numpy(self.scores[indices]))
