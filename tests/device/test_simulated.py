"""The simulated device itself: it refuses what a GPU refuses, and counts what a GPU charges for."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from hf_acpmbr.devices import computes_in, default_device

from .simulated import Simulated, needs_hook, simulated_device

pytestmark = needs_hook
Work = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def refused(work: Work) -> Exception:
    """What an operation on tensors of the CPU and of both devices raises."""
    with simulated_device():
        with pytest.raises(Exception) as raised:
            work(torch.ones(3), torch.ones(3, device="sim:0"), torch.ones(3).to("sim:1"))
        return raised.value


@pytest.mark.parametrize(
    "work",
    [
        lambda cpu, zero, one: cpu + zero,
        lambda cpu, zero, one: zero + one,
        lambda cpu, zero, one: torch.cat([zero, cpu]),
        lambda cpu, zero, one: zero.add_(one),
        lambda cpu, zero, one: cpu[zero.long()],
        lambda cpu, zero, one: torch.nn.functional.scaled_dot_product_attention(zero[None], zero[None], cpu[None]),
    ],
)
def test_tensors_of_two_devices_do_not_meet(work: Work) -> None:
    error = refused(work)
    assert isinstance(error, RuntimeError)
    assert "Expected all tensors to be on the same device" in str(error)


@pytest.mark.parametrize(
    "work",
    [
        lambda cpu, zero, one: zero.numpy(),
        lambda cpu, zero, one: np.asarray(zero),
        lambda cpu, zero, one: pickle.dumps(zero),
    ],
)
def test_the_host_cannot_read_what_was_not_copied(work: Work) -> None:
    assert isinstance(refused(work), TypeError)


def test_a_device_without_float64_refuses_it() -> None:
    with simulated_device(float64=False), pytest.raises(TypeError, match="sim:0 has no float64"):
        torch.ones(3, device="sim").double()


def test_numbers_and_copies_are_those_of_the_cpu() -> None:
    with simulated_device():
        x = torch.arange(6, device="sim").reshape(2, 3)
        assert isinstance(x, Simulated)
        assert str(x.device) == "sim:0"
        assert (2 * x + torch.tensor(1)).to("sim:1").sum(dim=1).cpu().tolist() == [9, 27]
        x[0] = 7
        assert x.cpu().tolist() == [[7, 7, 7], [3, 4, 5]]
        layer = torch.nn.Linear(3, 2)
        expected = layer(torch.ones(1, 3)).detach()
        moved = layer.to("sim")(torch.ones(1, 3, device="sim")).detach().cpu()
        torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize(
    ("work", "waits", "uploads"),
    [
        (lambda x: x + 1, 0, 0),
        (lambda x: x.cpu(), 1, 0),
        (lambda x: x.sum().item(), 1, 0),
        (lambda x: bool((x > 1).any()), 1, 0),
        (lambda x: x.tolist(), 1, 0),
        (lambda x: x[x > 1], 1, 0),
        (lambda x: torch.nonzero(x), 1, 0),
        (lambda x: torch.where(x > 1, x, 0.0), 0, 0),
        (lambda x: x[torch.tensor([0, 1])], 0, 1),
        (lambda x: x + torch.tensor([1.0, 2.0, 3.0]).to(x.device), 0, 1),
        (lambda x: torch.tensor([1.0], device=x.device), 0, 1),
        (lambda x: torch.ones(3, device=x.device), 0, 0),
    ],
)
def test_waits_and_uploads_are_counted(work: Callable[[torch.Tensor], object], waits: int, uploads: int) -> None:
    with simulated_device() as traffic:
        x = torch.arange(3, device="sim", dtype=torch.float32)
        traffic.clear()
        work(x)
    assert (traffic.waits.total(), traffic.uploads.total()) == (waits, uploads)


def test_other_threads_see_the_device_too_and_nobody_does_afterwards() -> None:
    seen: list[object] = []
    with simulated_device() as traffic:
        thread = threading.Thread(target=lambda: seen.append(torch.tensor([3], device="sim:1").item()))
        thread.start()
        thread.join()
        assert default_device() == "sim"
    assert seen == [3]
    assert traffic.waits.total() == traffic.uploads.total() == 1
    assert default_device() == "cpu"
    assert not isinstance(torch.ones(2), Simulated)


def test_memory_is_held_until_the_last_view_is_gone_and_runs_out() -> None:
    with simulated_device() as traffic:
        device = torch.device("sim:0")
        x = torch.zeros(1000, device="sim")
        view = x[:10]
        del x
        assert traffic.held[device] == 4000
        traffic.budget = 7000
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.zeros(1000, device="sim")
        torch.zeros(1000, device="sim:1")
        del view
        assert traffic.held[device] == 0
        torch.zeros(1000, device="sim")
        assert traffic.refused == 1


def test_the_device_says_which_types_it_computes_in() -> None:
    for halves in ([], [torch.bfloat16], [torch.float16, torch.bfloat16]):
        with simulated_device(halves):
            assert [computes_in(name, "sim:1") for name in ("float16", "bfloat16")] == [
                dtype in halves for dtype in (torch.float16, torch.bfloat16)
            ]
