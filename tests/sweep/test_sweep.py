"""Every class of transformers that generates is served rightly, or it is said why not."""

from __future__ import annotations

import pytest
import transformers

from tests.sweep.__main__ import classes, documented
from tests.sweep.check import check

SHARED, CHUNKED = ("prefix-sharing", "chunked", "prefix-sharing"), ("chunked", "chunked", "chunked")
# One of each kind, with the samplers of one source, of one source in chunks, and of two sources, and how prefixes see
# the prompt: plain, with biases on scores that need all keys, encoder-decoder, linear attention beside attention, a
# state that prefixes cannot share, a penalty on the prompt, images with features of several layers, images as one
# flat tensor, a sound, a `generate` of its own around it.
KINDS = {
    "LlamaForCausalLM": (*SHARED, "joined"),
    "BloomForCausalLM": (*SHARED, "built"),
    "T5ForConditionalGeneration": (*SHARED, "–"),
    "Qwen3NextForCausalLM": (*SHARED, "joined"),
    "MiniMaxForCausalLM": (*CHUNKED, "–"),
    "BlenderbotForCausalLM": (*CHUNKED, "–"),
    "Qwen3VLForConditionalGeneration": (*SHARED, "joined"),
    "Llama4ForConditionalGeneration": (*SHARED, "joined"),
    "Speech2TextForConditionalGeneration": (*SHARED, "–"),
    "WhisperForConditionalGeneration": (*SHARED, "–"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_one_class_of_each_kind_is_served(name: str) -> None:
    if not hasattr(transformers.cache_utils, "LinearAttentionLayer"):
        pytest.skip("this release of transformers keeps states otherwise")
    row = check(name)
    assert (row.default, row.chunked, row.batch, row.prompt, row.why) == (*KINDS[name], "")


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_served_is_named() -> None:
    row = check("RwkvForCausalLM")
    assert (row.default, row.chunked, row.batch) == ("–", "–", "–")
    assert "transformers mixes the rows of a batch" in row.why


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_class_is_served_wrongly_and_the_table_is_right() -> None:
    known = documented()
    rows = [check(name) for name in classes()]
    assert [row for row in rows if "wrong" in row] == []
    assert [row for row in rows if row != known.get(row.name, row)] == []
