"""Parallel sentences for the embedded models: reading, M2M100-style tokenizer files, length-sorted batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import sentencepiece
import torch
from transformers import M2M100Tokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from evaluation.assets import find, read_lines
from evaluation.training.trainer import length_batches

# transformers' own annotations do not fit its models and tokenizers under mypy's strict rules.
Model: TypeAlias = Any
Tokenizer: TypeAlias = Any

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
# The shorter of M2M100's two language tables: eight language tokens instead of a hundred in the embedding matrix.
LANGUAGE_TABLE = "wmt21"
# Sharpness of drawn segmentations (Kudo 2018): 0 draws all alike, 1 as the unigram model has them.
SEGMENTATION_ALPHA = 0.3
LANGUAGE_TOKENS = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES[LANGUAGE_TABLE]]


def tatoeba(part: str, data: Path | None) -> list[tuple[str, str]]:
    """Pairs (English, German) of "train", "dev" or "test" in the data folder."""
    return [(row["en"], row["de"]) for row in read_lines(find("tatoeba", f"{part}.en-de.jsonl.gz", data))]


def train_tokenizer(pairs: list[tuple[str, str]], folder: Path, vocabulary_size: int, seed: int) -> Tokenizer:
    """Writes `sentencepiece.bpe.model`, `vocab.json` and the configuration; `vocabulary_size` counts all ids."""
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.set_random_generator_seed(seed)
    control_pieces = 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text for pair in pairs for text in pair),
        model_prefix=str(folder / "sentencepiece.bpe"),
        model_type="unigram",
        vocab_size=vocabulary_size - len(LANGUAGE_TOKENS) - len(SPECIAL_TOKENS) + control_pieces,
        character_coverage=0.9999,
        num_threads=1,
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.vocab").unlink()
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    words = [*SPECIAL_TOKENS, *(piece for piece in pieces if piece not in SPECIAL_TOKENS)]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({word: i for i, word in enumerate(words)}, ensure_ascii=False), encoding="utf-8")
    return build_tokenizer(folder)


def build_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder's `sentencepiece.bpe.model` and `vocab.json`, with its configuration saved there."""
    tokenizer = M2M100Tokenizer(
        str(folder / "vocab.json"),
        str(folder / "sentencepiece.bpe.model"),
        src_lang="en",
        tgt_lang="de",
        language_codes=LANGUAGE_TABLE,
        num_madeup_words=0,
        # Special tokens are numbered in the order given: all of the table, so that they match `get_lang_id`.
        additional_special_tokens=LANGUAGE_TOKENS,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


@dataclass(frozen=True)
class Batch:
    """Token ids of directed pairs, right-padded: sources (B, S) and targets (B, T), both `[language] pieces </s>`."""

    sources: torch.Tensor
    targets: torch.Tensor
    padded_source: bool

    @property
    def tokens(self) -> int:
        return self.sources.numel() + self.targets.numel()


def encode(tokenizer: Tokenizer, texts: Sequence[str], language: str, sampled: bool = False) -> list[list[int]]:
    """`[language] pieces </s>` of each text: what the tokenizer gives, many times faster.

    Args:
        sampled: draw the segmentations instead of taking the most probable ones. sentencepiece has a generator for each
            of its threads, which no seed makes the same in another process: a run with them cannot be repeated exactly.
    """
    vocabulary, unknown = tokenizer.encoder, int(tokenizer.unk_token_id)
    start, end = tokenizer.get_lang_id(language), int(tokenizer.eos_token_id)
    drawing = {"enable_sampling": True, "nbest_size": -1, "alpha": SEGMENTATION_ALPHA} if sampled else {}
    pieces = tokenizer.sp_model.encode(list(texts), out_type=str, **drawing)
    return [[start, *(vocabulary.get(piece, unknown) for piece in row), end] for row in pieces]


def make_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], pad: int) -> Batch:
    """Right-padded tensors."""
    lengths = [len(row) for row in sources]
    return Batch(pad_rows(sources, pad), pad_rows(targets, pad), min(lengths) < max(lengths))


def pad_rows(rows: Sequence[Sequence[int]], pad: int) -> torch.Tensor:
    """(B, longest) ids."""
    padded = np.full((len(rows), max(len(row) for row in rows)), pad)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)


class Bitext:
    """Both directions of a parallel corpus as token ids; example k is en→de for even k and de→en for odd k.

    Args:
        segmentations: part of the pairs that each epoch sees in a newly drawn segmentation.
    """

    def __init__(
        self,
        pairs: list[tuple[str, str]],
        tokenizer: Tokenizer,
        max_length: int = 64,
        segmentations: float = 0.0,
    ) -> None:
        self.pad, self.tokenizer, self.max_length = int(tokenizer.pad_token_id), tokenizer, max_length
        self.segmentations = segmentations
        # Pairs with an unknown character are dropped, so the model never learns to emit <unk>.
        unknown = int(tokenizer.unk_token_id)
        self.pairs, self.encoded = [], []
        for pair, (en, de) in zip(pairs, self._encode(pairs), strict=True):
            if max(len(en), len(de)) <= max_length and unknown not in en and unknown not in de:
                self.pairs.append(pair)
                self.encoded.append((en, de))
        self._use(self.encoded)

    def __len__(self) -> int:
        return len(self.examples)

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[np.ndarray]:
        """Example indices of each batch of an epoch, whose segmentations are drawn here."""
        if self.segmentations:
            rng = np.random.default_rng([seed, epoch, 1])
            chosen = np.flatnonzero(rng.random(len(self.pairs)) < self.segmentations)
            encoded = list(self.encoded)
            for k, drawn in zip(chosen, self._encode([self.pairs[k] for k in chosen], sampled=True), strict=True):
                if max(map(len, drawn)) <= self.max_length:
                    encoded[k] = drawn
            self._use(encoded)
        return length_batches(self.lengths, batch_tokens, seed, epoch)

    def batch(self, indices: np.ndarray) -> Batch:
        sources, targets = zip(*(self.examples[k] for k in indices), strict=True)
        return make_batch(sources, targets, self.pad)

    def _encode(self, pairs: Sequence[tuple[str, str]], sampled: bool = False) -> list[tuple[list[int], list[int]]]:
        english = encode(self.tokenizer, [pair[0] for pair in pairs], "en", sampled)
        german = encode(self.tokenizer, [pair[1] for pair in pairs], "de", sampled)
        return list(zip(english, german, strict=True))

    def _use(self, encoded: Sequence[tuple[list[int], list[int]]]) -> None:
        self.examples = [pair for en, de in encoded for pair in ((en, de), (de, en))]
        self.lengths = np.array([(len(source), len(target)) for source, target in self.examples])
