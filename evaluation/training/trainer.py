"""What the trainers of the embedded models share: optimisers, a schedule over a time budget, checkpoints, the curve."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from evaluation.training.muon import Muon


class Batch(Protocol):
    """One batch; `tokens` is what it costs, padding included."""

    @property
    def tokens(self) -> int: ...


B = TypeVar("B", bound=Batch)
# (sum of the losses, number of terms) of a batch.
Loss = Callable[[B], tuple[torch.Tensor, int]]


def length_batches(
    lengths: np.ndarray, batch_tokens: int, seed: int, epoch: int, rows: np.ndarray | None = None
) -> list[np.ndarray]:
    """Indices of each batch of one epoch: shuffled examples of nearly equal lengths, so that little is padded.

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


def endless(
    plan: Callable[[int], list[np.ndarray]], make: Callable[[np.ndarray], B], start: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], B]]:
    """Batches of epoch after epoch from (epoch, index) on, each with the position that follows it."""
    epoch, index = start
    while True:
        batches = plan(epoch)
        for i in range(index, len(batches)):
            yield ((epoch, i + 1) if i + 1 < len(batches) else (epoch + 1, 0)), make(batches[i])
        epoch, index = epoch + 1, 0


def build_optimisers(model: torch.nn.Module, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """AdamW for embeddings, biases and norms; Muon for the layers' matrices unless its rate is 0."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and ".layer" in name]
    others = [p for name, p in named if not (p.ndim == 2 and ".layer" in name)]
    adam: dict[str, Any] = {"lr": args.rate, "betas": (0.9, 0.98), "weight_decay": 0.0, "fused": True}
    if args.muon_rate > 0:
        dtype = torch.bfloat16 if args.bfloat16 else torch.float32
        muon = Muon(matrices, lr=args.muon_rate, steps=args.muon_steps, dtype=dtype)
        return [torch.optim.AdamW(others, **adam), muon]
    return [torch.optim.AdamW(others + matrices, **adam)]


class Trainer(Generic[B]):
    """Position, clock and optimiser state of one run; everything that a resumed run needs is in its checkpoint."""

    def __init__(self, model: torch.nn.Module, loss: Loss[B], args: argparse.Namespace) -> None:
        self.model, self.loss, self.args = model, loss, args
        self.optimisers = build_optimisers(model, args)
        self.rates = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]
        self.step = self.tokens = 0
        self.position = (0, 0)
        self.seconds = 0.0

    def progress(self) -> float:
        """The part of the budget that is used: by time, or by steps where `--steps` makes the run repeatable."""
        return float(self.step / self.args.steps if self.args.steps else self.seconds / (60 * self.args.minutes))

    def update(self, batch: B) -> float:
        """One step at the rate of the schedule: a short warm-up, then linearly down to 0 at the budget's end."""
        factor = min(1.0, (self.step + 1) / self.args.warmup) * max(0.0, 1.0 - self.progress())
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
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

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "random": torch.get_rng_state(),
            "counters": (self.step, self.tokens, self.position, self.seconds),
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        self.step, self.tokens, self.position, self.seconds = state["counters"]

    def run(
        self,
        plan: Callable[[int], list[np.ndarray]],
        make: Callable[[np.ndarray], B],
        evaluate: Callable[[], dict[str, float]],
        folder: Path,
    ) -> None:
        """Train to the end of the budget, from `folder/checkpoint.pt` if there is one; the curve goes to curve.jsonl.

        Args:
            plan: epoch → indices of its batches.
            make: indices → batch.
            evaluate: figures for the curve.
        """
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / "checkpoint.pt"
        if checkpoint.exists():
            self.load(checkpoint)
        if self.progress() >= 1.0:
            return
        smoothed, last = 0.0, time.monotonic()
        saved = last
        self.model.train()
        with (folder / "curve.jsonl").open("a", encoding="utf-8") as curve:
            for position, batch in endless(plan, make, self.position):
                loss = self.update(batch)
                smoothed = loss if smoothed == 0.0 else 0.98 * smoothed + 0.02 * loss
                now = time.monotonic()
                self.seconds, last, self.position = self.seconds + now - last, now, position
                finished = self.progress() >= 1.0
                if self.step % self.args.eval_every == 0 or finished:
                    record = self._record(smoothed, evaluate)
                    curve.write(record + "\n")
                    curve.flush()
                    print(record, flush=True)
                if now - saved > 60 * self.args.checkpoint_minutes or finished:
                    self.save(checkpoint)
                    saved = now
                if finished:
                    return

    def _record(self, train_loss: float, evaluate: Callable[[], dict[str, float]]) -> str:
        self.model.eval()
        with torch.no_grad():
            figures = evaluate()
        self.model.train()
        counters = {"step": self.step, "epoch": self.position[0], "tokens": self.tokens, "seconds": self.seconds}
        record = {**counters, "train_loss": train_loss, **figures}
        return json.dumps({name: round(value, 4) for name, value in record.items()})


def add_training_arguments(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """The options of `Trainer`."""
    options = parser.add_argument_group("training")
    options.add_argument("--minutes", type=float, help="time budget at whose end the rate is 0")
    options.add_argument("--steps", type=int, default=0, help="budget in steps instead: the repeatable schedule")
    options.add_argument("--batch-tokens", type=int, default=3600, help="tokens of a batch, padding included")
    options.add_argument("--rate", type=float, default=3e-3, help="AdamW's peak rate")
    options.add_argument("--muon-rate", type=float, default=0.02, help="peak rate of Muon; 0: AdamW for all")
    options.add_argument("--muon-steps", type=int, default=3, help="iterations of the orthogonalisation")
    options.add_argument(
        "--bfloat16",
        action="store_true",
        help="mixed precision: twice as fast on processors with bf16 units (avx512_bf16, amx), far slower without",
    )
    options.add_argument("--warmup", type=int, default=100, help="steps until the peak rate")
    options.add_argument("--eval-every", type=int, default=200, help="steps")
    options.add_argument("--checkpoint-minutes", type=float, default=5.0)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--seed", type=int, default=1)
    parser.set_defaults(**defaults)


def prepare_process(args: argparse.Namespace) -> None:
    """Threads and seed of a training process; denormal numbers, which are slow and say nothing, become 0."""
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
