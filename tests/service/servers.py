"""A server that speaks OpenAI's API around a model of transformers, and servers in threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Engine:
    """The upstream of the tests: samples as transformers does, and remembers what it was asked and what it gave.

    A request for the model "broken", "odd", "slow" or "strict" meets a server that fails, answers no JSON, takes long
    or refuses.
    """

    def __init__(self, model: Any, tokenizer: Any, generate: dict[str, Any], most: int = 1000) -> None:
        self.model, self.tokenizer, self.generate, self.most = model, tokenizer, generate, most
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.given: dict[str, list[str]] = {}
        self.cancelled = 0
        self._one_at_a_time = threading.Lock()
        paths = ("/v1/chat/completions", "/v1/completions")
        self.app = Starlette(
            routes=[*(Route(path, self.answer, methods=["POST"]) for path in paths), Route("/v1/models", self.models)]
        )

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "engine", "object": "model"}]})

    async def answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        if body.get("model") == "broken":
            return JSONResponse({"error": {"message": "secret of the engine at /srv/weights"}}, 500)
        if body.get("model") == "odd":
            return Response("<html>", media_type="text/html")
        if body.get("model") == "strict":
            return JSONResponse({"error": {"message": "max_tokens is too large", "code": 400}}, 400)
        if body.get("model") == "slow":
            waits = asyncio.create_task(asyncio.sleep(30))
            while not waits.done():
                if (await request.receive())["type"] == "http.disconnect":
                    waits.cancel()
                    self.cancelled += 1
                    return Response()
        source = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        rows = await asyncio.to_thread(self.sample, source, body)
        chat = "messages" in body
        choices = [
            {
                "index": k,
                **({"message": {"role": "assistant", "content": text}} if chat else {"text": text}),
                "logprobs": None,
                "finish_reason": "stop",
            }
            for k, text in enumerate(rows)
        ]
        usage = {"prompt_tokens": 5, "completion_tokens": 7 * len(rows), "total_tokens": 5 + 7 * len(rows)}
        kind = "chat.completion" if chat else "text_completion"
        return JSONResponse(
            {"id": "x", "object": kind, "created": 1, "model": "engine", "choices": choices, "usage": usage}
        )

    def sample(self, source: str, body: dict[str, Any]) -> list[str]:
        with self._one_at_a_time:
            torch.manual_seed(body.get("seed", len(self.bodies)))
            ids = self.model.generate(
                **self.tokenizer([source], return_tensors="pt"),
                **self.generate,
                do_sample=True,
                top_k=0,
                temperature=body["temperature"],
                num_return_sequences=min(body["n"], self.most),
                max_new_tokens=body.get("max_tokens", 12),
            )
            texts: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
            self.given.setdefault(source, []).extend(texts)
        return texts


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of a server in a thread, on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
