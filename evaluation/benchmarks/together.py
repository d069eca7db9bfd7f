"""What deciding several sources together saves: `python -m evaluation.benchmarks.together`.

The same lists of candidates are decided one by one and together. The utilities are BLEURT's tokens and batches with
a network that costs next to nothing, on an artificial device that charges a fixed time per batch, as an accelerator
does for batches too small to fill it (the process sleeps meanwhile, so that another thread can compute). Shown are the
batches, how full they are and how few the tokens would fill, how long the device was busy and idle, the CPU time of the
process, and what the choice itself took. That the choices are the same is counted, not assumed.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import cast

import torch

from evaluation.assets import DATA_OR_BUILTIN_HELP
from evaluation.benchmarks.candidate_lists import candidate_lists
from evaluation.benchmarks.measures import cpu_seconds
from hf_acpmbr import Recipe
from hf_acpmbr.decoding import Decision
from hf_acpmbr.embedded import UTILITY_FOLDERS
from hf_acpmbr.metrics.bleurt import BLEURT, BLEURTNetwork
from hf_acpmbr.scoring import decide_together
from hf_acpmbr.scoring.checkpoints import read_config

_OF_EACH = "batches | at least | full | pairs in each"
HEADER = (
    f"| decoder | | target {_OF_EACH} | guide {_OF_EACH} | wall s | device busy s | idle | CPU s | choice s |\n"
    f"|{'---|' * 15}"
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


@dataclass(frozen=True)
class Measured:
    """One way of deciding all sources."""

    decisions: list[Decision]
    seconds: float
    cpu_seconds: float
    target: ArtificialDevice
    guide: ArtificialDevice

    def row(self, decoder: str, how: str) -> str:
        busy = self.target.busy + self.guide.busy
        choosing = sum(decision.seconds["choice"] for decision in self.decisions)
        cells = [decoder, how, *self.target.cells(), *self.guide.cells()]
        times = f"{self.seconds:.1f} | {busy:.1f} | {1 - busy / self.seconds:.0%} | {self.cpu_seconds:.1f}"
        return f"| {' | '.join(cells)} | {times} | {choosing:.1f} |"


def measure(decoder: str, lists: list[list[str]], options: argparse.Namespace, joined: bool) -> Measured:
    devices = [ArtificialDevice(name, options.charge, options.batch_tokens) for name in ("embedded", "embedded-d1")]
    recipe = Recipe.named("fast", target="embedded", distilled="embedded-d1", decoder=decoder)
    sources = (recipe.decoder.start(texts, target=devices[0], guides=[devices[1]]) for texts in lists)
    start = time.perf_counter()
    cpu, decisions = cpu_seconds(lambda: decide_together(sources, joined=joined))
    return Measured(decisions, time.perf_counter() - start, cpu, *devices)


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
