"""MBR decoding as a service: concurrent requests are batched, each has a time limit, every error is JSON.

    pip install fastapi uvicorn
    uvicorn app:app --app-dir examples/fastapi_service
    curl localhost:8000/translate -H 'Content-Type: application/json' -d '{"texts": ["Good morning!"], "time_limit": 2}'

ACPMBR_MODEL, ACPMBR_TARGET and ACPMBR_DISTILLED name the model and the utilities.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from batching import Batcher, BusyError
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException
from translating import Translator

from hf_acpmbr.generation.models import load_model

MOST_TEXTS, MOST_CHARACTERS, LONGEST_LIMIT = 16, 2000, 60.0
Text = Annotated[str, StringConstraints(max_length=MOST_CHARACTERS)]


class Query(BaseModel):
    """What a request asks for."""

    model_config = ConfigDict(extra="forbid")
    texts: list[Text] = Field(min_length=1, max_length=MOST_TEXTS)
    time_limit: float = Field(default=5.0, gt=0, le=LONGEST_LIMIT, description="seconds")


def make_app(translator: Translator, most_waiting: int = 64) -> FastAPI:
    """The service around a translator."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batcher = Batcher(translator.translate, most_texts=MOST_TEXTS, most_waiting=most_waiting)
        await asyncio.to_thread(translator.warm_up)
        worker = asyncio.create_task(app.state.batcher.work())
        yield
        worker.cancel()

    app = FastAPI(title="MBR decoding", lifespan=lifespan)

    @app.post("/translate")
    async def translate(query: Query) -> dict[str, Any]:
        start = time.monotonic()
        results = await app.state.batcher.submit(query.texts, query.time_limit)
        seconds = time.monotonic() - start
        return {"results": results, "seconds": round(seconds, 3), "in_time": seconds <= query.time_limit}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        batches = app.state.batcher.batches
        return {"waiting": len(app.state.batcher.waiting), "batches": len(batches), "texts": sum(batches)}

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=503, headers={"Retry-After": "1"})

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{'.'.join(map(str, e['loc'][1:])) or 'body'}: {e['msg']}" for e in error.errors()]
        return JSONResponse({"error": "; ".join(problems)}, status_code=422)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, status_code=error.status_code)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"{type(error).__name__}: {error}"}, status_code=500)

    return app


def from_environment() -> FastAPI:
    """The service with the model and utilities that the environment names."""
    model, tokenizer, language = load_model(os.environ.get("ACPMBR_MODEL", "embedded"))
    distilled = tuple(filter(None, os.environ.get("ACPMBR_DISTILLED", "").split(",")))
    target = os.environ.get("ACPMBR_TARGET", "chrf")
    return make_app(Translator(model, tokenizer, {"max_new_tokens": 128, **language}, target, distilled))


def __getattr__(name: str) -> FastAPI:
    """`app` is made when a server asks for it, so that importing this file loads no model."""
    if name != "app":
        raise AttributeError(name)
    globals()["app"] = from_environment()
    return globals()["app"]  # type: ignore[no-any-return]
