"""The line from which a result can be repeated: two runs that can differ have different lines."""

from __future__ import annotations

import copy
import hashlib
import pickle
from typing import Any

import pytest
import torch

from hf_acpmbr import ACPMBR, Decision, Recipe
from hf_acpmbr.generation.fingerprint import ModelSignature
from hf_acpmbr.version import __version__

from .models import tiny_model, tiny_pair
from .test_generate import generate


def decided(kind: str = "m2m100", generate_options: dict[str, Any] | None = None, **settings: Any) -> Decision:
    _, tokenizer = tiny_pair(kind)
    mbr = ACPMBR(tokenizer, target="chrf", **{"decoder": "mbr", "num_candidates": 8, **settings})
    out = generate(kind, mbr, ["a dog ran"], return_dict_in_generate=True, **(generate_options or {}))
    decision: Decision = out.decisions[0]
    return decision


def assert_all_differ(decisions: list[Decision]) -> None:
    """In the full signature and in the short one."""
    for lines in ({one.full_signature for one in decisions}, {one.signature for one in decisions}):
        assert len(lines) == len(decisions)


def test_every_setting_of_a_generation_is_in_the_line() -> None:
    decisions = [
        decided(),
        decided(epsilon=0.2),
        decided(temperature=1.7),
        decided(epsilon=0.2, temperature=1.7),
        decided(top_k=5),
        decided(min_p=0.1),
        decided(sampler="chunked"),
        decided(num_candidates=9),
        decided(num_references=4),
        decided(seed=3),
        decided(generate_options={"max_new_tokens": 5}),
        decided(generate_options={"min_new_tokens": 2}),
        decided(generate_options={"repetition_penalty": 1.3}),
        decided(generate_options={"no_repeat_ngram_size": 2}),
        decided(decoder={"name": "n-by-s", "num_references": 3}),
        decided(decoder="halving"),
        decided("marian"),
    ]
    assert_all_differ(decisions)
    assert decided().signature == decisions[0].signature
    for text in (one.full_signature for one in decisions):
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
    decisions = [
        ACPMBR(target="chrf", distilled="bleu", recipe=recipe, **settings).rerank(pool)
        for recipe in ("fast", "paper-high", Recipe.named("fast", target="chrf", distilled="bleu", confidence=0.9))
        for settings in ({}, {"seed": 1}, {"reduction": 30}, {"distilled_reduction": 20})
    ]
    assert_all_differ(decisions)


def test_a_signature_is_short_and_its_digest_is_that_of_the_full_one() -> None:
    decision = ACPMBR(target="chrf", distilled=["bleu", "ter"]).rerank(["a dog", "a cat", "a dog ran"])
    everything = decision.full_signature.split("|", 1)[1]
    digest = hashlib.sha256(everything.encode()).hexdigest()[:10]
    about = "decoder:rounds|target:chrf|guide:bleu+ter|n:3|seed:0"
    assert decision.signature == f"hf_acpmbr:{__version__}|{about}|digest:{digest}"
    assert pickle.loads(pickle.dumps(decision)).signature == decision.signature
