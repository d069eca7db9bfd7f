"""What is known of a run before any weight is loaded: sizes of the networks, what they need in memory, what is free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..utilities import Utility
from ..utilities.checkpoints import local_folder, stored_weights
from ..utilities.network import NetworkUtility

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Footprint:
    """One network of a run.

    Args:
        role: model, target or guide.
        parameters: numbers in its weights; None where its files are not on this machine, or it is no network.
        dtype: what it computes in.
        size: bytes of its weights in that dtype.
    """

    role: str
    name: str
    device: str
    parameters: int | None = None
    dtype: str = ""
    size: int = 0

    @classmethod
    def of_files(
        cls, role: str, name: str, device: str, checkpoint: str, revision: str | None, dtype: str | None
    ) -> Footprint:
        """From the headers of a checkpoint's files; `dtype` None is the files' own."""
        folder = local_folder(checkpoint, revision)
        stored = None if folder is None else stored_weights(folder)
        if stored is None:
            return cls(role, name, device)
        size = stored.size if dtype is None else stored.parameters * _BYTES.get(dtype, 4)
        return cls(role, name, device, stored.parameters, dtype or stored.dtype, size)

    @classmethod
    def of_utility(cls, role: str, utility: Utility) -> Footprint:
        if not isinstance(utility, NetworkUtility):
            return cls(role, utility.name, utility.device, 0)
        files = utility.checkpoint, utility.revision
        return cls.of_files(role, utility.name, utility.device, *files, utility.dtype)

    def __str__(self) -> str:
        known = ["not on this machine yet", ""]
        if self.parameters is not None:
            known = [f"{self.parameters:,}", megabytes(self.size)]
        free = free_memory(self.device)
        cells = [self.role, self.name, *known, self.dtype, self.device, "" if free is None else megabytes(free)]
        return f"| {' | '.join(cells)} |"


def refuse_what_does_not_fit(footprints: list[Footprint]) -> None:
    """An error that names the networks of a device whose weights alone are more than is free there."""
    places: dict[str, list[Footprint]] = {}
    for each in footprints:
        if each.size:
            places.setdefault("cuda:0" if each.device == "cuda" else each.device, []).append(each)  # cuda is the first
    for device, there in places.items():
        free = free_memory(device)
        needed = sum(each.size for each in there)
        if free is not None and needed > free:
            names = ", ".join(f"{each.role} {each.name} {megabytes(each.size)}" for each in there)
            raise ValueError(
                f"the weights do not fit on {device}: {names}, and {megabytes(free)} are free. Choose smaller ones, "
                "half precision or another device; --no-calibration plans without loading them"
            )


def free_memory(device: str) -> int | None:
    """Bytes that a process can still take on a device; None where nobody says."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else None
    if device != "cpu":
        return None
    known = []
    if _MEMINFO.exists():
        lines = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        known.append(int(lines["MemAvailable"].split()[0]) * 1024)
    elif hasattr(os, "sysconf"):
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    known += _free_in_groups()
    return min(known, default=None)


def _free_in_groups() -> list[int]:
    """Bytes below each limit that a container or a batch system sets for this process: its control group's, and those
    around it (version 2; inside a container the group may show as the root)."""
    lines = _OWN_CGROUP.read_text().splitlines() if _OWN_CGROUP.exists() else []
    name = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    own = _CGROUP / name
    free = []
    for folder in (own, *own.parents):
        limit, used, details = (folder / f"memory.{name}" for name in ("max", "current", "stat"))
        if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
            stat = dict(line.split() for line in details.read_text().splitlines()) if details.exists() else {}
            # Pages of files that nobody has used lately: the system takes them back before it refuses memory.
            free.append(int(most) - int(used.read_text()) + int(stat.get("inactive_file", 0)))
        if folder == _CGROUP:
            break
    return free


def cache_per_token(config: PretrainedConfig, dtype: str) -> int | None:
    """Bytes that a decoder row keeps for each token; None where the configuration does not say."""
    text: object = config.get_text_config(decoder=True)

    def first(*names: str) -> int | None:
        return next((value for name in names if (value := getattr(text, name, None))), None)

    layers = first("num_decoder_layers", "num_hidden_layers")  # the latter are the encoder's where both are there
    heads, width = (first(name) for name in ("num_attention_heads", "hidden_size"))
    if layers is None or heads is None or width is None:
        return None
    size = first("head_dim", "d_kv") or width // heads
    return int(2 * layers * (first("num_key_value_heads") or heads) * size * _BYTES.get(dtype, 4))


def cache_size(config: PretrainedConfig, dtype: str, rows: int | None, read: int, new: int) -> str:
    """What the decoder's cache takes, in words.

    Args:
        rows: decoded at once, at most; None if nobody knows.
        read, new: tokens of the longest source, which stay in the cache of a decoder-only model, and of a candidate.
    """
    kept = cache_per_token(config, dtype)
    if kept is None:
        return "its configuration does not say"
    each = f"{kept / 1e3:.1f} KB per row and token"
    if rows is None:
        return each
    tokens = new if config.is_encoder_decoder else read + new
    return f"{each}, {megabytes(kept * rows * tokens)} for {rows} rows of {tokens} tokens"


def megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
