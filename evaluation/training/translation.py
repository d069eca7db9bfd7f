"""Parallel sentences and the translator in bulk: tokenizer files, batches, search, sampling, likelihoods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Tokenizer
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
# Pairs with a longer side are left out: hardly any sentence of Tatoeba is, and a batch costs its longest row.
LONGEST = 64
LANGUAGE_TOKENS = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES[LANGUAGE_TABLE]]


def tatoeba(part: str, data: Path | None) -> list[tuple[str, str]]:
    """Read the pairs (English, German) of "train", "dev" or "test" in the data folder."""
    return [(row["en"], row["de"]) for row in read_lines(find("tatoeba", f"{part}.en-de.jsonl.gz", data))]


def train_tokenizer(pairs: list[tuple[str, str]], folder: Path, vocabulary_size: int, seed: int) -> Tokenizer:
    """Write `sentencepiece.bpe.model`, `vocab.json` and the configuration; `vocabulary_size` counts all ids."""
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
    tokenizer = M2M100Tokenizer(
        str(vocabulary),
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
    """Encode each text as `[language] pieces </s>`, as the tokenizer does, many times faster.

    Args:
        sampled: draw the segmentations instead of taking the most probable ones. sentencepiece has one generator per
            thread, which no seed makes the same in another process: a run with them cannot be repeated exactly.
    """
    vocabulary, unknown = tokenizer.encoder, int(tokenizer.unk_token_id)
    start, end = tokenizer.get_lang_id(language), int(tokenizer.eos_token_id)
    drawing = {"enable_sampling": True, "nbest_size": -1, "alpha": SEGMENTATION_ALPHA} if sampled else {}
    pieces = tokenizer.sp_model.encode(list(texts), out_type=str, **drawing)
    return [[start, *(vocabulary.get(piece, unknown) for piece in row), end] for row in pieces]


def make_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], pad: int) -> Batch:
    """Pad on the right."""
    return Batch(pad_rows(sources, pad), pad_rows(targets, pad), len({len(row) for row in sources}) > 1)


def pad_rows(rows: Sequence[Sequence[int]], pad: int) -> torch.Tensor:
    """Return (B, longest) ids, padded on the right."""
    padded = np.full((len(rows), max(len(row) for row in rows)), pad)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)


class Bitext:
    """Both directions of a parallel corpus as token ids; example k is en→de for even k and de→en for odd k.

    Args:
        segmentations: the share of the pairs that each epoch sees in a newly drawn segmentation.
    """

    def __init__(self, pairs: list[tuple[str, str]], tokenizer: Tokenizer, segmentations: float = 0.0) -> None:
        self.pad, self.tokenizer, self.segmentations = int(tokenizer.pad_token_id), tokenizer, segmentations
        # Pairs with an unknown character are dropped, so the model never learns to emit <unk>.
        unknown = int(tokenizer.unk_token_id)
        self.pairs, self.encoded = [], []
        for pair, (en, de) in zip(pairs, self._encode(pairs), strict=True):
            if max(len(en), len(de)) <= LONGEST and unknown not in en and unknown not in de:
                self.pairs.append(pair)
                self.encoded.append((en, de))
        self._use(self.encoded)

    def __len__(self) -> int:
        return len(self.examples)

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[np.ndarray]:
        """Draw the epoch's segmentations and return the example indices of each of its batches."""
        if self.segmentations:
            rng = np.random.default_rng([seed, epoch, 1])
            chosen = np.flatnonzero(rng.random(len(self.pairs)) < self.segmentations)
            encoded = list(self.encoded)
            for k, drawn in zip(chosen, self._encode([self.pairs[k] for k in chosen], sampled=True), strict=True):
                if max(map(len, drawn)) <= LONGEST:
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


def load(folder: Path) -> tuple[Model, Tokenizer]:
    """Load a translator from its folder, in fp32 and evaluation mode."""
    model: Model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def token_losses(model: Model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy (nats) of each target token after the language token, and their (B, T) mask."""
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    hidden = model.model(
        input_ids=batch.sources,
        attention_mask=batch.sources.ne(pad).long() if batch.padded_source else None,
        decoder_input_ids=F.pad(batch.targets[:, :-1], (1, 0), value=start),
        use_cache=False,
    ).last_hidden_state
    # Position 0 predicts the language token, which generation forces; padding on the right is not attended to.
    wanted = batch.targets.ne(pad)
    wanted[:, 0] = False
    logits = model.lm_head(hidden[wanted])
    return F.cross_entropy(logits, batch.targets[wanted], reduction="none"), wanted


@torch.inference_mode()
def mean_log_likelihoods(
    model: Model,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    source_language: str,
    target_language: str,
    batch_tokens: int = 4096,
) -> np.ndarray:
    """Return (n,) log p(target | source) per target token."""
    left, right = encode(tokenizer, sources, source_language), encode(tokenizer, targets, target_language)
    lengths = np.array([(len(a), len(b)) for a, b in zip(left, right, strict=True)])
    result = np.empty(len(left))
    for indices in length_batches(lengths, batch_tokens, seed=0, epoch=0):
        batch = make_batch([left[i] for i in indices], [right[i] for i in indices], int(tokenizer.pad_token_id))
        losses, wanted = token_losses(model, batch)
        table = torch.zeros(wanted.shape).masked_scatter_(wanted, losses)
        result[indices] = -(table.sum(1) / wanted.sum(1)).double().numpy()
    return result


def translate(
    model: Model, tokenizer: Tokenizer, texts: Sequence[str], source: str, target: str, beams: int = 1
) -> list[str]:
    """Translate by greedy or beam search, in the order of `texts`."""
    groups = _generate(model, tokenizer, texts, source, target, {"num_beams": beams, "do_sample": False})
    return [group[0] for group in groups]


def sample_translations(
    model: Model, tokenizer: Tokenizer, texts: Sequence[str], source: str, target: str, samples: int
) -> list[list[str]]:
    """Draw ε-samples of each text from torch's global generator."""
    options = {"do_sample": True, "epsilon_cutoff": 0.02, "top_k": 0, "num_return_sequences": samples}
    return _generate(model, tokenizer, texts, source, target, options, batch_size=max(1, 256 // samples))


def _generate(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    source: str,
    target: str,
    options: Mapping[str, object],
    batch_size: int = 64,
) -> list[list[str]]:
    tokenizer.src_lang = source
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    results: list[list[str]] = [[] for _ in texts]
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        inputs = tokenizer([texts[i] for i in chosen], return_tensors="pt", padding=True)
        limit = 2 * inputs["input_ids"].shape[1] + 10
        outputs = model.generate(
            **inputs, forced_bos_token_id=tokenizer.get_lang_id(target), max_new_tokens=limit, **options
        )
        decoded = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        share = len(decoded) // len(chosen)
        for k, i in enumerate(chosen):
            results[i] = decoded[k * share : (k + 1) * share]
    return results
