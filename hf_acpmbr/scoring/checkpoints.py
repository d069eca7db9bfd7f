"""Checkpoint folders: from a hub id or a path to local files, weights and a revision for signatures."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch
    from sentencepiece import SentencePieceProcessor

Fields: TypeAlias = dict[str, Any]  # what a foreign file says
_BLOCK = 1 << 22
COMET_WEIGHTS = "checkpoints/model.ckpt"
_BINARY = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_WEIGHTS = (COMET_WEIGHTS, "model.safetensors", "model.safetensors.index.json", *_BINARY)
_POINTER = b"version https://git-lfs"


def checkpoint_folder(checkpoint: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Find the local folder of a checkpoint; a hub id is downloaded (only files that match `patterns`)."""
    path = Path(checkpoint).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ValueError(f"revision={revision!r} is for hub ids, and checkpoint={checkpoint!r} is a folder")
        return path
    if checkpoint.startswith((".", "/", "~")) or checkpoint.count("/") > 1 or not checkpoint.strip("/"):
        raise FileNotFoundError(f"checkpoint={checkpoint!r} is neither a folder nor a hub id such as 'owner/name'")
    from huggingface_hub import snapshot_download

    # Read here as well: the hub's client looks at the variable only once, when it is imported.
    cache = os.environ.get("HF_HUB_CACHE")
    try:
        return Path(snapshot_download(checkpoint, allow_patterns=list(patterns), revision=revision, cache_dir=cache))
    except OSError as error:  # not there, not allowed or not reachable
        at = "" if revision is None else f" at revision {revision!r}"
        raise FileNotFoundError(
            f"checkpoint {checkpoint!r}{at} is not in the Hub's cache and cannot be downloaded "
            f"({type(error).__name__}: {error}). Check the name and the connection (HF_HUB_OFFLINE must not "
            "be set), log in with `hf auth login` if it is gated, or download it elsewhere and give the folder's path"
        ) from error


def read_config(folder: Path) -> Fields:
    """Read config.json of a checkpoint."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: is it a checkpoint folder?")
    return read_json(folder / "config.json")


def read_json(path: Path) -> Fields:
    """Read the fields in a JSON or YAML file; empty if there is no such file."""
    if not path.is_file():
        return {}
    with naming(path):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".yaml":
            import yaml

            fields: object = yaml.safe_load(text)
        else:
            fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds {text.strip()[:40]!r} and not fields by name {{...}}: fetch it again")
    return fields


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a checkpoint's file or folder in whatever its reader raises, as readers of damaged files raise anything."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, (ValueError, OSError)) and str(path) in str(error):
            raise
        said = str(error).strip().partition("\n")[0]
        message = f"{path} cannot be read ({type(error).__name__}: {said}): if it is damaged, fetch it again"
        raise ValueError(message) from error


def revision_of(folder: Path, patterns: Sequence[str] = ("*",)) -> str:
    """Return what distinguishes these files: the hub's commit, or a digest of their content for other folders."""
    resolved = folder.absolute()
    if resolved.parent.name == "snapshots":
        return resolved.name[:12]
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if any(fnmatch(name, pattern) for pattern in patterns):
            status = path.stat()
            digest.update(f"{name}:{_file_digest(path, status.st_size, status.st_mtime_ns)};".encode())
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _file_digest(path: Path, size: int, modified: int) -> str:
    """Digest the whole content; by size and time of the last change a changed file is read again."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint: COMET's .ckpt, or transformers' safetensors or .bin, whole or in shards."""
    path = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has no weights: expected one of {', '.join(_WEIGHTS)}")
    paths = [path]
    if path.name.endswith(".index.json"):
        shards = read_json(path).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
            raise ValueError(f"{path} has no weight_map that names the file of each weight: fetch it again")
        paths = [inside(folder, shard, path) for shard in sorted(set(shards.values()))]
    weights: dict[str, torch.Tensor] = {}
    for part in paths:
        weights.update(read_tensors(part))
    return weights


def read_pieces(path: Path) -> SentencePieceProcessor:
    """Read a sentencepiece model, such as spm.model."""
    from sentencepiece import SentencePieceProcessor

    with naming(path):
        return SentencePieceProcessor(model_file=str(path))


def inside(folder: Path, name: str, named_by: Path) -> Path:
    """Return the file of a folder that another file names; it cannot be one outside."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError(f"{named_by} names {name!r}, which is outside its folder: the checkpoint cannot be trusted")
    return folder / path


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read one weights file."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        _refuse_pointer(path)
        with naming(path):
            return load_file(path)
    loaded = read_pickle(path)
    state: dict[str, torch.Tensor] = loaded.get("state_dict", loaded)
    return state


def read_pickle(path: Path) -> Fields:
    """Read a file of torch.save; with `weights_only`, so it cannot run code."""
    import pickle

    import torch

    _refuse_pointer(path)
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    with naming(path):
        try:
            loaded: object = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{path} holds other things than weights, such as code, or is damaged; nothing of it was run. Use a "
                "checkpoint that you trust, best in safetensors"
            ) from error
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__} and no weights by name: is it a checkpoint?")
    return loaded


def _refuse_pointer(path: Path) -> None:
    """Refuse the few lines that Git leaves in place of a large file that was not fetched."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise ValueError(f"{path} is a Git LFS pointer and not the weights: fetch them with git lfs pull")
