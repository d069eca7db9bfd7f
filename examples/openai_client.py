"""OpenAI's client with MBR behind it; needs openai and the extra serve. Only the base_url is another one.

python examples/openai_client.py                                          # starts acpmbr serve with the embedded model
python examples/openai_client.py --until-sure 128     # MBR runs here, and asks for samples until its choice is sure
python examples/openai_client.py --base-url http://127.0.0.1:8080/v1 --model NAME --requests 200 --at-once 8
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

from hf_acpmbr import ACPMBR

SENTENCES = ["Good morning!", "Where is the station?", "Tom is reading a book.", "It is raining.", "See you soon."]


@contextlib.contextmanager
def started() -> Iterator[str]:
    """Start a service, yield its address, and stop it afterwards."""
    command = [sys.executable, "-m", "hf_acpmbr", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr or ():
                if found := re.search(r"running on (http://\S+)", line):
                    yield f"{found[1]}/v1"
                    return
            raise RuntimeError("the service did not start")
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of a running service; default: one is started here")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--prompt", default="{source}", help="what the model reads, with {source} for the sentence")
    parser.add_argument("--best-of", type=int, default=32, help="texts drawn per request")
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--until-sure", type=int, help="draw until MBR by chrF is sure, at most this number of texts")
    args = parser.parse_args()

    def sample(seed: int) -> str:
        answer = client.chat.completions.create(
            model=args.model,
            messages=[{"role": "user", "content": args.prompt.replace("{source}", SENTENCES[0])}],
            seed=seed,
            max_tokens=48,
            extra_body={"best_of": 1},  # acpmbr serve returns the best of best_of texts: of one that is a sample
        )
        return answer.choices[0].message.content or ""

    def more(n: int) -> list[str]:
        with ThreadPoolExecutor(args.at_once) as pool:
            return list(pool.map(sample, itertools.islice(seeds, n)))

    def send(number: int) -> tuple[str, float]:
        source = SENTENCES[number % len(SENTENCES)]
        start = time.perf_counter()
        answer = client.chat.completions.create(
            model=args.model,
            messages=[{"role": "user", "content": args.prompt.replace("{source}", source)}],
            seed=number,
            max_tokens=48,
            extra_body={"best_of": args.best_of, "mbr": {"source": source}},
        )
        seconds, mbr = time.perf_counter() - start, answer.mbr  # type: ignore[attr-defined]
        spent = f"expected {mbr['expected_utility']:.1f}, {mbr['unique']} different of {mbr['drawn']}"
        return f"{source} → {answer.choices[0].message.content}  ({spent})", seconds

    with contextlib.nullcontext(args.base_url) if args.base_url else started() as url:
        client, start = OpenAI(base_url=url, api_key="none"), time.perf_counter()
        if args.until_sure:
            seeds = itertools.count()
            mbr = ACPMBR(target="chrf", num_candidates="auto", max_candidates=args.until_sure)
            decision = mbr.rerank(more(32), more=more)
            print(f"{SENTENCES[0]} → {decision.text}  ({decision.status})")
            return
        with ThreadPoolExecutor(args.at_once) as pool:
            answers = list(pool.map(send, range(args.requests)))
        total = time.perf_counter() - start
    print("\n".join(line for line, _ in answers[: len(SENTENCES)]))
    middle = statistics.median(seconds for _, seconds in answers)
    print(f"{len(answers)} requests, {args.at_once} at a time: {total:.1f} s, half of them within {middle:.2f} s")


if __name__ == "__main__":
    main()
