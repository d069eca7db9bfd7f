"""Candidates of other engines: texts, counts and log-probabilities as each engine gives them; pools of several models.

vLLM's format is an object with the fields that it publishes, OpenAI's also one of its client's own types. CTranslate2
and transformers run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.embedded import TRANSLATOR
from tests.models import EOS, PAD, tiny_pair


@dataclass
class CompletionOutput:
    """The fields of vllm.outputs.CompletionOutput, as of August 2026."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: object = None
    routed_experts: object = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    lora_request: object = None
    sampling_mask: object = None
    spec_decode_metrics: object = None


@dataclass
class RequestOutput:
    """Those of vllm.outputs.RequestOutput that are always there."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: object
    outputs: list[CompletionOutput]
    finished: bool


def vllm_output(logprob: float | None = -1.5) -> RequestOutput:
    texts = [(" a cat", [5, 6]), (" a cat", [5, 6]), (" a cat", [5, 7, 8]), (" dogs", [9])]
    outputs = [CompletionOutput(k, text, tuple(ids), logprob) for k, (text, ids) in enumerate(texts)]
    return RequestOutput("0", "prompt", [1, 2], None, outputs, True)


def test_vllm_counts_duplicates_and_adds_the_probability_of_two_tokenisations() -> None:
    got = Candidates.from_vllm(vllm_output())
    assert dict(zip(got.texts, got.counts.tolist(), strict=True)) == {" a cat": 3, " dogs": 1}
    assert got.token_ids == ((5, 6), (9,))
    np.testing.assert_allclose(got.logprobs, [np.log(2 * np.exp(-1.5)), -1.5])


def test_vllm_takes_the_completions_alone_and_a_list_of_one_request() -> None:
    for given_as in (vllm_output().outputs, [vllm_output()]):
        assert Candidates.from_vllm(given_as).texts == (" a cat", " dogs")


def test_vllm_without_logprobs_has_none() -> None:
    assert Candidates.from_vllm(vllm_output(None)).logprobs is None


def chat(texts: list[str | None], logprobs: list[list[float]] | None = None) -> dict[str, Any]:
    """A chat completion as the API's JSON."""
    choices = []
    for k, text in enumerate(texts):
        each = {"index": k, "message": {"role": "assistant", "content": text, "refusal": None}, "finish_reason": "stop"}
        about = {"token": "t", "bytes": None, "top_logprobs": []}
        tokens = None if logprobs is None else [{**about, "logprob": p} for p in logprobs[k]]
        choices.append({**each, "logprobs": None if tokens is None else {"content": tokens, "refusal": None}})
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}


def as_objects(value: Any) -> Any:
    """JSON as the attributes that the client library has."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_objects(item) for key, item in value.items()})
    return [as_objects(item) for item in value] if isinstance(value, list) else value


def test_openai_chat_as_json_and_as_objects() -> None:
    response = chat(["Ja.", "Nein.", "Ja."], [[-0.5, -0.25], [-2.0], [-0.5, -0.25]])
    for given_as in (response, response["choices"], as_objects(response), as_objects(response).choices):
        got = Candidates.from_openai(given_as)
        assert got.texts == ("Ja.", "Nein.")
        assert got.counts.tolist() == [2, 1]
        np.testing.assert_allclose(got.logprobs, [-0.75, -2.0])


def test_openai_types_of_its_own_client() -> None:
    types = pytest.importorskip("openai.types", reason="openai is not installed: pip install openai")
    response = chat(["Ja.", "Nein.", "Ja."], [[-0.5, -0.25], [-2.0], [-0.5, -0.25]])
    validated = types.chat.ChatCompletion.model_validate(response, strict=True)
    for given_as in (validated, validated.choices, validated.model_dump()):
        got = Candidates.from_openai(given_as)
        assert (got.texts, got.counts.tolist()) == (("Ja.", "Nein."), [2, 1])
        np.testing.assert_allclose(got.logprobs, [-0.75, -2.0])
    logprobs = {"text_offset": [0, 2], "token_logprobs": [-0.5, -1.0], "tokens": ["J", "a"], "top_logprobs": None}
    choice = {"text": "Ja", "index": 0, "finish_reason": "stop", "logprobs": logprobs}
    about = {"id": "cmpl-1", "created": 1, "model": "m", "object": "text_completion"}
    completion = types.Completion.model_validate({**about, "choices": [choice]}, strict=True)
    assert Candidates.from_openai(completion).logprobs == pytest.approx([-1.5])
    refused = chat([None])
    refused["choices"][0]["message"]["refusal"] = "I cannot."
    with pytest.raises(ValueError, match="has no text"):
        Candidates.from_openai(types.chat.ChatCompletion.model_validate(refused, strict=True))


def test_openai_completions_and_missing_logprobs() -> None:
    choice = {"text": "Ja.", "index": 0, "finish_reason": "stop", "logprobs": {"token_logprobs": [-0.5, -1.0]}}
    assert Candidates.from_openai({"choices": [choice]}).logprobs == pytest.approx([-1.5])
    assert Candidates.from_openai({"choices": [choice, {**choice, "logprobs": None}]}).logprobs is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Candidates.from_vllm([vllm_output(), vllm_output()]), "2 vLLM RequestOutput objects, and Candidates"),
        (lambda: Candidates.from_vllm(["text"]), "expected vLLM's output, with a field 'text'; got str at position 0"),
        (lambda: Candidates.from_vllm([]), "vLLM's output has no texts"),
        (lambda: Candidates.from_vllm("text"), "use Candidates.from_texts"),
        (lambda: Candidates.from_openai(chat([None])), r"choices\[0\] of OpenAI has no text \(finish_reason 'stop'\)"),
        (lambda: Candidates.from_openai(3), "expected OpenAI's output, with a field 'choices'; got int"),
        (lambda: Candidates.from_ctranslate2([1, 2], lambda tokens: ""), "2 CTranslate2 results"),
        (lambda: Candidates.from_ctranslate2(SimpleNamespace(hypotheses=[["a"]], scores=[])), "either tokenizer= or"),
        (lambda: Candidates.pool([]), "pools is empty"),
        (lambda: Candidates.pool([["a"], ["b"]], weights=[1]), "weights has 1 numbers for 2 pools"),
        (lambda: Candidates.pool([["a"], ["b"]], weights=[1, 0]), "weights must be positive"),
    ],
)
def test_bad_input_is_named(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


SOURCES = ["the cat sat on the mat", "a dog ran"]


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_generate_gives_the_log_probabilities_of_the_model_and_of_the_truncated_distribution(kind: str) -> None:
    model, tokenizer = tiny_pair(kind)
    inputs = tokenizer(SOURCES, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    torch.manual_seed(0)
    output = model.generate(
        **inputs,
        do_sample=True,
        top_k=4,
        num_return_sequences=12,
        max_new_tokens=5,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
    )
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    for source in (0, 1):
        rows = slice(12 * source, 12 * source + 12)
        got = Candidates.from_generate(output, tokenizer, rows=rows)
        new = output.sequences[rows, start:]
        assert got.expanded() == sorted(tokenizer.batch_decode(new, skip_special_tokens=True), key=got.texts.index)
        assert got.token_ids is not None
        assert got.logprobs is not None
        assert got.sampling_logprobs is not None
        assert (got.sampling_logprobs >= got.logprobs - 1e-6).all(), "truncation takes probability from other tokens"
        for k, ids in enumerate(got.token_ids):
            same = {
                tuple(row) for row in new.tolist() if tokenizer.decode(row, skip_special_tokens=True) == got.texts[k]
            }
            if len(same) == 1:  # one tokenisation: its probability, by a forward pass of the model
                assert got.logprobs[k] == pytest.approx(by_model(model, inputs, source, list(ids)), abs=1e-4)


def by_model(model: Any, inputs: Any, source: int, ids: list[int]) -> float:
    one = {name: tensor[source : source + 1] for name, tensor in inputs.items()}
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            first = [model.config.decoder_start_token_id]
            logits = model(**one, decoder_input_ids=torch.tensor([first + ids[:-1]])).logits[0]
        else:
            prompt = one["input_ids"][0][one["attention_mask"][0].bool()].tolist()
            logits = model(input_ids=torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1 :]
    return float(logits.log_softmax(-1)[range(len(ids)), ids].sum())


def test_generate_by_beam_search_follows_the_beams() -> None:
    model, tokenizer = tiny_pair("m2m100")
    inputs = tokenizer(SOURCES[:1], return_tensors="pt")
    output = model.generate(
        **inputs,
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=5,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
    )
    got = Candidates.from_generate(output, tokenizer)
    assert got.sampling_logprobs is None
    assert got.token_ids is not None
    expected = [by_model(model, inputs, 0, list(ids)) for ids in got.token_ids]
    np.testing.assert_allclose(got.logprobs, expected, atol=1e-4)


def test_generate_from_token_ids_ends_at_the_first_end_token_and_drops_padding() -> None:
    _, tokenizer = tiny_pair("m2m100")
    cat, dog = tokenizer.convert_tokens_to_ids(["cat", "dog"])
    ids = torch.tensor([[EOS, cat, EOS, dog], [EOS, cat, dog, PAD], [EOS, cat, EOS, PAD]])
    got = Candidates.from_generate(ids, tokenizer, prompt_length=1)
    assert got.texts == ("cat", "cat dog")
    assert got.counts.tolist() == [2, 1]
    assert got.token_ids == ((cat, EOS), (cat, dog))
    with pytest.raises(ValueError, match="pass prompt_length="):
        Candidates.from_generate(ids, tokenizer)
    with pytest.raises(ValueError, match="beyond the 3 of the output"):
        Candidates.from_generate(ids, tokenizer, prompt_length=1, rows=[3])


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded translator in CTranslate2's format, by CTranslate2's converter."""
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
    from ctranslate2.converters import TransformersConverter

    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    TransformersConverter(str(TRANSLATOR)).convert(str(folder), quantization="float32")
    return folder


@pytest.mark.parametrize("options", [{}, {"length_penalty": 0.0}, {"return_end_token": True}])
def test_ctranslate2_gives_the_log_probabilities_of_the_same_model(converted: Path, options: dict[str, Any]) -> None:
    import ctranslate2

    from hf_acpmbr.embedded import load_translator

    model, tokenizer = load_translator()
    tokenizer.src_lang = "en"
    inputs = tokenizer(["Where is the station?"], return_tensors="pt")
    engine = ctranslate2.Translator(str(converted), intra_threads=1)
    ctranslate2.set_random_seed(1)
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    (result,) = engine.translate_batch(
        [tokens],
        target_prefix=[["__de__"]],
        beam_size=1,
        sampling_topk=8,
        num_hypotheses=24,
        return_scores=True,
        **options,
    )
    got = Candidates.from_ctranslate2(result, tokenizer, length_penalty=options.get("length_penalty", 1.0))
    assert got.total == 24
    assert got.token_ids is not None
    assert got.logprobs is not None
    checked = 0
    for k, ids in enumerate(got.token_ids):
        row = list(ids) if options.get("return_end_token") else [*ids, tokenizer.eos_token_id]
        alike = {tuple(h) for h in result.hypotheses if text_of(tokenizer, h) == got.texts[k]}
        if len(alike) == 1:
            forced = by_model(model, inputs, 0, row) - by_model(model, inputs, 0, row[:1])  # the language is given
            assert got.logprobs[k] == pytest.approx(forced, abs=2e-3)
            checked += 1
    assert checked > 2


def test_ctranslate2_gives_those_of_a_decoder_only_model(tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
    from ctranslate2.converters import TransformersConverter

    model, tokenizer = tiny_pair("llama")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    TransformersConverter(str(tmp_path / "model")).convert(str(tmp_path / "converted"))
    engine = ctranslate2.Generator(str(tmp_path / "converted"), intra_threads=1)
    ctranslate2.set_random_seed(1)
    inputs = tokenizer(SOURCES[1:], return_tensors="pt")
    (result,) = engine.generate_batch(
        [tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())],
        beam_size=1,
        sampling_topk=4,
        num_hypotheses=16,
        max_length=12,
        return_scores=True,
        return_end_token=True,
        include_prompt_in_result=False,
    )
    got = Candidates.from_ctranslate2(result, tokenizer)
    checked = 0
    for k, ids in enumerate(got.token_ids or ()):
        if sum(text_of(tokenizer, h) == got.texts[k] for h in result.sequences) == 1 and ids[-1] == EOS:
            assert got.logprobs is not None
            assert got.logprobs[k] == pytest.approx(by_model(model, inputs, 0, list(ids)), abs=1e-3)
            checked += 1
    assert checked > 2


def text_of(tokenizer: Any, tokens: list[str]) -> str:
    return str(tokenizer.decode(tokenizer.convert_tokens_to_ids(tokens), skip_special_tokens=True))


def test_ctranslate2_with_a_function_instead_of_a_tokenizer() -> None:
    result = SimpleNamespace(hypotheses=[["a", "b"], ["c"]], scores=[-1.0, -2.0])
    got = Candidates.from_ctranslate2(result, detokenize=" ".join)
    assert got.texts == ("a b", "c")
    np.testing.assert_allclose(got.logprobs, [-3.0, -4.0])
    assert got.token_ids is None


def test_a_pool_counts_every_draw_the_same_and_is_the_list_of_all_draws() -> None:
    pools = [["a", "a", "b"], {"b": 2, "c": 1}]
    assert sorted(Candidates.pool(pools).expanded()) == sorted("aabbbc")


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.lists(st.floats(0.05, 10), min_size=4, max_size=4),
)
def test_weights_of_a_pool_hold_within_one_percent_whatever_each_model_drew(
    sizes: list[int], weights: list[float]
) -> None:
    pools = [[f"{k} {i}" for i in range(size)] for k, size in enumerate(sizes)]
    weights = weights[: len(sizes)]
    pooled = Candidates.pool(pools, weights)
    share = dict(zip(pooled.texts, pooled.weights, strict=True))
    got = np.array([sum(share[text] for text in pool) for pool in pools])
    np.testing.assert_allclose(got, np.array(weights) / sum(weights), rtol=0.0202)


def test_the_choice_from_a_pool_is_that_of_the_weighted_mixture() -> None:
    first, second = ["the cat sat", "the cat sat", "a cat sat"], ["dogs run fast", "dogs ran fast", "dogs run fast"]
    utility = ACPMBR(target="chrf", decoder="mbr")
    expected = {}
    for text in ("the cat sat", "a cat sat", "dogs run fast", "dogs ran fast"):
        means = [utility.target.score([text] * 3, pool).mean() for pool in (first, second)]  # type: ignore[union-attr]
        expected[text] = 0.75 * means[0] + 0.25 * means[1]
    decision = utility.rerank(Candidates.pool([first, second], weights=[3, 1]))
    assert dict(zip(decision.candidates.texts, decision.expected, strict=True)) == pytest.approx(expected)
    assert utility.rerank(Candidates.pool([first, second], weights=[1, 3])).text == "dogs run fast"


def test_no_engine_server_or_trainer_is_imported() -> None:
    others = ("vllm", "ctranslate2", "openai", "trl", "accelerate", "fastapi", "uvicorn", "gradio")
    program = (
        "import sys, hf_acpmbr, hf_acpmbr.generation.preferences, hf_acpmbr.cli.translate\n"
        "import hf_acpmbr.cli.rerank, hf_acpmbr.metrics.network\n"
        f"print([name for name in {others} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
