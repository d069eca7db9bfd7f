"""The report of a device has every line, and says of a CPU that it is one."""

from __future__ import annotations

import pytest
import torch

from evaluation.benchmarks.device import Drawing, report
from tests.device.simulated import needs_hook, simulated_device


@pytest.mark.slow
def test_the_report_of_a_cpu() -> None:
    cells = dict(report(torch.device("cpu"), samples=8))
    assert cells["an accelerator"].startswith("NO")
    assert cells["choices"] == "8 of 8 choices and 8 lists of candidates are those of the CPU"
    assert not [value for value in cells.values() if value.startswith("FAILED")]


@needs_hook
def test_what_it_draws_on_a_device_is_what_it_draws_on_a_cpu() -> None:
    sources = ["The cat sat on the mat."]
    expected = Drawing(torch.device("cpu"), sources, 8)()
    with simulated_device():
        drawing = Drawing(torch.device("sim:1"), sources, 8)
        assert drawing().texts == expected.texts
        assert drawing.waits() == "counted on CUDA only"
