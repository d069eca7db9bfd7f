"""The shipped models, through the public classes that users load them with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100ForConditionalGeneration, M2M100Tokenizer

import hf_acpmbr
from hf_acpmbr import ACPMBR, load_utility
from hf_acpmbr.embedded import TRANSLATOR, UTILITY_FOLDERS, load_translator

SENTENCES = [
    ("Tom is my friend.", "Tom ist mein Freund."),
    ("I have a new car.", "Ich habe ein neues Auto."),
    ("She is reading a book.", "Sie liest ein Buch."),
    ("Where do you live?", "Wo wohnst du?"),
    ("We are very tired today.", "Wir sind heute sehr müde."),
    ("I don't know what to do.", "Ich weiß nicht, was ich tun soll."),
    ("He can speak German.", "Er kann Deutsch sprechen."),
    ("It is raining again.", "Es regnet wieder."),
    ("My father is a teacher.", "Mein Vater ist Lehrer."),
    ("Can you help me?", "Kannst du mir helfen?"),
]
needs_translator = pytest.mark.skipif(
    not (TRANSLATOR / "config.json").is_file(), reason="the translator is not shipped"
)
needs_utilities = pytest.mark.skipif(
    not all((folder / "config.json").is_file() for folder in UTILITY_FOLDERS.values()),
    reason="the embedded utilities are not shipped",
)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


@pytest.fixture(scope="module")
def translator() -> tuple[M2M100ForConditionalGeneration, M2M100Tokenizer]:
    torch.set_num_threads(1)
    return load_translator()


def translate(
    translator: tuple[M2M100ForConditionalGeneration, M2M100Tokenizer], texts: list[str], source: str, to: str
) -> list[str]:
    model, tokenizer = translator
    tokenizer.src_lang = source
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    outputs = model.generate(
        **inputs, forced_bos_token_id=tokenizer.get_lang_id(to), num_beams=4, do_sample=False, max_new_tokens=40
    )
    return tokenizer.batch_decode(outputs, skip_special_tokens=True)


def test_the_package_stays_small() -> None:
    assert size(Path(hf_acpmbr.__file__).parent) <= 30e6
    assert size(TRANSLATOR) <= 16e6 if TRANSLATOR.is_dir() else True
    assert sum(size(folder) for folder in UTILITY_FOLDERS.values() if folder.is_dir()) <= 8e6


def test_a_missing_translator_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hf_acpmbr.embedded.TRANSLATOR", tmp_path)
    with pytest.raises(FileNotFoundError, match="train_translator"):
        load_translator()


@needs_translator
def test_the_translator_loads_through_the_auto_classes() -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(TRANSLATOR)
    tokenizer = AutoTokenizer.from_pretrained(TRANSLATOR)
    assert isinstance(model, M2M100ForConditionalGeneration)
    assert isinstance(tokenizer, M2M100Tokenizer)
    assert tokenizer.src_lang == "en"
    assert sum(parameter.numel() for parameter in model.parameters()) <= 8e6
    assert len(tokenizer) == model.config.vocab_size


@needs_translator
@pytest.mark.parametrize(("source", "to"), [("en", "de"), ("de", "en")])
def test_the_translator_beats_copying_by_far(
    translator: tuple[M2M100ForConditionalGeneration, M2M100Tokenizer], source: str, to: str
) -> None:
    side = 0 if source == "en" else 1
    texts, references = [pair[side] for pair in SENTENCES], [[pair[1 - side] for pair in SENTENCES]]
    copied = sacrebleu.corpus_chrf(texts, references).score
    translated = sacrebleu.corpus_chrf(translate(translator, texts, source, to), references).score
    assert translated > copied + 25


@needs_translator
def test_mbr_is_a_drop_in_for_the_translator(
    translator: tuple[M2M100ForConditionalGeneration, M2M100Tokenizer],
) -> None:
    model, tokenizer = translator
    tokenizer.src_lang = "en"
    inputs = tokenizer("My father is a teacher.", return_tensors="pt")
    mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=32)
    ids = model.generate(**inputs, forced_bos_token_id=tokenizer.get_lang_id("de"), custom_generate=mbr)
    text = tokenizer.batch_decode(ids, skip_special_tokens=True)[0]
    assert sacrebleu.sentence_chrf(text, ["Mein Vater ist Lehrer."]).score > 30


@needs_utilities
@pytest.mark.parametrize("name", UTILITY_FOLDERS)
def test_the_utilities_prefer_the_same_meaning(name: str) -> None:
    utility = load_utility(name)
    references = [pair[1] for pair in SENTENCES]
    same, other = utility.score(references, references), utility.score(references, references[1:] + references[:1])
    assert same.mean() > other.mean() + 0.2
    assert (same > other).all()


@needs_utilities
def test_the_target_notices_the_order_of_words() -> None:
    texts = [pair[side] for pair in SENTENCES for side in (0, 1) if len(pair[side].split()) > 3]
    swapped = [" ".join([first, third, second, *rest]) for first, second, third, *rest in map(str.split, texts)]
    utility = load_utility("embedded")
    assert np.mean(utility.score(texts, texts) > utility.score(swapped, texts)) >= 0.8


@needs_translator
@needs_utilities
def test_the_guide_lowers_the_error_at_equal_cost(
    translator: tuple[M2M100ForConditionalGeneration, M2M100Tokenizer],
) -> None:
    """The paper's claim, on real networks at its High scores per row: with its completion, with ours, and in rounds."""
    model, tokenizer = translator
    tokenizer.src_lang = "en"
    target, guide = load_utility("embedded"), load_utility("embedded-d1")
    exact = ACPMBR(tokenizer, target=target, decoder="mbr", num_candidates=64)
    errors = []
    for source, _ in SENTENCES[:5]:
        inputs = tokenizer(source, return_tensors="pt")
        output = model.generate(
            **inputs,
            forced_bos_token_id=tokenizer.get_lang_id("de"),
            custom_generate=exact,
            return_dict_in_generate=True,
            max_new_tokens=30,
        )
        pool, truth = output.candidates[0], output.decisions[0].matrix
        found = []
        for guides, settings in (
            ([], {"decoder": "pmbr"}),
            ([guide], {"completer": "agreement-als"}),
            ([guide], {"observation": "balanced"}),
            ([guide], {"decoder": "acpmbr"}),
        ):
            method = ACPMBR(target=target, distilled=guides, recipe="fast", **settings)
            found.append(method.decoder.decode(pool, target=target, guides=guides, full_matrix=truth).completion_error)
        errors.append(found)
    pmbr, *guided = np.mean(errors, axis=0)
    assert max(guided) < pmbr
