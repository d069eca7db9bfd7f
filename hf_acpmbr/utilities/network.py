"""What all networks share: device, dtype, lazy loading, and scoring pairs of token sequences in sorted batches."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..candidates import FloatArray, IntArray
from .base import Statistics, Utility
from .batching import TokenBatches
from .checkpoints import checkpoint_folder, revision_of

if TYPE_CHECKING:
    import torch

_DTYPES = ("float32", "float16", "bfloat16")


class NetworkUtility(Utility):
    """A metric that is a network. Nothing is loaded before the first score (or a question only the weights answer).

    Args:
        checkpoint: hub id or folder.
        device: "cpu", "cuda:0", "mps", ...; default: a GPU if there is one.
        dtype: "float32" (default), "float16", "bfloat16", or "auto": half precision where the device is built for it.
        batch_tokens: tokens of a batch, padding included; default 2,048 on CPU, 32,768 elsewhere.
        compile: run the network through torch.compile.
        revision: branch, tag or commit of a hub checkpoint.
        name: for signatures and reports.
        options: `cache=`, `progress=` of every utility.
    """

    files: Sequence[str] = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt")
    half = "float16"
    known_parameters: int | None = None

    def __init__(
        self,
        checkpoint: str,
        *,
        device: str | None = None,
        dtype: str = "float32",
        batch_tokens: int | None = None,
        compile: bool = False,
        revision: str | None = None,
        name: str | None = None,
        parameters: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.checkpoint, self.revision, self.compile = checkpoint, revision, compile
        self.name = name or checkpoint.rstrip("/").split("/")[-1]
        self.device = device or _default_device()
        self.dtype = self._resolve_dtype(dtype)
        self.batches = TokenBatches(batch_tokens or (2048 if self.device == "cpu" else 32768))
        self.known_parameters = parameters
        self._folder: Path | None = None
        self._revision: str | None = None
        self._network: Any = None

    @property
    def folder(self) -> Path:
        """Local folder of the checkpoint; downloads it when first asked for."""
        if self._folder is None:
            self._folder = checkpoint_folder(self.checkpoint, self.files, self.revision)
        return self._folder

    @property
    def signature(self) -> str:
        half = "" if self.dtype == "float32" else f"|{self.dtype}"
        if self._revision is None:
            self._revision = revision_of(self.folder)
        return f"{self.name}@{self._revision}{half}"

    @property
    def network(self) -> Any:
        """The loaded network on its device, in evaluation mode."""
        if self._network is None:
            import torch

            network = self.load().to(device=self.device, dtype=getattr(torch, self.dtype)).eval().requires_grad_(False)
            self._network = torch.compile(network, dynamic=True) if self.compile else network
        return self._network

    @property
    def parameters(self) -> int:  # type: ignore[override]
        """Network parameters, for the cost model; counted from the weights if not known by name."""
        if self.known_parameters is None:
            self.known_parameters = sum(parameter.numel() for parameter in self.network.parameters())
        return self.known_parameters

    @abstractmethod
    def load(self) -> torch.nn.Module:
        """The network with its weights, on the CPU."""

    def bar(self, total: int) -> Any:
        """One progress bar for `total` items, or nothing."""
        if not self.progress:
            return None
        from tqdm import tqdm

        return tqdm(total=total, desc=self.name, unit="seq", leave=False)

    def encode(self, lengths: IntArray, forward: Any, receive: Any, statistics: Statistics) -> None:
        """Run `forward` over sequences in sorted batches, without gradients and with a progress bar."""
        import torch

        bar = self.bar(lengths.size)
        try:
            with torch.inference_mode():
                self.batches.run(lengths, forward, receive, statistics, bar)
        finally:
            if bar is not None:
                bar.close()

    def _resolve_dtype(self, dtype: str) -> str:
        on_gpu = self.device.startswith("cuda")
        if dtype == "auto":
            return self.half if on_gpu else "float32"
        if dtype not in _DTYPES:
            raise ValueError(f"dtype={dtype!r} is unknown: choose one of {', '.join(_DTYPES)} or 'auto'")
        if dtype != "float32" and self.device == "cpu":
            warnings.warn(
                f"dtype={dtype!r} on a CPU is usually much slower than float32; use dtype='auto'", stacklevel=3
            )
        return dtype

    def __reduce__(self) -> tuple[Any, ...]:
        # Weights are found again from the checkpoint, so pickles and fingerprints stay small and stable.
        restore, (cls, state) = super().__reduce__()
        return restore, (cls, {**state, "_network": None})


class PairNetworkKernel:
    """Scores pairs whose texts go through the network together: ids of each text once, pairs assembled from ids.

    Subclasses give `assemble` (the ids of one input) and `forward` (scores of a batch of inputs).
    """

    def __init__(self, utility: NetworkUtility, statistics: Statistics) -> None:
        self.utility = utility
        self.statistics = statistics

    @abstractmethod
    def lengths(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> IntArray:
        """(k,) tokens of each pair's input."""

    @abstractmethod
    def forward(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> torch.Tensor:
        """(B,) scores of one batch."""

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        out = np.empty(hypotheses.size)

        def receive(batch: IntArray, scores: torch.Tensor) -> None:
            out[batch] = scores.double().cpu().numpy()

        self.utility.encode(
            self.lengths(hypotheses, references, sources),
            lambda batch: self.forward(hypotheses[batch], references[batch], sources[batch]),
            receive,
            self.statistics,
        )
        return out


def _default_device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
