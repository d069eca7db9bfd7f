"""A tiny random translator on disk, sentences and settings: everything a run needs, in a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.metrics.checkpoints import write_bleurt
from tests.models import BOS, EOS, PAD, tiny_model

WORDS = ["the", "a", "dog", "cat", "sees", "likes", "big", "small", "red", "house", "tree", "never", "runs", "sleeps"]
WORDS += ["old", "new", "here", "there", "often"]


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    special = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}
    vocabulary = [special.get(i, f"<{i}>") for i in range(4)] + WORDS
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<3>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<3>"
    )
    tokenizer.save_pretrained(folder)
    tiny_model("m2m100", vocabulary=len(vocabulary)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "sentences.jsonl"
    rows = [
        ("the big dog sees a cat", "a cat sees the big dog"),
        ("a small house", "the small house"),
        ("the old tree never runs", "the tree never runs"),
        ("red dog runs here", "here runs a red dog"),
        ("a new cat sleeps often", "the new cat often sleeps"),
        ("there the dog likes the tree", "the dog likes the tree there"),
    ]
    file.write_text("".join(json.dumps({"en": a, "de": b}) + "\n" for a, b in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learned metric: random weights in BLEURT's public format."""
    return write_bleurt(tmp_path_factory.mktemp("metrics") / "tiny-bleurt")


def small_settings(translator: Path, sentences: Path, metric: Path) -> dict[str, Any]:
    return {
        "name": "tiny",
        "data": {"name": str(sentences), "pairs": ["en-de"]},
        "model": {"name": str(translator), "generate": {"max_new_tokens": 8}},
        "sampling": {"num_candidates": 16, "epsilon": 0.0},
        "target": "chrf",
        "distilled": ["bleu"],
        "metrics": [str(metric), "chrf", "bleu"],
        "budgets": ["low", "high"],
        "density": "row",
        "own": {
            "fast": {"recipe": "fast"},
            "transfer": {"recipe": "fast", "decoder": "acpmbr", "max_sweeps": 4, "distilled_scores_per_row": 4},
        },
        "figures": {"scores_per_row": [1, 2], "agreement": [0.5]},
        "shard_size": 2,
    }
