"""The services: batches of concurrent requests, limits, errors as JSON, and 200 requests of which none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.corpus import decide_texts
from tests.models import tiny_pair

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def module(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


async def working(batcher: Any, requests: Any) -> Any:
    worker = asyncio.create_task(batcher.work())
    try:
        return await asyncio.wait_for(requests, timeout=30)
    finally:
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


def test_concurrent_requests_are_batched_by_time_limit_and_each_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    batching = module("fastapi_service", "batching", monkeypatch)
    seen: list[list[str]] = []

    def run(texts: list[str], seconds: float) -> list[dict[str, Any]]:
        seen.append(texts)
        return [{"text": text.upper(), "limit": round(seconds)} for text in texts]

    async def scene() -> Any:
        batcher = batching.Batcher(run, most_texts=4)
        asked = [(["a"], 9.0), (["b", "c"], 9.0), (["d"], 5.0), (["e", "f"], 9.0), (["g"], 9.0)]
        return await working(batcher, asyncio.gather(*(batcher.submit(*each) for each in asked)))

    answers = asyncio.run(scene())
    assert [[result["text"] for result in answer] for answer in answers] == [
        ["A"],
        ["B", "C"],
        ["D"],
        ["E", "F"],
        ["G"],
    ]
    assert seen == [["a", "b", "c", "g"], ["d"], ["e", "f"]], "at most 4 texts, and one limit in each batch"


def test_a_full_queue_refuses_and_a_failed_batch_does_not_stop_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    batching = module("fastapi_service", "batching", monkeypatch)

    def run(texts: list[str], seconds: float) -> list[dict[str, Any]]:
        if "bad" in texts:
            raise ArithmeticError("no")
        return [{} for _ in texts]

    async def scene() -> Any:
        batcher = batching.Batcher(run, most_waiting=2)
        asked = [batcher.submit(["bad"], 1.0), batcher.submit(["good"], 2.0), batcher.submit(["late"], 2.0)]
        return await working(batcher, asyncio.gather(*asked, return_exceptions=True))

    bad, good, late = asyncio.run(scene())
    assert isinstance(bad, ArithmeticError)
    assert good == [{}]
    assert isinstance(late, batching.BusyError)


def translator(monkeypatch: pytest.MonkeyPatch) -> Any:
    translating = module("fastapi_service", "translating", monkeypatch)
    model, tokenizer = tiny_pair("m2m100")
    return translating.Translator(model, tokenizer, {"max_new_tokens": 4}, sizes=(2, 8))


def test_a_request_gets_as_many_candidates_as_half_of_its_time_is_enough_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = translator(monkeypatch)
    made.seconds = [0.1, 1.0]
    assert [made.size_for(1, seconds) for seconds in (0.01, 0.2, 1.9, 2.0)] == [0, 0, 0, 1]
    assert made.size_for(4, 2.0) == 0, "four texts take four times as long"
    results = [made.translate(["a dog ran", " "], seconds) for seconds in (0.1, 60.0)]
    assert [[each["candidates"] for each in result] for result in results] == [[2, 0], [8, 0]]
    assert results[1][1]["status"] == "blank"
    assert made.seconds != [0.1, 1.0], "it learns from what it measures"


def test_texts_share_the_time_that_sampling_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    made = translator(monkeypatch)
    clock, limits = [0.0], []
    monkeypatch.setattr("translating.time.perf_counter", lambda: clock[0])
    rerank_many = ACPMBR.rerank_many

    def watched(self: ACPMBR, *given: Any) -> Any:
        limits.append(self.recipe.to_dict()["decoder"]["time_limit"])
        return rerank_many(self, *given)

    def slow(*given: Any, **options: Any) -> Any:
        clock[0] += 2.0
        return decide_texts(*given, **options)

    monkeypatch.setattr(ACPMBR, "rerank_many", watched)
    monkeypatch.setattr("translating.decide_texts", slow)
    made.translate(["a dog ran", " ", "the cat sat"], 6.0)
    made.translate(["a dog ran"], 0.5)
    assert limits == [0.8 * (6 - 2) / 2, 0.001], "where nothing is left there is an answer all the same"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    for needed in ("fastapi", "uvicorn"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: pip install fastapi uvicorn")
    monkeypatch.delitem(sys.modules, "batching", raising=False)
    made = translator(monkeypatch)
    app = module("fastapi_service", "app", monkeypatch).make_app(made)
    testing = module("fastapi_service", "load_test", monkeypatch)
    with testing.served(app) as url:
        yield testing, url


def ask(url: str, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_200_requests_8_at_a_time_and_none_is_lost(service: tuple[Any, str]) -> None:
    testing, url = service
    before = threading.active_count()
    report = testing.load(url, requests=200, at_once=8, time_limit=30.0)
    assert report["answered"] == 200
    assert report["statuses"] == {200: 180, 422: 20}
    health = ask(url, "/health")[1]
    assert health["waiting"] == 0
    assert health["texts"] == sum(report["texts_by_candidates"].values()) == 358
    assert health["batches"] < 180, "requests that came together were done together"
    assert threading.active_count() <= before + 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_error_is_json_and_says_what_is_wrong(service: tuple[Any, str]) -> None:
    _, url = service
    for body, words in (
        (b"{", "JSON"),
        (b'{"texts": "a"}', "texts"),
        (b'{"texts": ["a"], "time_limit": 0}', "time_limit"),
        (b'{"texts": ["a"], "temperature": 1}', "temperature"),
        (json.dumps({"texts": ["a" * 2001]}).encode(), "texts.0"),
        (json.dumps({"texts": ["a"] * 17}).encode(), "texts"),
    ):
        status, answer = ask(url, "/translate", "POST", body)
        assert status == 422
        assert words in answer["error"]
    assert ask(url, "/nowhere") == (404, {"error": "Not Found"})
    assert ask(url, "/translate")[0] == 405


def test_the_endpoint_handler_answers_texts_and_refuses_what_is_beyond_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler_module = module("endpoint", "handler", monkeypatch)
    for part in tiny_pair("m2m100"):
        part.save_pretrained(tmp_path)
    handler = handler_module.EndpointHandler(str(tmp_path))
    parameters = {"num_candidates": 8, "nbest": 2, "max_new_tokens": 5}
    first, blank = handler({"inputs": ["a dog ran", " "], "parameters": parameters})
    assert first["generated_text"] == first["nbest"][0]["text"]
    assert len(first["nbest"]) == 2
    assert json.loads(json.dumps(blank))["expected_utility"] is None
    assert handler({"inputs": "a dog ran", "parameters": {**parameters, "nbest": 1}})[0].keys() == {
        "generated_text",
        "expected_utility",
        "seconds",
    }
    for data, message in (
        ({}, '"inputs" must be a text or a list of texts, got None'),
        ({"inputs": [3]}, '"inputs" must be a text or a list of texts'),
        ({"inputs": ["a"] * 33}, "a request may have 32 texts"),
        ({"inputs": "a", "parameters": {"beams": 3}}, "parameter 'beams' is unknown: known are"),
        ({"inputs": "a", "parameters": {"nbest": 17}}, "parameter 'nbest' must be an integer from 1 to 16"),
        ({"inputs": "a", "parameters": {"time_limit": 0}}, "parameter 'time_limit' must be a number from 0.001 to 60"),
        ({"inputs": "a", "parameters": [1]}, '"parameters" must be an object'),
    ):
        with pytest.raises(ValueError, match=message):
            handler(data)


def test_the_endpoint_handler_shares_the_time_among_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler_module = module("endpoint", "handler", monkeypatch)
    for part in tiny_pair("m2m100"):
        part.save_pretrained(tmp_path)
    handler, seen = handler_module.EndpointHandler(str(tmp_path)), []
    decide = handler_module.decide_texts

    def watched(mbr: Any, *rest: Any, **options: Any) -> Any:
        seen.append(mbr.decoder.time_limit)
        return decide(mbr, *rest, **options)

    monkeypatch.setattr(handler_module, "decide_texts", watched)
    parameters = {"num_candidates": 8, "max_new_tokens": 5, "time_limit": 30}
    assert len(handler({"inputs": ["a dog ran", "the cat sat"], "parameters": parameters})) == 2
    assert seen == [15.0]


def test_the_endpoint_handler_follows_a_recipe_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hf_acpmbr import Recipe

    handler_module = module("endpoint", "handler", monkeypatch)
    for part in tiny_pair("m2m100"):
        part.save_pretrained(tmp_path)
    Recipe.named("fast", target="bleu", num_candidates=6).save_pretrained(tmp_path)
    handler = handler_module.EndpointHandler(str(tmp_path))
    assert handler.mbr.target.name == "bleu"
    assert handler.mbr.recipe.sampling.num_candidates == 6
