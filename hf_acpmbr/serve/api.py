"""Requests, answers and errors in OpenAI's schema."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from ..candidates import Candidates
from ..decision import Decision
from . import RequestLimits

CHAT, TEXT = "/chat/completions", "/completions"


class ApiError(Exception):
    """An answer other than 200. Its text is for the client."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def response(self) -> Response:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return as_json({"error": error}, self.status)


class Wishes(BaseModel):
    """The field `mbr` of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    source: str | None = None  # for utilities that read it; default: the last message of the user, or the prompt
    time_limit: float | None = Field(None, gt=0)  # seconds of scoring, at most the service's


class Asked(BaseModel):
    """A request: the fields that the service reads. The others are for the drawer.

    `best_of` is how many texts are drawn and `n` how many of them are returned, the best ones:
    what both meant in OpenAI's completions, and what vLLM has removed.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    n: int | None = Field(None, ge=1)
    best_of: int | None = Field(None, ge=1)
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[Any] | None = None
    mbr: Wishes | None = None

    @classmethod
    def read(cls, body: bytes, path: str, limits: RequestLimits) -> Asked:
        """Read a request, and refuse one that is malformed or exceeds the limits."""
        try:
            asked = cls.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            param = ".".join(map(str, first["loc"])) or None
            raise ApiError(400, f"{param or 'body'}: {first['msg']}", param) from None
        name, other = ("messages", "prompt") if path == CHAT else ("prompt", "messages")
        given = getattr(asked, name)
        if not given or getattr(asked, other) is not None:
            raise ApiError(400, f"{name} is needed here, not empty and without {other}", name)
        size = len(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))
        if size > limits.most_characters:
            message = f"{name} may have {limits.most_characters} characters, got {size}"
            raise ApiError(400, message, name, "context_length_exceeded")
        if asked.temperature == 0:
            message = "temperature 0 draws the same text again and again: leave it out, or take 1"
            raise ApiError(400, message, "temperature")
        if asked.tools:
            raise ApiError(400, "MBR chooses among texts, not among calls: leave it out", "tools")
        if not (asked.n or 1) <= (asked.best_of or limits.most_candidates) <= limits.most_candidates:
            message = "n may be at most best_of, and best_of at most"
            raise ApiError(400, f"{message} {limits.most_candidates}", "best_of")
        return asked

    @property
    def source(self) -> str | None:
        """Return what is translated or answered; None if it is no text, such as token ids."""
        if self.mbr is not None and self.mbr.source is not None:
            return self.mbr.source
        if self.messages is None:
            return self.prompt if isinstance(self.prompt, str) else None
        by_user = [message for message in self.messages if message.get("role") == "user"]
        return content_text(by_user[-1]) if by_user else None

    def passed_on(self) -> dict[str, Any]:
        """Return the request without what the service does itself, and without nulls."""
        own = {"n", "best_of", "stream", "stream_options", "tools", "mbr"}
        return self.model_dump(exclude_unset=True, exclude_none=True, exclude=own)


class Drawn(NamedTuple):
    """Texts drawn for a request; the other fields as the answer has them."""

    candidates: Candidates
    choices: Mapping[str, Mapping[str, Any]]  # per text the first choice with it
    model: str | None
    usage: Mapping[str, int]


def answer(path: str, asked: Asked, drawn: Drawn, decision: Decision) -> Response:
    """Answer with the n best choices as they were drawn; in one chunk if the request wants a stream."""
    choices: list[dict[str, Any]] = []
    for index, best in enumerate(decision.nbest(asked.n or 1)):
        mbr_of_choice = {"expected_utility": _finite(best.expected), "count": best.count}
        choices.append({**drawn.choices[best.text], "index": index, "mbr": mbr_of_choice})
    mbr = {
        "expected_utility": choices[0]["mbr"]["expected_utility"],
        "expected_regret": _finite(decision.expected_regret),
        "drawn": decision.candidates.total,
        "unique": len(decision.candidates),
        "calls": dict(decision.calls),
        "status": decision.status,
        "seconds": round(sum(decision.seconds.values()), 4),
        "signature": decision.signature,
    }
    name, kind = ("chatcmpl", "chat.completion") if path == CHAT else ("cmpl", "text_completion")
    about = {"id": f"{name}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": drawn.model}
    if not asked.stream:
        return as_json({**about, "choices": choices, "usage": drawn.usage, "mbr": mbr})
    if path == CHAT:
        about["object"] = "chat.completion.chunk"
        for choice in choices:
            choice["delta"] = choice.pop("message")
    chunks: list[dict[str, Any]] = [{**about, "choices": choices, "mbr": mbr}]
    if (asked.stream_options or {}).get("include_usage"):
        chunks.append({**about, "choices": [], "usage": drawn.usage})
    events = [*map(json.dumps, chunks), "[DONE]"]
    return Response("".join(f"data: {event}\n\n" for event in events), media_type="text/event-stream")


def content_text(message: Mapping[str, Any]) -> str | None:
    """Return the content of a message if it is a text, or parts that are all texts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        return "".join(texts) if len(texts) == len(parts) else None
    return content if isinstance(content, str) else None


def as_json(value: object, status: int = 200) -> Response:
    """Return a JSON response; text that UTF-8 cannot encode, such as half an emoji, is escaped."""
    return Response(json.dumps(value), status, media_type="application/json")


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
