"""Checkpoint folders: from a hub id or a path to local files, weights and a revision for signatures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_EDGE = 1 << 20
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def checkpoint_folder(checkpoint: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """The local folder of a checkpoint; a hub id is downloaded (only files that match `patterns`)."""
    path = Path(checkpoint).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or checkpoint.count("/") != 1:
        raise FileNotFoundError(f"checkpoint={checkpoint!r} is neither a folder nor a hub id such as 'owner/name'")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(checkpoint, allow_patterns=list(patterns), revision=revision))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no config.json: is it a checkpoint folder?")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def revision_of(folder: Path) -> str:
    """What distinguishes these weights: the hub's commit, or a fingerprint of the files for other folders."""
    resolved = folder.absolute()
    if resolved.parent.name == "snapshots":
        return resolved.name[:12]
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.endswith((".md", ".lock"))):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()}:{size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_EDGE))
            # Weights differ nearly everywhere between checkpoints; both ends of a file tell them apart.
            if size > _EDGE:
                file.seek(-min(_EDGE, size - _EDGE), 2)
                digest.update(file.read())
    return digest.hexdigest()


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint in transformers' file layout: safetensors or .bin, whole or in shards."""
    for name in _WEIGHTS:
        if not (folder / name).is_file():
            continue
        if not name.endswith(".index.json"):
            return read_tensors(folder / name)
        shards: Mapping[str, str] = json.loads((folder / name).read_text(encoding="utf-8"))["weight_map"]
        weights: dict[str, torch.Tensor] = {}
        for shard in sorted(set(shards.values())):
            weights.update(read_tensors(folder / shard))
        return weights
    raise FileNotFoundError(f"{folder} has no weights: expected one of {', '.join(_WEIGHTS)}")


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """One weights file. Pickles are read with `weights_only`, so they cannot run code."""
    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    state: dict[str, torch.Tensor] = loaded.get("state_dict", loaded)
    return state


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"
