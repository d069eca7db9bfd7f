"""The benchmark of stages measures what it says it measures."""

from __future__ import annotations

from evaluation.benchmarks.stages import LINES, measure
from hf_acpmbr import ACPMBR


def test_stages_spend_part_of_their_time_in_forward_passes() -> None:
    mbr = ACPMBR(target="embedded-d1", decoder="mbr")
    few, more = (measure(LINES[3:], mbr, count) for count in (4, 32))
    for stages in (few, more):
        assert 0.1 < stages.sampling_share < 1
        assert 0.1 < stages.scoring_share < 1
        assert stages.pairs == stages.unique**2
    assert few.unique <= 4 < more.unique <= 32
