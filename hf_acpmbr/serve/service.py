"""The service: reads requests, has texts drawn, chooses, answers, and counts what it did."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..candidates import Candidates
from ..decision import Decision
from ..mbr import ACPMBR
from . import RequestLimits
from .api import CHAT, TEXT, ApiError, Asked, answer, as_json
from .batcher import Batcher
from .local import Local
from .upstream import Upstream

_LOG = logging.getLogger(__name__)
_RERANKED_TOGETHER = 32  # requests; more make the first of them wait longer for little
_CLIENT_GONE = 499  # nobody reads it; this number is usual in metrics
_SHARED = tuple[Candidates, "str | None"]  # what a request brings to a batch: candidates and source


class Service:
    """MBR behind OpenAI's API: `Service(ACPMBR(target="chrf"), Upstream(url)).app` speaks ASGI.

    Args:
        mbr: how to choose. A time limit of its recipe is seconds of scoring per batch of requests.
        drawer: who draws.
    """

    def __init__(self, mbr: ACPMBR, drawer: Upstream | Local, limits: RequestLimits | None = None) -> None:
        self.mbr, self.drawer, self.limits = mbr, drawer, limits or RequestLimits()
        if mbr.recipe.sampling.num_references is not None:
            raise ValueError("num_references: the service draws candidates alone, which serve as both; leave it out")
        self._utilities = [one for one in (mbr.target, *mbr.guides) if one is not None]
        self._reranks: Batcher[_SHARED, Decision] = Batcher(self._rerank, _RERANKED_TOGETHER)
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._open = 0
        self.app = Starlette(
            routes=[
                Route(f"/v1{CHAT}", partial(self._respond, CHAT), methods=["POST"]),
                Route(f"/v1{TEXT}", partial(self._respond, TEXT), methods=["POST"]),
                Route("/v1/models", partial(self._respond, None)),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={HTTPException: _not_served},
            lifespan=self._closing,
        )

    def warm_up(self) -> None:
        """Load the utilities, and refuse a decoder that cannot choose here."""
        texts = Candidates.from_texts(["Hello!", "Good day!"], logprobs=[-1.0, -1.5])
        self.mbr.rerank(texts, source="Hello!")

    @contextlib.asynccontextmanager
    async def _closing(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.drawer.close()

    async def _respond(self, path: str | None, request: Request) -> Response:
        """Answer a request; whatever goes wrong becomes an error that the client may read."""
        start = time.monotonic()
        self._open += 1
        try:
            if self._open > self.limits.most_requests:
                raise ApiError(503, "too many requests are being answered: try again later")
            reading = _body(request, self.limits.most_bytes)
            body = await asyncio.wait_for(reading, self.limits.timeout)
            response = await self._attended(request, self._answer(path, request, body))
        except ApiError as error:
            response = error.response()
        except asyncio.TimeoutError:
            message = f"not done within {self.limits.timeout:g} s: ask for fewer or shorter texts"
            response = ApiError(504, message).response()
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_GONE)
        except Exception:
            name = uuid.uuid4().hex
            _LOG.exception("request %s failed", name)
            response = ApiError(500, f"failed; the service's log knows why, as {name}").response()
        finally:
            self._open -= 1
        self._counts[f'requests_total{{status="{response.status_code}"}}'] += 1
        self._counts["request_seconds_total"] += time.monotonic() - start
        return response

    async def _attended(self, request: Request, work: Coroutine[Any, Any, Response]) -> Response:
        """Await the work until it takes too long or the client has gone; then cancel it."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({task, gone}, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientDisconnect if gone.done() else asyncio.TimeoutError
        finally:
            task.cancel()
            gone.cancel()

    async def _answer(self, path: str | None, request: Request, body: bytes) -> Response:
        key = request.headers.get("Authorization")
        if path is None:
            return as_json(await self.drawer.models(key))
        asked = Asked.read(body, path, self.limits)
        source, limit = asked.source, self._time_limit(asked)
        if source is None and any(utility.needs_source for utility in self._utilities):
            raise ApiError(400, "the utility reads the source: give mbr.source", "mbr.source")
        number = asked.best_of or max(self.limits.num_candidates, asked.n or 1)
        start = time.monotonic()
        drawn = await self.drawer.draw(path, asked, number, key)
        middle = time.monotonic()
        decision = await self._reranks.submit(limit, (drawn.candidates, source))
        self._counts["draw_seconds_total"] += middle - start
        self._counts["rerank_seconds_total"] += time.monotonic() - middle
        self._counts["candidates_total"] += drawn.candidates.total
        self._counts["unique_candidates_total"] += len(drawn.candidates)
        for name, calls in decision.calls.items():
            self._counts[f"utility_calls_total{{utility={json.dumps(name)}}}"] += calls
        return answer(path, asked, drawn, decision)

    def _time_limit(self, asked: Asked) -> float | None:
        """Return the seconds of scoring of this request; None without a limit."""
        wish = None if asked.mbr is None else asked.mbr.time_limit
        if wish is not None and not hasattr(self.mbr.decoder, "time_limit"):
            message = f"decoder {self.mbr.decoder.name!r} takes no time limit: leave it out"
            raise ApiError(400, message, "mbr.time_limit")
        limits = (wish, getattr(self.mbr.decoder, "time_limit", None))
        return min((limit for limit in limits if limit is not None), default=None)

    def _rerank(self, limit: float | None, shared: Sequence[_SHARED]) -> list[Decision]:
        """Choose for requests with the same time limit, which they share."""
        mbr = self.mbr
        if limit is not None:
            recipe = mbr.recipe.changed(time_limit=limit / len(shared))
            mbr = ACPMBR(target=mbr.target, distilled=mbr.guides, recipe=recipe)
        return mbr.rerank_many([pool for pool, _ in shared], [source for _, source in shared])

    async def _health(self, request: Request) -> Response:
        return as_json({"status": "ok", "open_requests": self._open})

    async def _metrics(self, request: Request) -> Response:
        """Return the counters in Prometheus' text format."""
        counts = {**self._counts, "rerank_batches_total": self._reranks.batches}
        lines = ["# TYPE acpmbr_open_requests gauge", f"acpmbr_open_requests {self._open}"]
        family = ""
        for name in sorted(counts):
            if family != (family := name.split("{")[0]):
                lines.append(f"# TYPE acpmbr_{family} counter")
            lines.append(f"acpmbr_{name} {counts[name]:.12g}")
        return PlainTextResponse("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4")


async def _body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise ApiError(413, f"a request may have {most} bytes")
    return bytes(body)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _not_served(request: Request, error: Exception) -> Response:
    """Refuse unknown addresses and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return ApiError(status, f"{request.method} {request.url.path} is not served here").response()
