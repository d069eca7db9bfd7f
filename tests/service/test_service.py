"""MBR behind OpenAI's API: the real client against the real service, with an upstream that really samples."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from hf_acpmbr import ACPMBR, load_model
from hf_acpmbr.embedded import TRANSLATOR
from hf_acpmbr.serve import RequestLimits
from hf_acpmbr.serve.local import Local
from hf_acpmbr.serve.service import Service
from hf_acpmbr.serve.upstream import Upstream
from tests.models import tiny_pair
from tests.service.servers import Engine, served

openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

SECRET = "weights at /srv/secret"
SENTENCES = ["Good morning!", "Where is the station?", "Tom is reading a book.", "It is raining.", "See you soon."]


def unreliable(hypotheses: list[str], references: list[str]) -> list[float]:
    """A utility that fails for some texts, with an error that is nobody else's business."""
    if any("Bahnhof" in text for text in hypotheses):
        raise RuntimeError(SECRET)
    return [float(a == b) for a, b in zip(hypotheses, references, strict=True)]


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Engine, str]]:
    if not (TRANSLATOR / "config.json").is_file():
        pytest.skip("the embedded translator is not there")
    made = Engine(*load_model("embedded", source_language="en", target_language="de"))
    with served(made.app) as url:
        yield made, url


@pytest.fixture(scope="module")
def service(engine: tuple[Engine, str]) -> Iterator[str]:
    limits = RequestLimits(num_candidates=8, most_candidates=32, most_characters=400, most_bytes=5000)
    made = Service(ACPMBR(target="chrf", time_limit=20.0), Upstream(f"{engine[1]}/v1"), limits)
    made.warm_up()
    with served(made.app) as url:
        yield url


def client(url: str, **options: Any) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="key-of-the-client", max_retries=0, **options)


def chat(text: str, model: str = "engine", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def of_tiny(text: str, **more: Any) -> dict[str, Any]:
    return chat(text, **{"model": "tiny", **more})


def post(url: str, body: Any, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.post(url + path, content=content, timeout=60)
    return answer.status_code, answer.json()


def test_a_client_gets_the_choice_that_rerank_makes_of_what_the_upstream_drew(
    engine: tuple[Engine, str], service: str
) -> None:
    made = client(service).chat.completions.create(
        **chat("He lent me the money."), seed=1, extra_body={"best_of": 16, "min_p": 0.01}
    )
    drawn = engine[0].given["He lent me the money."]
    assert len(drawn) == 16
    expected = ACPMBR(target="chrf", time_limit=20.0).rerank(drawn)
    assert made.choices[0].message.content == expected.text
    assert made.mbr["expected_utility"] == pytest.approx(expected.expected[expected.index])
    assert made.mbr["calls"] == dict(expected.calls)
    assert (made.mbr["unique"], made.mbr["drawn"]) == (len(expected.candidates), 16)
    assert made.mbr["expected_regret"] == pytest.approx(expected.expected_regret)
    assert made.usage.completion_tokens == 7 * 16
    assert made.choices[0].mbr["count"] == drawn.count(expected.text)
    assert engine[0].keys[-1] == "Bearer key-of-the-client"
    asked = engine[0].bodies[-1]
    assert {**asked, **chat("He lent me the money.")} == asked, "the client's fields reach the upstream"
    assert asked["min_p"] == 0.01
    assert asked["temperature"] == 1.0
    assert "best_of" not in asked


def test_completions_return_the_n_best_different_texts(engine: tuple[Engine, str], service: str) -> None:
    made = client(service).completions.create(model="engine", prompt="See you soon.", n=3, best_of=32, seed=2)
    best = ACPMBR(target="chrf", time_limit=20.0).rerank(engine[0].given["See you soon."]).nbest(3)
    assert [choice.text for choice in made.choices] == [each.text for each in best]
    np.testing.assert_allclose([choice.mbr["expected_utility"] for choice in made.choices], [e.expected for e in best])
    assert [choice.index for choice in made.choices] == [0, 1, 2]


def test_a_stream_is_one_chunk_with_the_same_choice(service: str) -> None:
    for create, asked in (
        (client(service).chat.completions.create, chat("It is raining.", seed=3)),
        (client(service).completions.create, {"model": "engine", "prompt": "It is raining.", "seed": 3}),
    ):
        whole = create(**asked)
        first, last = list(create(**asked, stream=True, stream_options={"include_usage": True}))
        if "messages" in asked:
            assert first.choices[0].delta.content == whole.choices[0].message.content
        else:
            assert first.choices[0].text == whole.choices[0].text
        assert first.choices[0].finish_reason == "stop"
        assert first.mbr["calls"] == whole.mbr["calls"]
        assert last.usage == whole.usage
        assert last.choices == []


@pytest.mark.parametrize("says_so", [True, False])
def test_an_upstream_that_limits_n_is_asked_several_times_with_other_seeds(
    engine: tuple[Engine, str], says_so: bool
) -> None:
    engine[0].most, before = 3, len(engine[0].bodies)
    try:
        drawer = Upstream(f"{engine[1]}/v1", most=3 if says_so else None)
        with served(Service(ACPMBR(target="chrf"), drawer).app) as url:
            made = client(url).chat.completions.create(**chat("Tom sleeps."), seed=5, extra_body={"best_of": 8})
    finally:
        engine[0].most = 1000
    asked = engine[0].bodies[before:]
    assert made.mbr["drawn"] == 8
    assert sorted((body["seed"], body["n"]) for body in asked) == (
        [(5, 3), (8, 3), (11, 2)] if says_so else [(5, 8), (8, 3), (11, 2)]
    )
    assert made.usage.prompt_tokens == 15


def test_200_requests_8_at_a_time_none_lost_and_each_with_its_own_answer(
    engine: tuple[Engine, str], service: str
) -> None:
    before = len(engine[0].bodies)

    def send(number: int) -> int:
        if number % 20 == 7:
            return post(service, {"messages": []})[0]
        if number % 20 == 17:
            return post(service, b"not JSON")[0]
        text = f"{SENTENCES[number % 5][:-1]} {number}."
        made = client(service).chat.completions.create(**chat(text, max_tokens=4), seed=number)
        drawn = engine[0].given[text]
        assert len(drawn) == 8
        assert made.choices[0].message.content in drawn
        assert made.choices[0].mbr["count"] == drawn.count(made.choices[0].message.content)
        return 200

    with ThreadPoolExecutor(8) as pool:
        statuses = Counter(pool.map(send, range(200)))
    assert statuses == {200: 180, 400: 20}
    assert len(engine[0].bodies) - before == 180
    assert httpx.get(f"{service}/health").json() == {"status": "ok", "open_requests": 0}
    metrics = dict(re.findall(r"^(\w+(?:\{.*\})?) ([\d.e+-]+)$", httpx.get(f"{service}/metrics").text, flags=re.M))
    assert float(metrics['acpmbr_requests_total{status="200"}']) >= 180
    assert float(metrics['acpmbr_requests_total{status="400"}']) >= 20
    assert float(metrics["acpmbr_candidates_total"]) >= 180 * 8
    assert float(metrics['acpmbr_utility_calls_total{utility="chrf"}']) > 0
    assert float(metrics["acpmbr_rerank_batches_total"]) <= float(metrics['acpmbr_requests_total{status="200"}'])
    assert metrics["acpmbr_open_requests"] == "0"


BAD: list[tuple[Any, str, str | None]] = [
    (b"{", "JSON", None),
    (b"[1]", "object", None),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "JSON", None),
    ({"prompt": "a"}, "messages is needed", "messages"),
    (chat("a", prompt="b"), "without prompt", "messages"),
    (chat("a", n=0), "n: ", "n"),
    (chat("a", n="3"), "n: ", "n"),
    (chat("a", n=9, best_of=8), "at most best_of", "best_of"),
    (chat("a", best_of=33), "best_of at most 32", "best_of"),
    (chat("a", n=33), "at most 32", "best_of"),
    (chat("a", temperature=0), "temperature 0 draws the same", "temperature"),
    (chat("a", tools=[{"type": "function"}]), "not among calls", "tools"),
    (chat("a" * 401), "may have 400 characters", "messages"),
    (chat("a", mbr={"time_limit": 0}), "mbr.time_limit: ", "mbr.time_limit"),
    (chat("a", mbr={"sourc": "b"}), "mbr.sourc: ", "mbr.sourc"),
]


@pytest.mark.parametrize(("body", "words", "param"), BAD, ids=[words for _, words, _ in BAD])
def test_a_wrong_request_gets_an_error_in_openais_schema_and_asks_nobody(
    engine: tuple[Engine, str], service: str, body: Any, words: str, param: str | None
) -> None:
    before = len(engine[0].bodies)
    status, answer = post(service, body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert answer["error"]["param"] == param
    assert answer["error"]["type"] == "invalid_request_error"
    assert len(engine[0].bodies) == before


def test_what_is_too_large_or_not_there_is_refused_in_the_same_schema(service: str) -> None:
    for size in (5001, 3_000_000):
        status, answer = post(service, b"x" * size)
        assert (status, answer["error"]["message"]) == (413, "a request may have 5000 bytes")
    assert post(service, {}, "/v1/nothing")[0] == 404
    assert httpx.get(f"{service}/v1/completions").status_code == 405
    several = {"prompt": ["two", "prompts"]}
    assert post(service, several, "/v1/completions")[1]["error"]["param"].startswith("prompt")


def test_the_list_of_models_is_the_upstreams(service: str) -> None:
    assert [model.id for model in client(service).models.list()] == ["engine"]


def test_what_the_upstream_says_of_the_request_is_passed_on_and_what_it_says_of_itself_is_not(service: str) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens is too large"):
        client(service).chat.completions.create(**chat("a", model="strict"))
    for model in ("broken", "odd"):
        with pytest.raises(openai.InternalServerError) as caught:
            client(service).chat.completions.create(**chat("a", model=model))
        assert caught.value.status_code == 502
        assert "secret" not in str(caught.value)
        assert "html" not in str(caught.value)
    with served(Service(ACPMBR(target="chrf"), Upstream("http://127.0.0.1:9/v1")).app) as url:
        status, answer = post(url, chat("a"))
    assert status == 502
    assert answer["error"]["type"] == "server_error"


def test_a_utility_that_fails_for_one_request_keeps_its_secrets_and_the_others_their_answers(
    engine: tuple[Engine, str],
) -> None:
    made = Service(
        ACPMBR(target=unreliable, decoder="mbr"), Upstream(f"{engine[1]}/v1"), RequestLimits(num_candidates=12)
    )
    with served(made.app) as url, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda text: post(url, chat(text, seed=1)), [*SENTENCES, SENTENCES[1]]))
    assert [status for status, _ in answers] == [200, 500, 200, 200, 200, 500]
    for status, answer in answers:
        if status == 500:
            assert re.fullmatch("failed; the service's log knows why, as [0-9a-f]{32}", answer["error"]["message"])


def test_a_request_that_takes_too_long_is_given_up_here_and_at_the_upstream(engine: tuple[Engine, str]) -> None:
    before = engine[0].cancelled
    made = Service(
        ACPMBR(target="chrf"), Upstream(f"{engine[1]}/v1", most=2), RequestLimits(timeout=0.3, num_candidates=4)
    )
    with served(made.app) as url:
        with pytest.raises(openai.InternalServerError, match=r"not done within 0\.3 s") as caught:
            client(url).chat.completions.create(**chat("a", model="slow"))
        assert caught.value.status_code == 504
        until(lambda: engine[0].cancelled == before + 2)


def test_a_client_that_goes_away_ends_the_work(engine: tuple[Engine, str], service: str) -> None:
    before = engine[0].cancelled
    with pytest.raises(openai.APITimeoutError):
        client(service, timeout=0.3).chat.completions.create(**chat("a", model="slow"))
    until(lambda: engine[0].cancelled == before + 1)
    until(lambda: httpx.get(f"{service}/health").json()["open_requests"] == 0)
    assert 'acpmbr_requests_total{status="499"} 1' in httpx.get(f"{service}/metrics").text


def until(true: Any) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_more_requests_are_open_than_allowed(engine: tuple[Engine, str]) -> None:
    limits = RequestLimits(most_requests=2, timeout=1.0)
    with served(Service(ACPMBR(target="chrf"), Upstream(f"{engine[1]}/v1"), limits).app) as url:
        with ThreadPoolExecutor(4) as pool:
            statuses = [each[0] for each in pool.map(lambda _: post(url, chat("a", model="slow")), range(4))]
        assert sorted(statuses) == [503, 503, 504, 504]
        assert post(url, chat("It is raining.", best_of=2))[0] == 200


def test_a_utility_that_reads_the_source_gets_it_from_the_request(engine: tuple[Engine, str]) -> None:
    seen: list[list[str]] = []

    class Watching:
        higher_is_better = True
        needs_source = True

        def score(self, hypotheses: list[str], references: list[str], sources: list[str] | None = None) -> list[float]:
            seen.append(sorted(set(sources or [])))
            return [float(a == b) for a, b in zip(hypotheses, references, strict=True)]

    made = Service(
        ACPMBR(target=Watching(), decoder="mbr"), Upstream(f"{engine[1]}/v1"), RequestLimits(num_candidates=2)
    )
    with served(made.app) as url:
        assert post(url, chat("It is raining."))[0] == 200
        assert post(url, chat("Translate: It snows.", mbr={"source": "It snows."}))[0] == 200
        parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]
        status, answer = post(url, {"messages": [{"role": "user", "content": parts}]})
    assert seen == [["It is raining."], ["It snows."]]
    assert (status, answer["error"]["param"]) == (400, "mbr.source")


def test_a_model_in_this_process_gives_the_choice_among_its_own_samples_however_many_ask_at_once() -> None:
    model, tokenizer = tiny_pair("m2m100", sharpness=2.0)
    texts = ["a dog ran", "the cat sat", "the sun", "we all see the red sun"]
    mbr = ACPMBR(target="chrf", time_limit=20.0)
    local = Local(model, tokenizer, {}, recipe=mbr.recipe, name="tiny", most_tokens=6)
    with served(Service(mbr, local, RequestLimits(num_candidates=12)).app) as url:
        assert [each.id for each in client(url).models.list()] == ["tiny"]

        def send(text: str) -> Any:
            return client(url).completions.create(model="tiny", prompt=text, seed=3, temperature=0.9)

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(send, texts))
        again = send(texts[0])
        alone = client(url).chat.completions.create(**chat("é dog", model="tiny", max_tokens=1))
    for text, answer in zip(texts, answers, strict=True):
        sampling = ACPMBR(tokenizer, decoder="map", seed=3, num_candidates=12, temperature=0.9)
        inputs = tokenizer([text], return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=6, custom_generate=sampling, return_dict_in_generate=True)
        decision = mbr.rerank(output.decisions[0].candidates, source=text)
        assert answer.choices[0].text == decision.text
        assert answer.mbr["unique"] == len(decision.candidates) > 1
        written = sum(
            len(i) * c for i, c in zip(decision.candidates.token_ids, decision.candidates.counts, strict=True)
        )
        assert answer.usage.completion_tokens == written
    assert again.choices[0].text == answers[0].choices[0].text
    assert alone.choices[0].finish_reason == "length"


def test_a_chat_model_reads_all_messages_in_its_template() -> None:
    model, tokenizer = tiny_pair("llama")
    mbr = ACPMBR(target="chrf")
    local = Local(model, tokenizer, {}, recipe=mbr.recipe, name="tiny", most_tokens=4)
    turns = [{"role": "user", "content": "a dog"}, {"role": "assistant", "content": "ran"}]
    turns.append({"role": "user", "content": [{"type": "text", "text": "home"}]})
    with served(Service(mbr, local, RequestLimits(num_candidates=4)).app) as url:
        status, answer = post(url, {"messages": turns})
        written = "<s>user a dog</s><s>assistant ran</s><s>user home</s><s>"
        assert status == 200
        assert answer["usage"]["prompt_tokens"] == len(tokenizer(written)["input_ids"])
        for body, words in (
            (of_tiny("a", model="gpt"), "the model is 'tiny'"),
            (of_tiny("a", logit_bias={"1": 3}), "'logit_bias' is not supported"),
            (of_tiny("a", max_tokens=5), "max_tokens may be 4"),
            (of_tiny("a", top_p=-1), "top_p"),
            (of_tiny("a " * 200), "the input has"),
            (of_tiny(" "), "none that are empty"),
            (of_tiny("a", stop=["x"]), "'stop' is not supported"),
        ):
            status, answer = post(url, body)
            assert status in (400, 404)
            assert words in answer["error"]["message"]
        ignored = {"frequency_penalty": 0, "logit_bias": {}, "logprobs": False, "stop": None, "user": "me"}
        assert post(url, of_tiny("a", **ignored))[0] == 200
