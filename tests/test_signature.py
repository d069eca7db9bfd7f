"""The line from which a result can be repeated: two runs that can differ have different lines."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from hf_acpmbr import ACPMBR, Recipe
from hf_acpmbr.generation.fingerprint import ModelSignature

from .models import tiny_model, tiny_pair
from .test_generate import generate


def line(kind: str = "m2m100", generate_options: dict[str, Any] | None = None, **settings: Any) -> str:
    _, tokenizer = tiny_pair(kind)
    mbr = ACPMBR(tokenizer, target="chrf", **{"decoder": "mbr", "num_candidates": 8, **settings})
    out = generate(kind, mbr, ["a dog ran"], return_dict_in_generate=True, **(generate_options or {}))
    return str(out.decisions[0].signature)


def test_every_setting_of_a_generation_is_in_the_line() -> None:
    lines = [
        line(),
        line(epsilon=0.2),
        line(temperature=1.7),
        line(epsilon=0.2, temperature=1.7),
        line(top_k=5),
        line(min_p=0.1),
        line(sampler="chunked"),
        line(num_candidates=9),
        line(num_references=4),
        line(seed=3),
        line(generate_options={"max_new_tokens": 5}),
        line(generate_options={"min_new_tokens": 2}),
        line(generate_options={"repetition_penalty": 1.3}),
        line(generate_options={"no_repeat_ngram_size": 2}),
        line(decoder={"name": "n-by-s", "num_references": 3}),
        line(decoder="halving"),
        line("marian"),
    ]
    assert len(set(lines)) == len(lines)
    assert line() == line()
    for text in lines:
        assert not set(text) & set(" \n\t")
        for part in ("hf_acpmbr:", "model:", "sampling:", "generation:", "decoder:", "target:", "n:", "seed:"):
            assert part in text
        assert "_tensor" not in text, "nothing that differs from device to device"


def test_a_model_with_other_weights_under_the_same_name_has_another_line() -> None:
    model = tiny_model("llama")
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1e-3)
    assert ModelSignature(model).text == ModelSignature(copy.deepcopy(model)).text != ModelSignature(other).text


@pytest.mark.parametrize("options", [{"char_order": 4}, {"word_order": 2}, {"beta": 1}])
def test_every_option_of_a_utility_is_in_the_line(options: dict[str, Any]) -> None:
    pool = ["a dog", "a cat", "a dog ran"]
    plain = ACPMBR(target="chrf").rerank(pool).signature
    assert ACPMBR(target={"name": "chrf", **options}).rerank(pool).signature != plain


@pytest.mark.filterwarnings("ignore::hf_acpmbr.completion.PaperWarning")
def test_recipes_that_differ_decide_under_different_lines() -> None:
    pool = [f"a dog {k}" for k in range(60)]
    lines = [
        ACPMBR(target="chrf", distilled="bleu", recipe=recipe, **settings).rerank(pool).signature
        for recipe in ("fast", "paper-high", Recipe.named("fast", target="chrf", distilled="bleu", confidence=0.9))
        for settings in ({}, {"seed": 1}, {"reduction": 30}, {"distilled_reduction": 20})
    ]
    assert len(set(lines)) == len(lines)
