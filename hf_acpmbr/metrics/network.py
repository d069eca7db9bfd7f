"""What all networks share: device, precision, loading when needed, sorted batches, one encoding of each text."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from ..candidates import IntArray
from ..config import describe, integer, optional
from ..devices import checked_device, computes_in, default_device
from ..scoring.batches import TokenBatches, pad
from ..scoring.checkpoints import checkpoint_folder, revision_of
from ..scoring.utility import CommonOptions, Statistics, Utility
from .tokenization import SpecialTokens

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

_DTYPES = ("float32", "float16", "bfloat16")
_CPU_BATCH, _GPU_BATCH = 2048, 32768  # tokens; on a CPU larger batches only cost memory
_LOADING = threading.RLock()  # the driver's two halves may both be the first to need a network
N = TypeVar("N", bound="torch.nn.Module", covariant=True)
Output = TypeVar("Output")


class NetworkOptions(CommonOptions, total=False):
    """The options that every network takes."""

    device: str | None
    dtype: str
    batch_tokens: int | None
    compile: bool
    revision: str | None
    name: str | None
    parameters: int | None


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
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**options)
        self.checkpoint, self.revision, self.compile = checkpoint, revision, compile
        self.checkpoint_name = checkpoint.rstrip("/").split("/")[-1]
        self.name = name or self.checkpoint_name
        self.device = default_device() if device is None else checked_device(device)
        if dtype == "auto":
            able = self.device != "cpu" and computes_in(self.half, self.device)
            dtype = self.half if able else "float32"
        elif dtype not in _DTYPES:
            raise ValueError(f"dtype={dtype!r} is unknown: choose one of {', '.join(_DTYPES)} or 'auto'")
        elif dtype != "float32" and self.device == "cpu" and not computes_in(dtype, "cpu"):
            warnings.warn(f"dtype={dtype!r} on this CPU is slower than float32; use dtype='auto'", stacklevel=3)
        self.dtype = dtype
        tokens = optional(integer(1))("batch_tokens", batch_tokens)
        self.batches = TokenBatches(tokens or (_CPU_BATCH if self.device == "cpu" else _GPU_BATCH))
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
                import torch

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
        """Run sequences of these lengths through `forward`, in sorted batches and without gradients.

        Args:
            lengths: (k,) tokens of each sequence.
            forward: given the indices of a batch, its result.
            receive: given the indices of a batch and its result, keeps it; `array.__setitem__` does.
            statistics: where to count.
        """
        import torch

        _ = self.network  # first: its errors are about loading, and not about a batch
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            done: Callable[[int], object] = lambda count: None  # noqa: E731
            if self.progress:
                from tqdm import tqdm

                bar = tqdm(total=lengths.size, desc=self.name, unit="seq", leave=False)
                done = stack.enter_context(bar).update
            self.batches.run(lengths, forward, receive, statistics, done)

    def __getstate__(self) -> dict[str, object]:
        # What was loaded is found again from the checkpoint, so pickles stay small and stable.
        state = {**super().__getstate__(), "_network": None}
        loaded = [key for key in state if isinstance(getattr(type(self), key, None), cached_property)]
        return {key: value for key, value in state.items() if key not in loaded}


class TextVectors:
    """What a network makes of each text, computed when first needed and kept.

    Args:
        utility: the network's utility (device, batches, progress).
        lengths: (T,) tokens of each text.
        forward: given the numbers of a batch's texts, one item per text.
        statistics: where to count.
    """

    def __init__(
        self,
        utility: NetworkUtility[torch.nn.Module],
        lengths: Sequence[int],
        forward: Callable[[IntArray], Sequence[torch.Tensor] | torch.Tensor],
        statistics: Statistics,
    ) -> None:
        self.utility, self.forward, self.statistics = utility, forward, statistics
        self.lengths = np.array(lengths, dtype=np.int64)
        self.items: dict[int, torch.Tensor] = {}

    def get(self, texts: IntArray) -> list[torch.Tensor]:
        """Return the items of texts."""
        new = np.array([k for k in np.unique(texts).tolist() if k not in self.items], dtype=np.int64)
        if new.size:

            def keep(batch: IntArray, items: Sequence[torch.Tensor] | torch.Tensor) -> None:
                self.items.update(zip(new[batch].tolist(), items, strict=True))

            self.utility.encode(self.lengths[new], lambda b: self.forward(new[b]), keep, self.statistics)
            self.statistics.encoded += new.size
        return [self.items[k] for k in texts.tolist()]


def padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Return transformers' inputs: (B, L) ids filled up with `pad_id`, and a mask that is 1 for tokens."""
    import torch

    sizes = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    mask = (np.arange(sizes.max()) < sizes[:, None]).astype(np.int64)
    return {"input_ids": pad(rows, pad_id, device), "attention_mask": torch.from_numpy(mask).to(device)}
