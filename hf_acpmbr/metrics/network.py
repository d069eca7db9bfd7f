"""What all networks share: device, precision, loading when needed, sorted batches, one encoding of each text."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from ..candidates import FloatArray, IntArray
from ..config import describe, integer, one_of, optional
from ..devices import checked_device, computes_in, default_device
from ..scoring.checkpoints import checkpoint_folder, revision_of
from ..scoring.utility import Statistics, Utility
from .tokenization import SpecialTokens

_DTYPES = ("auto", "float32", "float16", "bfloat16")
_CPU_BATCH, _GPU_BATCH = 2048, 32768  # tokens; on a CPU larger batches only cost memory
# What starting a batch is worth in padding: 1/16 of the budget. On the small rounds of the benchmark `together` that is
# 50 batches with 11% of padding at 32,768 tokens (1/8: 43 with 13%; 1/32: 55 with 10%).
_WORTH = 16
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
_LOADING = threading.RLock()  # the driver's two halves may both be the first to need a network
N = TypeVar("N", bound=torch.nn.Module, covariant=True)
Output = TypeVar("Output")
Item = TypeVar("Item")


class NetworkUtility(Utility, Generic[N]):
    """A metric that is a network, loaded for the first score or for what only its weights can answer.

    What a subclass loads it keeps as cached properties: these are not pickled.

    Args:
        checkpoint: hub id or folder.
        device: "cpu", "cuda:0", "mps", ...; default: an accelerator if there is one.
        dtype: "auto" (default) is half precision on devices with units for it and float32 elsewhere; "float32",
            "float16", "bfloat16". On a CPU "auto" stays float32, which makes equal choices on
            different processors.
        batch_tokens: tokens per batch, padding included; default 2,048 on CPU, 32,768 elsewhere.
        compile: run the network through torch.compile.
        revision: branch, tag or commit of a hub checkpoint.
        name: for signatures and reports.
        parameters: of the network, if they are known without loading it.
        options: `cache=`, `progress=` of every utility.
    """

    files: Sequence[str] = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt")
    half = "float16"
    joins_sources = True

    def __init__(
        self,
        checkpoint: str,
        *,
        device: str | None = None,
        dtype: str = "auto",
        batch_tokens: int | None = None,
        compile: bool = False,
        revision: str | None = None,
        name: str | None = None,
        parameters: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.checkpoint, self.revision, self.compile = checkpoint, revision, compile
        self.checkpoint_name = checkpoint.rstrip("/").split("/")[-1]
        self.name = name or self.checkpoint_name
        self.device = default_device() if device is None else checked_device(device)
        on_cpu = self.device.startswith("cpu")
        if dtype == "auto":
            dtype = self.half if not on_cpu and computes_in(self.half, self.device) else "float32"
        elif one_of(*_DTYPES)("dtype", dtype) != "float32" and on_cpu and not computes_in(dtype, "cpu"):
            warnings.warn(f"dtype={dtype!r} on this CPU is slower than float32; use dtype='auto'", stacklevel=3)
        self.dtype = dtype
        self.batch_tokens = optional(integer(1))("batch_tokens", batch_tokens) or (_CPU_BATCH if on_cpu else _GPU_BATCH)
        self._given_parameters = parameters
        self._network: N | None = None

    @cached_property
    def folder(self) -> Path:
        """Local folder of the checkpoint; downloads it when first asked for."""
        return checkpoint_folder(self.checkpoint, self.files, self.revision)

    @cached_property
    def identity(self) -> str:
        return f"{describe(self.name)}@{revision_of(self.folder, self.files)}"

    def settings(self) -> dict[str, object]:
        """Return the options; the checkpoint is in `identity`, by its content and not by its place."""
        settings = super().settings()
        return {k: v for k, v in settings.items() if k not in ("checkpoint", "revision")}

    def tokenizer_folder(self) -> Path:
        """Return the local folder of the tokenizer."""
        return self.folder

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """The tokenizer of transformers' encoders."""
        return SpecialTokens(self.tokenizer_folder())

    @property
    def network(self) -> N:
        """The loaded network on its device, in evaluation mode."""
        with _LOADING:
            if self._network is None:
                network = self.load()
                try:
                    network = network.to(device=self.device, dtype=getattr(torch, self.dtype))
                except (RuntimeError, AssertionError) as error:  # no such device, or too little memory
                    raise ValueError(f"{self.name} cannot be moved to device {self.device!r}: {error}") from error
                self._network = network.eval().requires_grad_(False)
                if self.compile:
                    self._network.compile(dynamic=True)
            return self._network

    @cached_property
    def parameters(self) -> int:  # type: ignore[override]
        """Network parameters, for the cost model; counted from the weights if not known by name."""
        given = self._given_parameters
        return sum(weight.numel() for weight in self.network.parameters()) if given is None else given

    @abstractmethod
    def load(self) -> N:
        """Load the network with its weights, on the CPU."""

    def encode(
        self,
        lengths: IntArray,
        forward: Callable[[IntArray], Output],
        receive: Callable[[IntArray, Output], object],
        statistics: Statistics,
    ) -> None:
        """Run sequences of these lengths through `forward`, in batches and without gradients.

        The longest come first, so memory runs out in the first batch or never. A batch that does not fit is halved,
        and the smaller budget is remembered for the utility's life.

        Args:
            lengths: (k,) tokens of each sequence.
            forward: given the indices of a batch, its result.
            receive: given the indices of a batch and its result, keeps it; `array.__setitem__` does.
            statistics: where to count.
        """
        _ = self.network  # first: its errors are about loading, and not about a batch
        order, start = np.argsort(-lengths, kind="stable"), 0
        bar = tqdm(total=lengths.size, desc=self.name, unit="seq", leave=False, disable=not self.progress)
        with torch.inference_mode(), bar:
            while start < order.size:
                batch = order[start : start + self._rows(lengths[order[start:]])]
                longest = max(int(lengths[batch[0]]), 1)
                try:
                    result = forward(batch)
                except RuntimeError as error:
                    self._shrink(batch.size, longest, error)
                    statistics.out_of_memory += 1
                    continue
                receive(batch, result)
                start += batch.size
                statistics.batches += 1
                statistics.tokens += int(lengths[batch].sum())
                statistics.padded_tokens += longest * batch.size
                bar.update(batch.size)

    def _rows(self, lengths: IntArray) -> int:
        """Return how many of the sequences (longest first) go into the next batch.

        It is full by tokens, or ends where more padding is saved than starting another batch is worth.
        """
        longest = max(int(lengths[0]), 1)
        fitting = lengths[: max(1, self.batch_tokens // longest)]
        # If the batch ended before sequence k, that and those behind it would be padded to its length at most.
        saved = (longest - fitting) * np.arange(fitting.size, 0, -1)
        end = int(saved.argmax())
        return end if saved[end] * _WORTH > self.batch_tokens else fitting.size

    def _shrink(self, rows: int, longest: int, error: RuntimeError) -> None:
        """Halve the budget of tokens after an error of memory; raise others."""
        if not isinstance(error, torch.OutOfMemoryError) and not any(w in str(error).lower() for w in _NO_MEMORY):
            raise error
        if rows == 1:
            raise RuntimeError(
                f"one sequence of {longest} tokens does not fit into memory: use a smaller checkpoint, "
                "dtype='float16' or another device"
            ) from error
        self.batch_tokens = longest * (rows // 2)
        # By the device's own module: torch.accelerator's function fails on MPS and on devices of other packages.
        getattr(getattr(torch, torch.device(self.device).type), "empty_cache", lambda: None)()

    def score_sequences(
        self, lengths: IntArray, forward: Callable[[IntArray], FloatArray], statistics: Statistics
    ) -> FloatArray:
        """Return what `forward` gives for each of the sequences of these lengths."""
        out = np.empty(lengths.size)
        self.encode(lengths, forward, out.__setitem__, statistics)
        return out

    def of_each_text(
        self,
        lengths: Sequence[int],
        forward: Callable[[IntArray], Sequence[torch.Tensor] | torch.Tensor],
        statistics: Statistics,
    ) -> Once[torch.Tensor]:
        """Return what the network makes of each text: `forward` is given the numbers of a batch's texts."""
        sizes = np.array(lengths, dtype=np.int64)

        def compute(texts: IntArray) -> Iterable[torch.Tensor]:
            found: dict[int, torch.Tensor] = {}
            keep = lambda batch, items: found.update(zip(batch.tolist(), items, strict=True))  # noqa: E731
            self.encode(sizes[texts], lambda batch: forward(texts[batch]), keep, statistics)
            statistics.encoded += texts.size
            return (found[k] for k in range(texts.size))

        return Once(compute)

    def __getstate__(self) -> dict[str, object]:
        # What was loaded is found again from the checkpoint, so pickles stay small and stable.
        state = {**super().__getstate__(), "_network": None}
        loaded = [key for key in state if isinstance(getattr(type(self), key, None), cached_property)]
        return {key: value for key, value in state.items() if key not in loaded}


class Once(Generic[Item]):
    """What `compute(keys)` makes of each key, one item per key, computed when it is first needed and kept."""

    def __init__(self, compute: Callable[[IntArray], Iterable[Item]]) -> None:
        self._compute = compute
        self._items: dict[int, Item] = {}

    def get(self, keys: IntArray) -> list[Item]:
        """Return the items of keys."""
        if new := [key for key in np.unique(keys).tolist() if key not in self._items]:
            self._items.update(zip(new, self._compute(np.array(new)), strict=True))
        return [self._items[key] for key in keys.tolist()]


def padded(
    rows: Sequence[Sequence[int]],
    pad_id: int,
    device: torch.device | str,
    types: Sequence[Sequence[int]] | None = None,
) -> dict[str, torch.Tensor]:
    """Return transformers' inputs (B, L), in one upload.

    They are ids filled up with `pad_id`, a mask that is 1 for tokens and, if given, segment types filled up with 0.
    """
    width = max(map(len, rows))
    inputs = {"input_ids": [[*row, *[pad_id] * (width - len(row))] for row in rows]}
    inputs["attention_mask"] = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    if types is not None:
        inputs["token_type_ids"] = [[*row, *[0] * (width - len(row))] for row in types]
    return dict(zip(inputs, torch.tensor(list(inputs.values()), device=device), strict=True))
