"""Parts of the service: batches, shared time limits, any JSON at all, and the command that starts it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.cli import serve
from hf_acpmbr.serve import RequestLimits
from hf_acpmbr.serve.api import Asked, Drawn
from hf_acpmbr.serve.batcher import Batcher
from hf_acpmbr.serve.local import Local
from hf_acpmbr.serve.service import Service
from tests.models import tiny_pair


def test_what_comes_during_a_batch_is_done_together_by_key_the_oldest_first() -> None:
    seen: list[tuple[str, list[int]]] = []
    begun, go_on = threading.Event(), threading.Event()

    def run(key: str, items: Any) -> list[int]:
        seen.append((key, list(items)))
        begun.set()
        assert go_on.wait(20)
        return [-item for item in items]

    async def scene() -> list[int]:
        batcher: Batcher[int, int] = Batcher(run, most=3)
        first = asyncio.create_task(batcher.submit("a", 0))
        await asyncio.to_thread(begun.wait, 20)
        coming = [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 5), ("a", 6), ("a", 7)]
        tasks = [asyncio.create_task(batcher.submit(*each)) for each in coming]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.sleep(0)
        go_on.set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert isinstance(results.pop(3), asyncio.CancelledError)
        assert batcher.batches == 4
        return results

    assert asyncio.run(scene()) == [0, -1, -2, -4, -5, -6, -7]
    assert seen == [("a", [0]), ("a", [1, 4, 6]), ("b", [2, 5]), ("a", [7])]


def test_of_a_failing_batch_only_the_bad_item_fails_and_the_next_batch_runs() -> None:
    def run(key: str, items: Any) -> list[int]:
        return [1 // item for item in items]

    async def scene() -> Any:
        batcher: Batcher[int, int] = Batcher(run, most=3)
        return await asyncio.gather(*(batcher.submit("", k) for k in (1, 0, 1, 1)), return_exceptions=True)

    one, bad, *others = asyncio.run(scene())
    assert isinstance(bad, ZeroDivisionError)
    assert [one, *others] == [1, 1, 1]


class Texts:
    """A drawer that has its texts already, and waits until all requests of a test have come."""

    def __init__(self, texts: list[str], wait_for: int = 1) -> None:
        self.candidates, self.left = Candidates.from_texts(texts), wait_for
        self.all_here = asyncio.Event()

    async def draw(self, path: str, asked: Asked, number: int, key: str | None) -> Drawn:
        self.left -= 1
        if self.left <= 0:
            self.all_here.set()
        await self.all_here.wait()
        body = "message" if path.startswith("/chat") else "text"
        choices = {text: {body: {"content": text} if body == "message" else text} for text in self.candidates}
        return Drawn(self.candidates, choices, "texts", {})

    async def models(self, key: str | None) -> object:
        return {}

    async def close(self) -> None:
        pass


def ask(app: Any, bodies: list[Any], path: str = "/v1/completions") -> list[httpx.Response]:
    async def scene() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            contents = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
            return list(await asyncio.gather(*(client.post(path, content=content) for content in contents)))

    return asyncio.run(scene())


def test_requests_scored_together_share_their_time_limit_and_never_another_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[float | None, int]] = []
    rerank_many = ACPMBR.rerank_many

    def watched(self: ACPMBR, pools: Any, *rest: Any) -> Any:
        seen.append((getattr(self.decoder, "time_limit", None), len(pools)))
        return rerank_many(self, pools, *rest)

    monkeypatch.setattr(ACPMBR, "rerank_many", watched)
    wishes = [8.0, 2.0, None, 8.0, 99.0, 2.0]
    drawer: Any = Texts(["a cat", "a cat", "dogs"], len(wishes))
    service = Service(ACPMBR(target="chrf", time_limit=12.0), drawer)
    bodies = [{"prompt": "p", **({"mbr": {"time_limit": wish}} if wish else {})} for wish in wishes]
    answers = ask(service.app, bodies)
    assert [answer.json()["choices"][0]["text"] for answer in answers] == ["a cat"] * 6
    # The first one is alone if its batch begins before the others arrive.
    batches = sorted(seen)
    assert batches in ([(1.0, 2), (4.0, 2), (6.0, 2)], [(1.0, 2), (6.0, 2), (8.0, 1), (8.0, 1)])


def test_a_decoder_without_a_time_limit_refuses_one() -> None:
    drawer: Any = Texts(["a", "b"])
    answer = ask(Service(ACPMBR(target="chrf", decoder="mbr"), drawer).app, [{"prompt": "p", "mbr": {"time_limit": 1}}])
    assert answer[0].status_code == 400
    assert answer[0].json()["error"]["param"] == "mbr.time_limit"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "system", 3]), "content": JSON}) | JSON
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGE, max_size=2) | JSON,
        "prompt": st.text(max_size=5) | JSON,
        **dict.fromkeys(("model", "stream", "stream_options", "seed", "temperature", "max_tokens", "tools"), JSON),
        **{name: st.integers(0, 3) | JSON for name in ("n", "best_of", "top_k", "max_completion_tokens")},
        "mbr": st.dictionaries(st.sampled_from(["source", "time_limit", "x"]), JSON, max_size=2) | JSON,
        "logprobs": JSON,
        "top_p": JSON,
    },
)


def check_any_json(service: Service, fields: Any, path: str) -> None:
    (answer,) = ask(service.app, [json.dumps(fields).encode()], path)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code == 200:
        assert answer.text.endswith("[DONE]\n\n") or answer.json()["choices"]
    else:
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert not re.search(r"Traceback|/hf_acpmbr|Error\b", answer.text)


@given(FIELDS, st.sampled_from(["/v1/completions", "/v1/chat/completions"]))
@settings(max_examples=150)
def test_any_json_gets_an_answer_or_an_error_without_internals(fields: Any, path: str) -> None:
    drawer: Any = Texts(["a cat", "a cat", "dogs", "\ud800", ""])
    check_any_json(Service(ACPMBR(target="chrf", decoder="mbr"), drawer), fields, path)


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_any_json_gets_an_answer_of_a_model_in_this_process_too(kind: str) -> None:
    mbr = ACPMBR(target="chrf", decoder="mbr")

    @given(FIELDS, st.sampled_from(["/v1/completions", "/v1/chat/completions"]))
    @settings(max_examples=60)
    def check(fields: Any, path: str) -> None:
        local = Local(*tiny_pair(kind), {}, recipe=mbr.recipe, name="tiny", most_tokens=3)
        check_any_json(Service(mbr, local, RequestLimits(num_candidates=2, most_candidates=4)), fields, path)

    check()


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_arguments(parser)
    return parser.parse_args(list(given))


def test_the_command_has_a_time_limit_unless_the_decoder_takes_none() -> None:
    url = ["--upstream", "http://127.0.0.1:9/v1"]
    for given_options, limit in (
        ([], serve.DEFAULT_SECONDS),
        (["--time-limit", "2"], 2.0),
        (["--set", "time_limit=3"], 3.0),
        (["--decoder", "mbr"], None),
    ):
        assert getattr(serve.build(options(*url, *given_options)).mbr.decoder, "time_limit", None) == limit
    made = serve.build(options(*url, "--most-candidates", "7", "--timeout", "1.5"))
    assert (made.limits.most_candidates, made.limits.timeout) == (7, 1.5)


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        (["--upstream", "http://127.0.0.1:9/v1", "--model", "embedded"], "--model is for a model in this process"),
        (["--upstream-n", "3"], "are for requests to --upstream"),
        (["--upstream", "http://127.0.0.1:9/v1", "--decoder", "mbr", "--time-limit", "1"], "time_limit"),
        (["--upstream", "http://127.0.0.1:9/v1", "--set", "num_references=3"], "num_references"),
    ],
)
def test_options_that_have_no_effect_are_refused(given_options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        serve.build(options(*given_options))


def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
    model, tokenizer = tiny_pair("m2m100")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    command = [sys.executable, "-m", "hf_acpmbr", "serve", "--model", str(tmp_path), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "running on" in line)
        url = re.search(r"http://[\d.:]+", line)
        assert url is not None
        client = openai.OpenAI(base_url=f"{url[0]}/v1", api_key="none")
        made = client.completions.create(model=str(tmp_path), prompt="a dog ran", max_tokens=4, best_of=8)
        assert made.mbr["drawn"] == 8
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
