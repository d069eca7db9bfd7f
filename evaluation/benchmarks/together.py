"""What deciding several sources together saves: `python -m evaluation.benchmarks.together`.

The same lists of candidates are decided one by one and together. The utilities are BLEURT's tokens and batches with
a network that costs next to nothing, on an artificial device that charges a fixed time per batch, as an accelerator
does for batches too small to fill it (the process sleeps meanwhile, so that another thread can compute). Shown are the
batches, how full they are and how few the tokens would fill, how long the device was busy and idle, the CPU time of the
process, and what the choice itself took. "Simulated" is the idle share on a clock by which a thread waits for the
device and for the other thread, but never for a core: what was measured of each, replayed, so that other jobs of the
machine do not count. That the choices are the same is counted, not assumed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

import torch

from evaluation.assets import DATA_OR_BUILTIN_HELP
from evaluation.benchmarks.candidate_lists import candidate_lists
from evaluation.benchmarks.measures import cpu_seconds
from hf_acpmbr import Recipe
from hf_acpmbr.decoding import Decision
from hf_acpmbr.embedded import UTILITY_FOLDERS
from hf_acpmbr.metrics.bleurt import BLEURT, BLEURTNetwork
from hf_acpmbr.scoring import Source, decide_together, together
from hf_acpmbr.scoring.checkpoints import read_config

_OF_EACH = "batches | at least | full | pairs in each"
HEADER = (
    f"| decoder | | target {_OF_EACH} | guide {_OF_EACH} | wall s | device busy s | idle "
    "| simulated | CPU s | choice s |\n"
    f"|{'---|' * 16}"
)


class BagOfTokens(torch.nn.Module):
    """The cosine of the two texts' mean token vectors: the cheapest network, so that the device's charge is all."""

    def __init__(self, vocabulary: int, size: int = 16) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding(vocabulary, size)

    def forward(self, ids: torch.Tensor, types: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        real = torch.ones_like(ids) if mask is None else mask.long()
        states = self.vectors(ids)
        first, second = (((real * (types == side))[..., None] * states).sum(1) for side in (0, 1))
        return torch.nn.functional.cosine_similarity(first, second)


class ArtificialDevice(BLEURT):
    """BLEURT's tokens and batches, on a device that takes `charge` seconds for every batch."""

    def __init__(self, name: str, charge: float, batch_tokens: int) -> None:
        super().__init__(str(UTILITY_FOLDERS[name]), name=name, batch_tokens=batch_tokens, parameters=1)
        torch.manual_seed(len(name))
        self.charge, self.busy, self.sizes = charge, 0.0, list[int]()
        self.tokens = self.padded_tokens = 0
        self.bag = BagOfTokens(int(read_config(self.folder)["vocab_size"]))

    @property
    def network(self) -> BLEURTNetwork:
        return cast(BLEURTNetwork, self._charged)

    def _charged(self, ids: torch.Tensor, types: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        start = time.perf_counter()
        self.sizes.append(len(ids))
        self.tokens += ids.numel() if mask is None else int(mask.sum())
        self.padded_tokens += ids.numel()
        scores: torch.Tensor = self.bag(ids, types, mask)
        time.sleep(max(0.0, self.charge - (time.perf_counter() - start)))
        self.busy += time.perf_counter() - start
        return scores

    def cells(self) -> list[str]:
        """Return batches, how few the tokens would fill without padding, how full they were, and pairs in each."""
        batches, budget = max(len(self.sizes), 1), self.batch_tokens
        full = self.padded_tokens / (budget * batches)
        return [f"{batches:,}", f"{-(-self.tokens // budget):,}", f"{full:.0%}", f"{sum(self.sizes) / batches:.1f}"]


@dataclass
class Clock:
    """The turns of the driver: what computing took, then what scoring took, of the thread itself and of the device."""

    devices: Sequence[ArtificialDevice]
    computed: list[tuple[int, float]] = field(default_factory=list)  # group of sources, and seconds
    scored: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # per group, thread and device

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time every step of a decoder and every scoring by the CPU time of its thread."""
        advance, serve = Source.advance, together.serve
        group: dict[int, int] = {}  # of each source: that of the kernels it is scored with

        def timed(work: Callable[[], object]) -> float:
            start = time.thread_time()
            work()
            return time.thread_time() - start

        def advanced(source: Source[Any]) -> None:
            self.computed.append((id(source), timed(lambda: advance(source))))

        def served(sources: Sequence[Source[Any]], kernels: Any) -> None:
            group.update((id(source), id(kernels)) for source in sources)
            asked = any(source.asks for source in sources)
            before = sum(len(device.sizes) for device in self.devices)
            seconds = timed(lambda: serve(sources, kernels))
            batches = sum(len(device.sizes) for device in self.devices) - before
            if asked:
                self.scored.setdefault(id(kernels), []).append((seconds, batches * self.devices[0].charge))

        with mock.patch.object(Source, "advance", advanced), mock.patch.object(together, "serve", served):
            yield
        self.computed = [(group[source], seconds) for source, seconds in self.computed]

    def idle(self) -> float:
        """Replay the turns: a group computes once it is scored, and is scored once it has computed, one at a time."""
        if len(self.scored) == 1:  # one after the other
            charged = sum(charge for turns in self.scored.values() for _, charge in turns)
            own = sum(seconds for _, seconds in self.computed)
            return 1 - charged / (charged + own + sum(thread for turns in self.scored.values() for thread, _ in turns))
        host = device = charged = 0.0
        ready: dict[int, float] = {}
        waiting = {group: iter(turns) for group, turns in self.scored.items()}
        for k, (group, seconds) in enumerate(self.computed):
            host = max(host, ready.get(group, 0.0)) + seconds
            if k + 1 == len(self.computed) or self.computed[k + 1][0] != group:
                thread, charge = next(waiting[group], (0.0, 0.0))
                device = ready[group] = max(device, host) + thread + charge
                charged += charge
        return 1 - charged / max(host, device)


@dataclass(frozen=True)
class Measured:
    """One way of deciding all sources."""

    decisions: list[Decision]
    seconds: float
    cpu_seconds: float
    target: ArtificialDevice
    guide: ArtificialDevice
    idle: float  # on the simulated clock

    def row(self, decoder: str, how: str) -> str:
        busy = self.target.busy + self.guide.busy
        choosing = sum(decision.seconds["choice"] for decision in self.decisions)
        cells = [decoder, how, *self.target.cells(), *self.guide.cells()]
        idle = f"{1 - busy / self.seconds:.0%}", f"{self.idle:.0%}"
        times = f"{self.seconds:.1f}", f"{busy:.1f}", *idle, f"{self.cpu_seconds:.1f}", f"{choosing:.1f}"
        return f"| {' | '.join([*cells, *times])} |"


def measure(decoder: str, lists: list[list[str]], options: argparse.Namespace, joined: bool) -> Measured:
    devices = [ArtificialDevice(name, options.charge, options.batch_tokens) for name in ("embedded", "embedded-d1")]
    recipe = Recipe.named("fast", target="embedded", distilled="embedded-d1", decoder=decoder)
    sources = (recipe.decoder.start(texts, target=devices[0], guides=[devices[1]]) for texts in lists)
    clock = Clock(devices)
    start = time.perf_counter()
    with clock.watching():
        cpu, decisions = cpu_seconds(lambda: decide_together(sources, joined=joined))
    target, guide = devices
    return Measured(decisions, time.perf_counter() - start, cpu, target, guide, clock.idle())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=32)
    parser.add_argument("--samples", type=int, default=256, help="of each source")
    parser.add_argument("--charge", type=float, default=0.05, help="seconds that the device takes for a batch")
    parser.add_argument("--batch-tokens", type=int, default=32768)
    parser.add_argument("--decoders", nargs="+", default=["rounds", "acpmbr"])
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lists = [made.texts for made in candidate_lists(options.sources, options.samples, data=options.data)]
    print(f"{options.sources} sources, {options.samples} samples, {options.charge} s per batch\n\n{HEADER}")
    for decoder in options.decoders:
        alone = measure(decoder, lists, options, joined=False)
        print(alone.row(decoder, "one by one"), flush=True)
        together = measure(decoder, lists, options, joined=True)
        print(together.row(decoder, "together"), flush=True)
        same = sum(a.text == b.text for a, b in zip(alone.decisions, together.decisions, strict=True))
        print(f"\nthe same choice for {same} of {len(lists)} sources\n", flush=True)


if __name__ == "__main__":
    main()
