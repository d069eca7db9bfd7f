"""A tiny corpus and an untrained tiny translator, written for these tests."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer

from evaluation.training.train_translator import build_model
from evaluation.training.translation import train_tokenizer

SUBJECTS = [("I", "Ich"), ("You", "Du"), ("He", "Er"), ("She", "Sie"), ("My brother", "Mein Bruder")]
VERBS = [("see", "sehe"), ("buy", "kaufe"), ("like", "mag"), ("find", "finde")]
OBJECTS = [("the house", "das Haus"), ("a dog", "einen Hund"), ("the old book", "das alte Buch"), ("bread", "Brot")]
OBJECTS += [("twelve windows", "zwölf Fenster"), ("your quick jumps", "deine Sprünge"), ("nothing", "nichts")]
VOCABULARY = 80


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    return [
        tuple(" ".join(words) + "." for words in zip(subject, verb, thing, strict=True))
        for subject, verb, thing in product(SUBJECTS, VERBS, OBJECTS)
    ]


@pytest.fixture(scope="session")
def tokenizer_folder(pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(pairs, folder, VOCABULARY, seed=1)
    return folder


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> M2M100Tokenizer:
    return M2M100Tokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture
def translator(tokenizer: M2M100Tokenizer) -> M2M100ForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "feed_forward": 32, "encoder_layers": 1, "decoder_layers": 1}
    model = build_model(tokenizer, Namespace(vocabulary=VOCABULARY, dropout=0.0, **sizes))
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.fixture
def training_options() -> Namespace:
    return Namespace(
        minutes=None,
        steps=6,
        batch_tokens=200,
        rate=1e-2,
        muon_rate=0.02,
        bfloat16=False,
        warmup=2,
        eval_every=1000,
        seed=1,
    )


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """The trainers set up the whole process (threads, denormal numbers), which other tests must not inherit."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
