"""What all networks share: device, dtype, lazy loading, and scoring pairs of token sequences in sorted batches."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import describe, integer, optional
from ..scoring.batches import TokenBatches
from ..scoring.checkpoints import checkpoint_folder, revision_of
from ..scoring.utility import CommonOptions, Statistics, Utility
from .tokenization import SpecialTokens

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

_DTYPES = ("float32", "float16", "bfloat16")
_LOADING = threading.RLock()  # sources that are decided together may ask at the same time
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
    """A metric that is a network. Nothing is loaded before the first score (or a question only the weights answer).

    Args:
        checkpoint: hub id or folder.
        device: "cpu", "cuda:0", "mps", ...; default: a GPU if there is one.
        dtype: "auto" (default) is half precision on GPUs and float32 elsewhere; "float32", "float16", "bfloat16". On a
            CPU float32 keeps choices alike on different processors, so bfloat16 is for whoever asks.
        batch_tokens: tokens of a batch, padding included; default 2,048 on CPU, 32,768 elsewhere.
        compile: run the network through torch.compile.
        revision: branch, tag or commit of a hub checkpoint.
        name: for signatures and reports.
        parameters: of the network, where they are known without loading it.
        options: `cache=`, `progress=` of every utility.
    """

    files: Sequence[str] = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt")
    half = "float16"
    joins_sources = True
    known_parameters: int | None = None

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
        self.device = _default_device() if device is None else _checked_device(device)
        self.dtype = self._resolve_dtype(dtype)
        tokens = optional(integer(1))("batch_tokens", batch_tokens)
        self.batches = TokenBatches(tokens or (2048 if self.device == "cpu" else 32768))
        self._given_parameters = self.known_parameters = parameters
        self._folder: Path | None = None
        self._revision: str | None = None
        self._network: N | None = None
        self._tokens: SpecialTokens | None = None

    @property
    def folder(self) -> Path:
        """Local folder of the checkpoint; downloads it when first asked for."""
        if self._folder is None:
            self._folder = checkpoint_folder(self.checkpoint, self.files, self.revision)
        return self._folder

    @property
    def identity(self) -> str:
        with _LOADING:
            if self._revision is None:
                self._revision = revision_of(self.folder, self.files)
        return f"{describe(self.name)}@{self._revision}"

    def settings(self) -> dict[str, object]:
        """The options; the checkpoint is in `identity`, by its content and not by where it lies."""
        return {key: value for key, value in super().settings().items() if key not in ("checkpoint", "revision")}

    def special_tokens(self) -> SpecialTokens:
        """The tokeniser of transformers' encoders; loaded once, for it takes a second."""
        if self._tokens is None:
            self._tokens = SpecialTokens(self.tokenizer_folder())
        return self._tokens

    def tokenizer_folder(self) -> Path:
        """Local folder of the tokeniser."""
        return self.folder

    @property
    def network(self) -> N:
        """The loaded network on its device, in evaluation mode."""
        with _LOADING:
            if self._network is None:
                import torch

                network = self.load()
                try:
                    network = network.to(device=self.device, dtype=getattr(torch, self.dtype))
                except (RuntimeError, AssertionError) as error:  # no such device here, or not enough memory on it
                    raise ValueError(f"{self.name} cannot be moved to device {self.device!r}: {error}") from error
                self._network = network.eval().requires_grad_(False)
                if self.compile:
                    self._network.compile(dynamic=True)
            return self._network

    @property
    def parameters(self) -> int:  # type: ignore[override]
        """Network parameters, for the cost model; counted from the weights if not known by name."""
        if self.known_parameters is None:
            self.known_parameters = sum(parameter.numel() for parameter in self.network.parameters())
        return self.known_parameters

    @abstractmethod
    def load(self) -> N:
        """The network with its weights, on the CPU."""

    def encode(
        self,
        lengths: IntArray,
        forward: Callable[[IntArray], Output],
        receive: Callable[[IntArray, Output], None],
        statistics: Statistics,
    ) -> None:
        """Run `forward` over sequences in sorted batches, without gradients and with a progress bar."""
        import torch

        _ = self.network  # first: it names a device that is not there
        with torch.inference_mode(), self._bar(lengths.size) as done:
            self.batches.run(lengths, forward, receive, statistics, done)

    @contextmanager
    def _bar(self, total: int) -> Iterator[Callable[[int], object]]:
        """What to call with the number of finished sequences: one progress bar, or nothing."""
        if not self.progress:
            yield lambda count: None
            return
        from tqdm import tqdm

        with tqdm(total=total, desc=self.name, unit="seq", leave=False) as bar:
            yield bar.update

    def _resolve_dtype(self, dtype: str) -> str:
        if dtype == "auto":
            return self.half if self.device.startswith("cuda") and _computes(self.half, self.device) else "float32"
        if dtype not in _DTYPES:
            raise ValueError(f"dtype={dtype!r} is unknown: choose one of {', '.join(_DTYPES)} or 'auto'")
        if dtype != "float32" and self.device == "cpu" and not _has_units(dtype):
            warnings.warn(f"dtype={dtype!r} on this CPU is slower than float32; use dtype='auto'", stacklevel=3)
        return dtype

    def __getstate__(self) -> dict[str, object]:
        # Weights are found again from the checkpoint, so pickles and fingerprints stay small and stable.
        found = {"_network": None, "_tokens": None, "known_parameters": self._given_parameters}
        return {**super().__getstate__(), **found}


class PairNetworkKernel:
    """Scores pairs whose texts go through the network together: ids of each text once, pairs assembled from ids.

    Subclasses give `lengths` (tokens of each input) and `forward` (scores of a batch of inputs).
    """

    def __init__(self, utility: NetworkUtility[torch.nn.Module], statistics: Statistics) -> None:
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


def _checked_device(device: str) -> str:
    import torch

    try:
        return str(torch.device(device))
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is not a device of torch, such as cpu, cuda:0 or mps") from error


def _computes(half: str, device: str) -> bool:
    """Whether a GPU has units for a half precision, by its generation: Volta for float16, Ampere for bfloat16."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip:  # loading says that the device is not there
        return True
    return torch.cuda.get_device_capability(device)[0] >= (7 if half == "float16" else 8)


def _has_units(dtype: str) -> bool:
    """Whether the CPU multiplies matrices in a 16-bit type by instructions of its own."""
    import torch

    known = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)  # older releases do not say
    return dtype == "bfloat16" and bool(known())


def _default_device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
