"""What the trainers of the embedded models share: optimisers, a schedule over a time budget, the curve."""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

# Quintics a·x + b·x³ + c·x⁵ whose composition drives singular values in (0.001, 1] towards 1 as fast as this degree
# allows ("Polar Express", Amsel et al. 2025, arXiv 2505.16932).
POLAR_QUINTICS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
# The quintics that a training applies: the first three come close enough, and each costs three products.
ITERATIONS = 3


class Batch(Protocol):
    """One batch; `tokens` is what it costs, padding included."""

    @property
    def tokens(self) -> int: ...


B = TypeVar("B", bound=Batch)
# (sum of the losses, number of terms) of a batch.
Loss = Callable[[B], tuple[torch.Tensor, int]]


def orthogonalise(matrices: torch.Tensor, steps: int) -> torch.Tensor:
    """Approximate the polar factors of a stack of matrices, shape (K, m, n) with m <= n."""
    x: torch.Tensor = matrices / (1.01 * matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in POLAR_QUINTICS[:steps]:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose matrix is replaced by its nearest orthogonal one (Jordan et al. 2024), in any precision.

    torch's own Muon orthogonalises in bfloat16, which processors without bf16 units emulate about a hundred times
    slower. Matrices of equal shapes are orthogonalised as one stack.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float,
        momentum: float = 0.95,
        steps: int = ITERATIONS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "steps": steps})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            stacks: dict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(buffer, group["momentum"])
                wide = update if update.shape[0] <= update.shape[1] else update.mT
                stacks[tuple(wide.shape)].append((parameter, wide))
            for pairs in stacks.values():
                stack = torch.stack([wide for _, wide in pairs]).to(self.dtype)
                polar = orthogonalise(stack, group["steps"]).float()
                for (parameter, _), update in zip(pairs, polar, strict=True):
                    rows, columns = parameter.shape
                    change = update if rows <= columns else update.mT
                    parameter.add_(change, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def length_batches(
    lengths: np.ndarray, batch_tokens: int, seed: int, epoch: int, rows: np.ndarray | None = None
) -> list[np.ndarray]:
    """Plan one epoch: indices of each batch, examples of nearly equal lengths in random order, so little is padded.

    Args:
        lengths: (n, k) lengths of the k sequences of each example; a batch costs rows × the longest total.
        batch_tokens: at most this cost.
        rows: (n,) rows of each example; one unless given.
    """
    rows = np.ones(len(lengths), dtype=int) if rows is None else rows
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    order = order[np.lexsort(lengths[order].T[::-1])]
    batches, first, longest, height = [], 0, 0, 0
    for i, k in enumerate(order):
        total = int(lengths[k].sum())
        longest, height = max(longest, total), height + int(rows[k])
        if i > first and longest * height > batch_tokens:
            batches.append(order[first:i])
            first, longest, height = i, total, int(rows[k])
    batches.append(order[first:])
    return [batches[i] for i in rng.permutation(len(batches))]


def build_optimisers(model: torch.nn.Module, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Give the layers' matrices to Muon, and embeddings, biases and norms to AdamW."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and ".layer" in name]
    others = [p for name, p in named if not (p.ndim == 2 and ".layer" in name)]
    dtype = torch.bfloat16 if args.bfloat16 else torch.float32
    adam = torch.optim.AdamW(others, lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    return [adam, Muon(matrices, lr=args.muon_rate, dtype=dtype)]


class Trainer(Generic[B]):
    """Model, optimisers and clock of one run."""

    def __init__(self, model: torch.nn.Module, loss: Loss[B], args: argparse.Namespace) -> None:
        self.model, self.loss, self.args = model, loss, args
        self.optimisers = build_optimisers(model, args)
        self.rates = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]
        self.step = self.tokens = self.epoch = 0
        self.seconds = 0.0

    def progress(self) -> float:
        """Return the share of the budget that is used: of the time, or of `--steps`, which makes a run repeatable."""
        return float(self.step / self.args.steps if self.args.steps else self.seconds / (60 * self.args.minutes))

    def update(self, batch: B) -> float:
        """Take one step at the schedule's rate: a short warm-up, then linearly down to 0 at the budget's end."""
        factor = min(1.0, (self.step + 1) / self.args.warmup) * max(0.0, 1.0 - self.progress())
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * factor
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.args.bfloat16):
            loss, count = self.loss(batch)
        mean: Any = loss / count
        mean.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += batch.tokens
        return float(loss.detach()) / count

    def run(
        self,
        plan: Callable[[int], list[np.ndarray]],
        make: Callable[[np.ndarray], B],
        evaluate: Callable[[], dict[str, float]],
        folder: Path,
    ) -> None:
        """Train to the end of the budget; write the curve to `folder/curve.jsonl`.

        Args:
            plan: epoch → indices of its batches.
            make: indices → batch.
            evaluate: figures for the curve.
        """
        folder.mkdir(parents=True, exist_ok=True)
        smoothed, start = 0.0, time.monotonic()
        self.model.train()
        with (folder / "curve.jsonl").open("w", encoding="utf-8") as curve:
            while self.progress() < 1.0:
                for indices in plan(self.epoch):
                    loss = self.update(make(indices))
                    smoothed = loss if smoothed == 0.0 else 0.98 * smoothed + 0.02 * loss
                    self.seconds = time.monotonic() - start
                    finished = self.progress() >= 1.0
                    if self.step % self.args.eval_every == 0 or finished:
                        record = self._record(smoothed, evaluate)
                        print(record, file=curve, flush=True)
                        print(record, flush=True)
                    if finished:
                        return
                self.epoch += 1

    def _record(self, train_loss: float, evaluate: Callable[[], dict[str, float]]) -> str:
        self.model.eval()
        with torch.no_grad():
            figures = evaluate()
        self.model.train()
        counters = {"step": self.step, "epoch": self.epoch, "tokens": self.tokens, "seconds": self.seconds}
        record = {**counters, "train_loss": train_loss, **figures}
        return json.dumps({name: round(value, 4) for name, value in record.items()})


def add_training_arguments(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """Add the options of `Trainer`."""
    options = parser.add_argument_group("training")
    options.add_argument("--minutes", type=float, help="time budget at whose end the rate is 0")
    options.add_argument("--steps", type=int, default=0, help="budget in steps instead: the repeatable schedule")
    options.add_argument("--batch-tokens", type=int, default=3600, help="tokens per batch, padding included")
    options.add_argument("--rate", type=float, default=3e-3, help="AdamW's peak rate")
    options.add_argument("--muon-rate", type=float, default=0.02, help="Muon's peak rate")
    options.add_argument(
        "--bfloat16",
        action="store_true",
        help="mixed precision: twice as fast on processors with bf16 units (avx512_bf16, amx), far slower without",
    )
    options.add_argument("--warmup", type=int, default=100, help="steps until the peak rate")
    options.add_argument("--eval-every", type=int, default=200, help="steps between two points of the curve")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--seed", type=int, default=1)
    parser.set_defaults(**defaults)


def prepare_process(args: argparse.Namespace) -> None:
    """Set threads and seed; round denormal numbers, which are slow and say nothing, to 0."""
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
