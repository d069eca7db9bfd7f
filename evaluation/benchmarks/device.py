"""What this machine's device does, as a table to paste into an issue: `make gpu-report` (about five minutes).

No downloads and no data: the embedded translator and utilities, and a network of BLEURT-20-D12's shape with random
weights. The same sentences are drawn and chosen on the device and on the CPU; then drawing and scoring are timed on the
device, beside a matrix product of that network's shape. Without an accelerator the CPU stands for it, and the table
says so.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import hf_acpmbr
from evaluation.assets import BUILTIN_SENTENCES, read_lines
from evaluation.benchmarks.scoring import D12, write_bleurt
from hf_acpmbr import ACPMBR
from hf_acpmbr.devices import checked_device, computes_in, default_device
from hf_acpmbr.generation.models import load_model
from hf_acpmbr.metrics.bleurt import BLEURT

_PAIRS = {"cpu": 256}  # pairs to score; an accelerator needs more to show what it can
_MANY = 16384


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return how long some work takes, until the device has done it."""
    wait = getattr(getattr(torch, device.type), "synchronize", lambda: None)
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


class Drawing:
    """Drawing and choosing for a few sources, everything in float32 on one device."""

    def __init__(self, device: torch.device, sources: list[str], samples: int) -> None:
        self.model, tokenizer, self.options = load_model("embedded", device=str(device), dtype="float32")
        self.inputs = tokenizer(sources, return_tensors="pt", padding=True).to(device)
        roles = {"target": "embedded", "distilled": "embedded-d1"}
        utilities = {role: {"name": name, "device": str(device), "dtype": "float32"} for role, name in roles.items()}
        self.mbr = ACPMBR(tokenizer, num_candidates=samples, **utilities)  # type: ignore[arg-type]

    def __call__(self) -> Any:
        settings = {**self.options, "custom_generate": self.mbr, "return_dict_in_generate": True}
        return self.model.generate(**self.inputs, **settings)

    def waits(self) -> str:
        """Count by CUDA's own report how often a call waits for the device."""
        if self.inputs["input_ids"].device.type != "cuda":
            return "counted on CUDA only"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            length = self().sequences.shape[1] - 1
            torch.cuda.set_sync_debug_mode("default")
        return f"{sum('synchroniz' in str(warning.message) for warning in said)} in a call of {length} steps"


def report(device: torch.device, samples: int) -> Iterator[tuple[str, str]]:
    """Measure one line of the table after the other; what fails is in it as its error."""
    sources = [row["en"] for row in read_lines(BUILTIN_SENTENCES)][:8]
    own = getattr(torch, device.type)
    halves = [name for name in ("float16", "bfloat16") if computes_in(name, str(device))]
    yield from {
        "versions": f"hf_acpmbr {hf_acpmbr.__version__}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, Python {platform.python_version()}",
        "device": f"{device}, {getattr(own, 'get_device_name', lambda _: platform.machine())(device)}",
        "an accelerator": "yes" if device.type != "cpu" else "NO: these are the numbers of a CPU",
        "half precision": ", ".join(halves) or "none",
    }.items()
    drawing = Drawing(device, sources, samples)

    def choices() -> str:
        chosen, expected = drawing(), Drawing(torch.device("cpu"), sources, samples)()
        same = sum(one == other for one, other in zip(chosen.texts, expected.texts, strict=True))
        drawn = sum(
            set(one.texts) == set(other.texts)
            for one, other in zip(chosen.candidates, expected.candidates, strict=True)
        )
        return f"{same} of {len(sources)} choices and {drawn} lists of candidates are those of the CPU"

    def speed() -> str:
        took = seconds(drawing, device)
        return f"{len(sources)} sources × {samples} samples, drawn and chosen: {took:.2f} s"

    def scoring() -> str:
        with tempfile.TemporaryDirectory() as folder:
            write_bleurt(Path(folder))
            utility = BLEURT(folder, device=str(device))
            count = _PAIRS.get(device.type, _MANY)
            texts = [f"{source} {number}" for number in range(count // len(sources)) for source in sources]
            rows = np.arange(len(texts))
            utility.prepare(texts, texts)(rows[:64], rows[:64])  # loads, and compiles kernels
            scorer = utility.prepare(texts, texts)
            took = seconds(lambda: scorer(rows, rows[::-1].copy()), device)
        statistics = scorer.statistics
        # Twice the weights of a layer's products per token, against one product of the widest.
        work = 2 * statistics.padded_tokens * D12.layers * (4 * D12.width**2 + 2 * D12.width * D12.feed_forward)
        left = torch.randn(utility.batch_tokens, D12.width, device=device, dtype=getattr(torch, utility.dtype))
        right = torch.randn(D12.width, D12.feed_forward, device=device, dtype=left.dtype)
        product = min(seconds(lambda: left @ right, device) for _ in range(5))
        limit = 2 * left.numel() * D12.feed_forward / product
        return (
            f"{len(texts) / took:,.0f} pairs per second in {utility.dtype}, {statistics.batches} batches, padding "
            f"{statistics.padding:.0%}, halved {statistics.out_of_memory} times; {work / took / limit:.0%} of the "
            f"speed of a matrix product ({limit / 1e12:.2f} TFLOP/s)"
        )

    parts = {"choices": choices, "drawing": speed, "waits": drawing.waits, "BLEURT-20-D12's shape": scoring}
    for name, part in parts.items():
        try:
            yield name, part()
        except Exception as error:
            yield name, f"FAILED, {type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="default: the accelerator that torch sees, else cpu")
    parser.add_argument("--samples", type=int, default=256, help="of each source")
    options = parser.parse_args()
    device = torch.device(default_device() if options.device is None else checked_device(options.device))
    print("| | |\n|---|---|")
    for name, value in report(device, options.samples):
        print(f"| {name} | {' '.join(value.split())} |", flush=True)


if __name__ == "__main__":
    main()
