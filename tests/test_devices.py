"""Which device a model or utility takes, and where half precision pays: by what torch says of the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_acpmbr.devices import checked_device, computes_in, default_device
from hf_acpmbr.generation.models import load_model
from hf_acpmbr.scoring import load_utility


def pretend(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, types: set[torch.dtype] | None, capability: Any = None
) -> None:
    """Let torch see an accelerator of this kind, that lists these types; `capability` is what its own module says."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: kind is not None)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: kind and torch.device(kind))
    if types is None:  # a release that does not say
        monkeypatch.delattr("torch.accelerator.get_device_capability", raising=False)
    else:
        monkeypatch.setattr(
            "torch.accelerator.get_device_capability", lambda device: {"supported_dtypes": types}, raising=False
        )
    if kind is not None:
        if not hasattr(torch, kind):
            monkeypatch.setattr(torch, kind, SimpleNamespace(), raising=False)
        monkeypatch.setattr(f"torch.{kind}.get_device_capability", capability, raising=False)


def test_models_and_utilities_go_to_the_same_accelerator_whatever_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cuda", "xpu", "mps", "hpu", None):
        pretend(monkeypatch, kind, set())
        assert default_device() == (kind or "cpu")
        assert load_utility("embedded").device == (kind or "cpu")
    asked: list[str] = []
    monkeypatch.setattr("hf_acpmbr.generation.models.default_device", lambda: asked.append("model") or "cpu")
    load_model("embedded", target_language="de", source_language="en")
    assert asked == ["model"]


def test_a_name_that_is_no_device_is_refused() -> None:
    assert checked_device("cuda:1") == "cuda:1"
    with pytest.raises(ValueError, match="device='gpu' is not a device of torch"):
        checked_device("gpu")


@pytest.mark.parametrize(
    ("generation", "half", "brain"), [((6, 1), False, False), ((7, 5), True, False), ((8, 0), True, True)]
)
def test_a_gpu_of_nvidia_says_its_generation(
    monkeypatch: pytest.MonkeyPatch, generation: tuple[int, int], half: bool, brain: bool
) -> None:
    # It lists bfloat16 even where it is emulated.
    listed = {torch.float32, torch.float16, torch.bfloat16}
    pretend(monkeypatch, "cuda", listed, lambda device: generation)
    assert (computes_in("float16", "cuda:0"), computes_in("bfloat16", "cuda:0")) == (half, brain)
    assert load_utility("bleurt-20", device="cuda:0").dtype == ("float16" if half else "float32")
    assert load_utility("metricx-24", device="cuda:0").dtype == ("bfloat16" if brain else "float32")


def test_other_accelerators_list_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "xpu", {torch.float32, torch.float16}, lambda device: {"name": "x"})
    assert computes_in("float16", "xpu:0")
    assert not computes_in("bfloat16", "xpu:0")
    pretend(monkeypatch, "hpu", {torch.float32, torch.bfloat16})
    assert computes_in("bfloat16", "hpu")
    assert not computes_in("float16", "hpu")
    pretend(monkeypatch, "hpu", None)
    assert not computes_in("float16", "hpu"), "what nobody says is float32"


def test_a_device_that_is_not_there_is_for_loading_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "hpu", set())
    assert computes_in("float16", "cuda:1")
    pretend(monkeypatch, None, None)
    assert computes_in("float16", "cuda:1")


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_auto_is_float32_on_a_cpu_even_with_units(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: True, raising=False)
    assert computes_in("bfloat16", device)
    assert not computes_in("float16", device)
    assert load_utility("metricx-24", device=device).dtype == "float32"
    assert load_utility("metricx-24", device=device).batch_tokens == 2048  # type: ignore[attr-defined]
