"""Texts drawn by a server that speaks OpenAI's API: vLLM, SGLang, llama.cpp, TGI, ..."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import httpx

from ..candidates import Candidates
from .api import ApiError, Asked, Drawn, content_text

_LOG = logging.getLogger(__name__)
_CONNECTIONS = 64  # further requests wait for a free one
# Servers close idle connections, uvicorn after 5 s. Closed here before, none is lost in between.
_IDLE_SECONDS = 2.0


class Upstream:
    """A server that draws.

    Args:
        url: with the version, such as http://127.0.0.1:8000/v1.
        most: choices that it gives per request. By default it is asked for all at once, and again
            for the rest if it gives fewer.
        defaults: fields for requests that lack them. Without a temperature many servers take one
            from the model's files, often below 1.
    """

    def __init__(self, url: str, *, most: int | None = None, defaults: Mapping[str, object] | None = None) -> None:
        self.most, self.defaults = most, {"temperature": 1.0, **(defaults or {})}
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(None, connect=10.0),  # the service ends what takes too long
            limits=httpx.Limits(max_connections=_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS),
        )

    async def draw(self, path: str, asked: Asked, number: int, key: str | None) -> Drawn:
        """Draw by as many requests as needed, passing on the client's fields."""
        body = {**self.defaults, **asked.passed_on()}
        choices: list[dict[str, Any]] = []
        usage: Counter[str] = Counter()
        size, model = min(self.most or number, number), asked.model
        while len(choices) < number:
            starts = range(len(choices), number, size)
            bodies = [{**body, "n": min(size, number - start)} for start in starts]
            if asked.seed is not None:  # the same seed would draw the same texts again
                bodies = [{**b, "seed": asked.seed + s} for b, s in zip(bodies, starts, strict=True)]
            answers = await _all(self._send("POST", path, key, each) for each in bodies)
            given = [each.get("choices") or [] for each in answers]
            size = min(size, *map(len, given))
            if size == 0:
                raise ApiError(502, "the upstream server gave no choices")
            choices += [choice for part in given for choice in part]
            for each in answers:
                model = each.get("model", model)
                usage.update({k: v for k, v in (each.get("usage") or {}).items() if type(v) is int})
        named: dict[str, dict[str, Any]] = {}
        with_text = []
        for choice in choices[:number]:  # without refusals and answers cut off in their reasoning
            text = content_text(choice["message"]) if "message" in choice else choice["text"]
            if isinstance(text, str):
                with_text.append(choice)
                named.setdefault(text, choice)
        if not with_text:
            raise ApiError(502, "no choice of the upstream server has a text")
        return Drawn(Candidates.from_openai(with_text), named, model, dict(usage))

    async def models(self, key: str | None) -> object:
        """Return its list of models."""
        return await self._send("GET", "/models", key)

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(
        self, method: str, path: str, key: str | None, body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", **({"Authorization": key} if key else {})}
        try:
            content = None if body is None else json.dumps(body, allow_nan=False).encode()
        except ValueError:
            raise ApiError(400, "the request has NaN or Infinity, which JSON does not") from None
        try:
            answer = await self._client.request(method, path, content=content, headers=headers)
            got = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            _LOG.warning("upstream %s: %s: %s", path, type(error).__name__, error)
            raise ApiError(502, "the upstream server gave no answer that can be read") from error
        if answer.status_code == 200 and isinstance(got, dict):
            return got
        _LOG.warning("upstream %s: status %d: %.500s", path, answer.status_code, answer.text)
        if not 400 <= answer.status_code < 500:
            raise ApiError(502, "the upstream server failed")
        # It is about the client's request, so the client should read it.
        told = got.get("error", got) if isinstance(got, dict) else None
        message = told.get("message") if isinstance(told, dict) else None
        raise ApiError(answer.status_code, str(message or "the upstream server refuses the request"))


async def _all(works: Iterable[Coroutine[Any, Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return all results; if one fails, or the caller is cancelled, cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
