from __future__ import annotations

from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, M2M100Tokenizer

from evaluation.training.translation import Bitext, encode

from .conftest import VOCABULARY


def test_tokenizer_follows_m2m100_conventions(tokenizer_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    assert isinstance(tokenizer, M2M100Tokenizer)
    assert [tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id] == [
        0,
        1,
        2,
        3,
    ]
    for language in ("en", "de"):
        tokenizer.src_lang = language
        ids = tokenizer("I see the house.")["input_ids"]
        assert ids[0] == tokenizer.get_lang_id(language) == tokenizer.convert_tokens_to_ids(f"__{language}__")
        assert ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids, skip_special_tokens=True) == "I see the house."


def test_every_id_lies_in_the_embedding_matrix(tokenizer: M2M100Tokenizer) -> None:
    assert len(tokenizer) == VOCABULARY
    assert max(tokenizer.get_vocab().values()) == VOCABULARY - 1


def test_bulk_encoding_equals_the_tokenizer(tokenizer: M2M100Tokenizer, pairs: list[tuple[str, str]]) -> None:
    tokenizer.src_lang = "de"
    texts = [pair[1] for pair in pairs]
    assert encode(tokenizer, texts, "de") == tokenizer(texts)["input_ids"]


def test_an_epoch_has_every_example_once(tokenizer: M2M100Tokenizer, pairs: list[tuple[str, str]]) -> None:
    data = Bitext(pairs, tokenizer)
    plan = data.plan(seed=3, epoch=0, batch_tokens=150)
    assert sorted(np.concatenate(plan).tolist()) == list(range(2 * len(pairs)))
    assert all(data.batch(indices).tokens <= 150 + 10 for indices in plan)
    again, other = data.plan(3, 0, 150), data.plan(3, 1, 150)
    assert all(np.array_equal(a, b) for a, b in zip(plan, again, strict=True))
    assert not np.array_equal(np.concatenate(plan), np.concatenate(other))


def test_both_directions_are_there(tokenizer: M2M100Tokenizer, pairs: list[tuple[str, str]]) -> None:
    data = Bitext(pairs[:1], tokenizer)
    (forward_source, forward_target), (back_source, back_target) = data.examples
    assert (forward_source, forward_target) == (back_target, back_source)
    assert forward_source[0] == tokenizer.get_lang_id("en")


def test_unknown_characters_are_left_out_of_training(tokenizer: M2M100Tokenizer) -> None:
    assert len(Bitext([("I see 漢字.", "Ich sehe."), ("I see.", "Ich sehe.")], tokenizer)) == 2


def test_segmentations_are_drawn_anew_each_epoch_and_read_the_same(
    tokenizer: M2M100Tokenizer, pairs: list[tuple[str, str]]
) -> None:
    plain = Bitext(pairs, tokenizer)
    data = Bitext(pairs, tokenizer, segmentations=0.5)

    def segmented(epoch: int) -> list[tuple[list[int], list[int]]]:
        data.plan(seed=3, epoch=epoch, batch_tokens=150)
        return list(data.examples)

    first = segmented(0)
    changed = sum(drawn != best for drawn, best in zip(first, plain.examples, strict=True)) / len(first)
    assert 0.2 < changed <= 0.6
    for drawn, best in zip(first, plain.examples, strict=True):
        assert [tokenizer.decode(ids) for ids in drawn] == [tokenizer.decode(ids) for ids in best]
    assert first != segmented(1)
