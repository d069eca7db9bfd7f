"""A bounded load test on loopback: 200 requests, 8 at a time; every one must be answered, and with JSON.

python examples/fastapi_service/load_test.py
python examples/fastapi_service/load_test.py --url http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

SENTENCES = ["Good morning!", "Where is the station?", "Tom is reading a book.", "It is raining.", "See you soon."]


def request_of(number: int, time_limit: float) -> tuple[bytes, int]:
    """The body of a request and the status that it should have; one in ten is wrong on purpose."""
    if number % 20 == 7:
        return b'{"texts": []}', 422
    if number % 20 == 17:
        return b"not JSON", 422
    texts = [SENTENCES[(number + k) % len(SENTENCES)] for k in range(1 + number % 3)]
    return json.dumps({"texts": texts, "time_limit": time_limit}).encode(), 200


def send(url: str, body: bytes, timeout: float = 120.0) -> tuple[int, Any, float]:
    """Status, JSON and seconds of one request. What is not JSON raises."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    try:
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), time.perf_counter() - start
    finally:
        connection.close()


def load(url: str, requests: int = 200, at_once: int = 8, time_limit: float = 5.0) -> dict[str, Any]:
    """Send them all; raises if one is lost, wrong or not JSON."""

    def one(number: int) -> tuple[int, float, bool, list[int]]:
        body, expected = request_of(number, time_limit)
        status, answer, seconds = send(url, body)
        if status != expected:
            raise AssertionError(f"request {number}: status {status}, expected {expected}: {answer}")
        if status != 200:
            assert set(answer) == {"error"}, answer
            return status, seconds, True, []
        assert len(answer["results"]) == len(json.loads(body)["texts"]), answer
        return status, seconds, answer["in_time"], [result["candidates"] for result in answer["results"]]

    start = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(one, range(requests)))
    seconds = sorted(seconds for status, seconds, _, _ in answers if status == 200)
    return {
        "requests": requests,
        "answered": len(answers),
        "statuses": dict(Counter(status for status, *_ in answers)),
        "texts_by_candidates": dict(sorted(Counter(size for *_, sizes in answers for size in sizes).items())),
        "in_time": sum(in_time for status, _, in_time, _ in answers if status == 200),
        "median_seconds": round(statistics.median(seconds), 3),
        "slowest_seconds": round(seconds[-1], 3),
        "total_seconds": round(time.perf_counter() - start, 2),
    }


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of a server that runs in a thread on a free port of loopback."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not server.started:
        if time.monotonic() > deadline or not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a running service; default: one is started here with the embedded translator")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--time-limit", type=float, default=5.0)
    args = parser.parse_args()
    options = {"requests": args.requests, "at_once": args.at_once, "time_limit": args.time_limit}
    if args.url:
        print(json.dumps(load(args.url, **options)))
        return
    from app import from_environment

    with served(from_environment()) as url:
        print(json.dumps(load(url, **options)))
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        connection.request("GET", "/health")
        print(connection.getresponse().read().decode())


if __name__ == "__main__":
    main()
