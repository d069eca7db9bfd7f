"""Where a model or a utility goes if no device is named, and where half precision pays."""

from __future__ import annotations

import functools

# The first of Nvidia's generations with matrix units for a type: Volta, Ampere.
_FIRST_UNITS = {"float16": 7, "bfloat16": 8}


def default_device() -> str:
    """Return the kind of accelerator that torch sees (cuda, mps, xpu, npu, hpu, ...), else "cpu"."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None else found.type


def checked_device(name: str) -> str:
    """Return the name as torch writes it, or refuse what is no device of torch."""
    import torch

    try:
        return str(torch.device(name))
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is not a device of torch, such as cpu, cuda:0 or mps") from error


@functools.cache
def has_float64(kind: str) -> bool:
    """Return whether devices of a kind compute in float64, which Apple's do not."""
    import torch

    try:
        torch.zeros(1, dtype=torch.float64, device=kind)
    except (TypeError, RuntimeError):
        return False
    return True


def computes_in(dtype: str, device: str) -> bool:
    """Return whether a device has units for "float16" or "bfloat16", as far as it says so."""
    import torch

    kind = torch.device(device).type
    if kind == "cpu":
        known = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)  # older releases do not say
        return dtype == "bfloat16" and bool(known())
    if kind != default_device():
        return True  # loading will say that the device is not there
    # CUDA answers with a generation, whose emulated types torch counts as supported; others list their types.
    module = getattr(torch, kind, None)
    ask = getattr(module, "get_device_capability", None)
    if ask is not None and isinstance(answer := ask(device), tuple):
        return bool(answer[0] >= _FIRST_UNITS[dtype])
    try:
        listed = torch.accelerator.get_device_capability(torch.device(device))["supported_dtypes"]
    except (AttributeError, RuntimeError):  # releases before 2.9, and devices of other packages than torch
        listed = getattr(module, "get_amp_supported_dtype", list)()
    return getattr(torch, dtype) in listed
