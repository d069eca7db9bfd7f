"""Candidates of a real vLLM, from its engine and from its OpenAI server; the service in front of that server."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hf_acpmbr import ACPMBR, Candidates
from tests.vllm.conftest import DRAWN, PROMPTS, Teacher

ROOT = Path(__file__).resolve().parents[2]
CLOSE = 1e-4  # of a text's log-probability, the sum over its tokens: two implementations in float32
pytestmark = pytest.mark.vllm


def summed(logprobs: dict[Any, float]) -> float:
    """The logarithm of the sum of probabilities."""
    return math.log(sum(math.exp(logprob) for logprob in logprobs.values()))


def test_texts_ids_and_duplicates_of_the_engine_are_kept(outputs: list[Any], teacher: Teacher) -> None:
    for output in outputs:
        got = Candidates.from_vllm(output)
        counted = Counter(completion.text for completion in output.outputs)
        assert dict(zip(got.texts, got.counts.tolist(), strict=True)) == counted
        assert list(got.texts) == list(counted), "in the order of their first draw"
        assert got.total == DRAWN
        assert got.token_ids is not None
        for text, ids in zip(got.texts, got.token_ids, strict=True):
            decoded = teacher.tokenizer.decode(ids, skip_special_tokens=True)
            assert decoded.rstrip("\ufffd") == text, "vLLM leaves out a character that was cut in the middle"
        assert Candidates.from_vllm(output.outputs).texts == got.texts
    assert any(len(Candidates.from_vllm(output)) < DRAWN for output in outputs), "some text was drawn twice"


def test_log_probabilities_of_the_engine_are_those_of_transformers(outputs: list[Any], teacher: Teacher) -> None:
    """Under the model, although temperature and min_p cut the distribution that was drawn from."""
    print("\n     vLLM  transformers  difference  text")
    for output in outputs:
        prompt = output.prompt_token_ids
        by_text: dict[str, dict[tuple[int, ...], float]] = {}
        for completion in output.outputs:
            ids = tuple(completion.token_ids)
            if ids not in by_text.setdefault(completion.text, {}):
                expected = by_text[completion.text][ids] = teacher.logprob(prompt, ids)
                given = completion.cumulative_logprob
                print(f"{given:9.5f}     {expected:9.5f}    {given - expected:8.1e}  {completion.text[:50]!r}")
                assert given == pytest.approx(expected, abs=CLOSE)
        got = Candidates.from_vllm(output)
        assert got.logprobs == pytest.approx([summed(by_text[text]) for text in got.texts], abs=CLOSE)


def test_the_server_gives_texts_and_log_probabilities(server: str, teacher: Teacher) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server, api_key="none")
    asked = {"model": "small", "n": 8, "temperature": 1.0, "max_tokens": 16, "seed": 1}
    named = {"extra_body": {"return_tokens_as_token_ids": True}}  # tokens as "token_id:42"
    messages = [{"role": "user", "content": PROMPTS[0]}]
    chat = client.chat.completions.create(messages=messages, logprobs=True, **asked, **named)
    prompt = teacher.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    check(chat, [choice.message.content for choice in chat.choices], prompt, teacher)
    plain = client.completions.create(prompt="The sky is", logprobs=0, **asked, **named)
    check(plain, [choice.text for choice in plain.choices], teacher.tokenizer("The sky is")["input_ids"], teacher)


def check(response: Any, texts: list[str], prompt: list[int], teacher: Teacher) -> None:
    by_text: dict[str, float] = {}
    for text, choice in zip(texts, response.choices, strict=True):
        logprobs = choice.logprobs
        named = logprobs.tokens if hasattr(logprobs, "tokens") else [each.token for each in logprobs.content]
        by_text.setdefault(text, teacher.logprob(prompt, [int(token.removeprefix("token_id:")) for token in named]))
    for given in (response, response.choices, response.model_dump()):
        got = Candidates.from_openai(given)
        assert dict(zip(got.texts, got.counts.tolist(), strict=True)) == Counter(texts)
        assert got.logprobs == pytest.approx([by_text[text] for text in got.texts], abs=CLOSE)


def test_the_service_answers_every_request_by_choices_among_texts_of_the_server(server: str) -> None:
    openai = pytest.importorskip("openai")
    from hf_acpmbr.serve.service import Service
    from hf_acpmbr.serve.upstream import Upstream
    from tests.service.servers import served

    service = Service(ACPMBR(target="chrf", time_limit=20.0), Upstream(server))
    service.warm_up()
    with served(service.app) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

        def ask(k: int) -> Any:
            messages = [{"role": "user", "content": PROMPTS[k % len(PROMPTS)]}]
            asked = {"model": "small", "messages": messages, "max_tokens": 12, "seed": k}
            return client.chat.completions.create(**asked, extra_body={"best_of": 8, "min_p": 0.02})

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(12)))
        assert [each.id for each in client.models.list().data] == ["small"]
    for answer in answers:
        assert answer.mbr["drawn"] == 8
        assert 1 <= answer.mbr["unique"] <= 8
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens >= 8
    raw = openai.OpenAI(base_url=server, api_key="none").chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": PROMPTS[0]}],
        max_tokens=12,
        seed=0,
        n=8,
        temperature=1.0,
        extra_body={"min_p": 0.02},
    )
    assert answers[0].choices[0].message.content == ACPMBR(target="chrf").rerank(Candidates.from_openai(raw)).text


def test_the_example_runs(folder: Path) -> None:
    command = [sys.executable, "examples/vllm_candidates.py", "--model", str(folder), "--dtype", "float32"]
    command += ["--num-candidates", "16", "--max-tokens", "32"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-5000:]
    print(done.stdout)
    assert done.stdout.count("\n  chosen ") == done.stdout.count("\n  most probable ") == 3
