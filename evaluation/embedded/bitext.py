"""Parallel sentences for the embedded models: reading, M2M100-style tokenizer files, length-sorted batches."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from transformers import M2M100Tokenizer

from evaluation.embedded.training import length_batches

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
# The shorter of M2M100's two language tables: eight language tokens instead of a hundred in the embedding matrix.
LANGUAGE_TABLE = "wmt21"
LANGUAGE_TABLE_SIZE = 8


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Pairs (English, German) of one `*.jsonl.gz` file with the keys `en` and `de`."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        return [(row["en"], row["de"]) for row in rows]


def train_tokenizer(pairs: list[tuple[str, str]], folder: Path, vocabulary_size: int, seed: int) -> M2M100Tokenizer:
    """Writes `sentencepiece.bpe.model`, `vocab.json` and the configuration; `vocabulary_size` counts all ids."""
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.set_random_generator_seed(seed)
    control_pieces = 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text for pair in pairs for text in pair),
        model_prefix=str(folder / "sentencepiece.bpe"),
        model_type="unigram",
        vocab_size=vocabulary_size - LANGUAGE_TABLE_SIZE - len(SPECIAL_TOKENS) + control_pieces,
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
    tokenizer = M2M100Tokenizer(
        str(vocabulary),
        str(folder / "sentencepiece.bpe.model"),
        src_lang="en",
        tgt_lang="de",
        language_codes=LANGUAGE_TABLE,
        num_madeup_words=0,
        additional_special_tokens=["__en__", "__de__"],
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


class Bitext:
    """Both directions of a parallel corpus as token ids; example k is en→de for even k and de→en for odd k."""

    def __init__(self, pairs: list[tuple[str, str]], tokenizer: M2M100Tokenizer, max_length: int = 64) -> None:
        self.pad = int(tokenizer.pad_token_id)
        end, unknown = int(tokenizer.eos_token_id), int(tokenizer.unk_token_id)
        vocabulary = tokenizer.encoder
        sides = []
        for k, language in enumerate(("en", "de")):
            pieces = tokenizer.sp_model.encode([pair[k] for pair in pairs], out_type=str)
            start = tokenizer.get_lang_id(language)
            sides.append([[start, *(vocabulary.get(piece, unknown) for piece in row), end] for row in pieces])
        # Pairs with an unknown character are dropped, so the model never learns to emit <unk>.
        kept = [
            (np.array(en, np.int64), np.array(de, np.int64))
            for en, de in zip(*sides, strict=True)
            if max(len(en), len(de)) <= max_length and unknown not in en and unknown not in de
        ]
        self.examples = [pair for en, de in kept for pair in ((en, de), (de, en))]
        self.lengths = np.array([(len(source), len(target)) for source, target in self.examples])

    def __len__(self) -> int:
        return len(self.examples)

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[np.ndarray]:
        """Example indices of each batch of an epoch."""
        return length_batches(self.lengths, batch_tokens, seed, epoch)

    def batch(self, indices: np.ndarray) -> Batch:
        source_lengths, target_lengths = self.lengths[indices].T
        sources = np.full((len(indices), source_lengths.max()), self.pad)
        targets = np.full((len(indices), target_lengths.max()), self.pad)
        for row, k in enumerate(indices):
            source, target = self.examples[k]
            sources[row, : len(source)] = source
            targets[row, : len(target)] = target
        padded = bool(source_lengths.min() < source_lengths.max())
        return Batch(torch.from_numpy(sources), torch.from_numpy(targets), padded)
