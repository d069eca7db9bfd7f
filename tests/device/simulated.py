"""An accelerator that is not there: tensors on `sim:0` and `sim:1` hold CPU numbers and complain as a GPU's would.

    with simulated_device() as traffic:
        model.to("sim")
        ...
    assert traffic.waits["hf_acpmbr"] <= 3

What a CPU forgives is an error here: an operation on tensors of two devices, `.numpy()` of a tensor that is not on the
CPU, pickling one and, if asked for, float64, which some accelerators lack. What a GPU charges for is counted: every
time the host waits for the device (a number, a mask or a shape is read back) and every upload, with the innermost line
of the project or of transformers that caused it. A budget of bytes raises `torch.OutOfMemoryError`.

Each tensor is a subclass around a CPU tensor. A dispatch mode sees all operations, a function mode the few that never
reach it; both are entered in every thread, as modes belong to one. Not simulated: races, streams, a GPU's rounding.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hf_acpmbr.sampling.prefix_sharing.shared_prompt import Joined

NAME = "sim"
DEVICES = 2
_REGISTER = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
needs_hook = pytest.mark.skipif(_REGISTER is None, reason="this torch cannot register a device in Python")

# Their results have a shape, or are a number, that only the device knows.
_WAITING = {
    "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "masked_select", "nonzero",
    "unique_consecutive", "unique_dim",
}  # fmt: skip
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_COPYING = {"_to_copy", "copy_", "_copy_from"}
_OWNER = re.compile(r"/(hf_acpmbr|transformers)/")


class Traffic:
    """What went between host and device, and what the devices hold.

    Attributes:
        waits, uploads: how often, by who caused it: "hf_acpmbr", "transformers" or "other".
        places: the same by kind, owner, line and operation.
        budget: bytes of one device; None for no limit.
        held, peak: bytes of each device now, and at most.
        refused: how often memory ran out.
    """

    def __init__(self, halves: Sequence[torch.dtype], float64: bool) -> None:
        self.halves, self.float64 = list(halves), float64
        self.waits, self.uploads, self.places = Counter[str](), Counter[str](), Counter[tuple[str, str, str, str]]()
        self.budget: int | None = None
        self.held, self.peak = Counter[torch.device](), Counter[torch.device]()
        self.refused = 0
        self._storages: dict[int, tuple[int, torch.device, int]] = {}  # bytes, device and tensors of each

    def clear(self) -> None:
        """Forget what was counted."""
        for counter in (self.waits, self.uploads, self.places):
            counter.clear()

    def count(self, kind: str, operation: str) -> None:
        """Count a wait or an upload for the innermost line that is not torch's."""
        frame, owner, place = sys._getframe(1), "other", ""
        while frame is not None:
            if found := _OWNER.search(frame.f_code.co_filename):
                owner = found[1]
                place = f"{frame.f_code.co_filename[found.start(1) :]}:{frame.f_lineno} {frame.f_code.co_name}"
                break
            frame = frame.f_back
        (self.waits if kind == "wait" else self.uploads)[owner] += 1
        self.places[kind, owner, place, operation] += 1

    def hold(self, tensor: Simulated) -> None:
        """Count the memory of a new tensor until the last one of its storage is gone."""
        storage = tensor.inner.untyped_storage()
        key = storage._cdata
        size, device, users = self._storages.get(key, (storage.nbytes(), tensor.device, 0))
        if not users:
            if self.budget is not None and self.held[device] + size > self.budget:
                self.refused += 1
                raise torch.OutOfMemoryError(f"{NAME} out of memory. Tried to allocate {size} bytes on {device}")
            self.held[device] += size
            self.peak[device] = max(self.peak[device], self.held[device])
        self._storages[key] = size, device, users + 1
        weakref.finalize(tensor, self._release, key)

    def _release(self, key: int) -> None:
        size, device, users = self._storages.pop(key)
        if users > 1:
            self._storages[key] = size, device, users - 1
        else:
            self.held[device] -= size


_active: Traffic | None = None


class Simulated(torch.Tensor):
    """A tensor of the device; `inner` has its numbers."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> Simulated:
        made: Simulated = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=device,
        )
        made.inner = inner
        if _active is not None:
            if inner.dtype == torch.float64 and not _active.float64:
                raise TypeError(f"{device} has no float64: use float32, or .cpu() first")
            _active.hold(made)
        return made

    def __init__(self, inner: torch.Tensor, device: torch.device) -> None:
        pass

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Simulated({self.inner!r}, device={self.device})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"pickling a tensor of {self.device} copies it to the host: use .cpu() first")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Simulated) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the inner tensors, after the checks of a device; its results are on the device."""
    assert _active is not None
    name = func._schema.name.removeprefix("aten::")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, Simulated)]
    wanted = None if kwargs.get("device") is None else _numbered(torch.device(kwargs["device"]))
    if ours and name not in _COPYING:
        _check_devices(name, tensors, ours)
        masks = any(t is not None and t.dtype == torch.bool for t in args[1]) if name in _INDEXING else False
        counted = name == "repeat_interleave" and kwargs.get("output_size") is None
        if name in _WAITING or masks or counted:
            _active.count("wait", name)
    target = ours[0].device if ours else None
    inner_args, inner_kwargs = tree_map(_inner, args), tree_map(_inner, kwargs)
    if wanted is not None:
        target = wanted if wanted.type == NAME else None
        inner_kwargs["device"] = torch.device("cpu") if wanted.type == NAME else wanted
        if name == "_to_copy" and bool(ours) != (target is not None):
            _active.count("wait" if ours else "upload", name)
    if name == "copy_":
        target = args[0].device if isinstance(args[0], Simulated) else None
        if isinstance(args[0], Simulated) != isinstance(args[1], Simulated):
            _active.count("upload" if target is not None else "wait", name)
    if inner_kwargs.get("pin_memory"):
        inner_kwargs["pin_memory"] = False
    result = func(*inner_args, **inner_kwargs)
    if target is None or name == "_local_scalar_dense":
        return result
    same = {id(tensor.inner): tensor for tensor in ours}  # what was changed in place stays the same object
    for tensor in ours:
        if tensor.shape != tensor.inner.shape:
            raise NotImplementedError(f"{name} changes the shape of a tensor in place, which is not simulated")

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return same[id(value)] if id(value) in same else Simulated(value, target)

    return tree_map(wrap, result)


def _check_devices(name: str, tensors: Sequence[torch.Tensor], ours: Sequence[Simulated]) -> None:
    """Refuse tensors of two devices. As on a GPU, a number may be the CPU's, and so may indices, which are uploaded."""
    assert _active is not None
    devices = {str(tensor.device) for tensor in ours}
    strangers = [tensor for tensor in tensors if not isinstance(tensor, Simulated) and tensor.dim() > 0]
    if strangers and name in _INDEXING and isinstance(tensors[0], Simulated):
        _active.count("upload", name)
    elif strangers:
        devices.add(str(strangers[0].device))
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {' and '.join(sorted(devices))} in {name}"
        )


def _numbered(device: torch.device) -> torch.device:
    return torch.device(NAME, 0) if device.type == NAME and device.index is None else device


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("query")
        if not isinstance(first, Simulated) or any(issubclass(kind, Joined) for kind in types):
            return func(*args, **kwargs)  # a shared prompt answers for itself, from parts that are on the device
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is torch.Tensor.tolist:
            assert _active is not None
            _active.count("wait", "tolist")
            return first.inner.tolist()
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            raise TypeError(f"can't convert {first.device} device type tensor to numpy. Use Tensor.cpu() first")
        return first if func is torch.Tensor.pin_memory else func(*args, **kwargs)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attend by operations that all devices have. They add the mask, of which a boolean one would be 1."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
    attended: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return attended


class _NoGrad:
    """In place of inference mode, whose tensors a wrapper cannot hold."""

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self.before and not self.mode)

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(self.before)


class _Backend:
    """What torch asks of a device's module; there is no device outside of `simulated_device`."""

    def is_available(self) -> bool:
        return _active is not None

    def is_initialized(self) -> bool:
        return _active is not None

    def device_count(self) -> int:
        return DEVICES if _active is not None else 0

    def current_device(self) -> int:
        return 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [] if _active is None else _active.halves

    def empty_cache(self) -> None: ...

    def synchronize(self, device: object = None) -> None: ...

    def set_device(self, device: object) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def _is_in_bad_fork(self) -> bool:
        return False


@contextlib.contextmanager
def simulated_device(halves: Sequence[torch.dtype] = (), *, float64: bool = True) -> Iterator[Traffic]:
    """Let torch see two accelerators `sim:0` and `sim:1`.

    Args:
        halves: types of half precision that they say they compute in.
        float64: False refuses tensors of this type, as MPS does.
    """
    global _active
    assert _REGISTER is not None
    if not hasattr(torch, NAME):
        _REGISTER(NAME, backend_module=_Backend())
    run = threading.Thread.run

    def run_in_modes(thread: threading.Thread) -> None:
        with _modes():
            run(thread)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch._C, "_InferenceMode", _NoGrad))
        stack.enter_context(mock.patch.object(threading.Thread, "run", run_in_modes))
        overwrite = torch.__future__.set_overwrite_module_params_on_conversion
        overwrite(True)  # assigning `.data` would lose the wrapper
        stack.callback(overwrite, False)
        _active = Traffic(halves, float64)
        try:
            with _modes():
                yield _active
        finally:
            _active = None


@contextlib.contextmanager
def _modes() -> Iterator[None]:
    """See all operations of this thread."""
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(x, device=...) is to copy where the modes see it
    try:
        with _Function(), _Dispatch():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
