from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, AggregationMBR
from hf_acpmbr.scoring import MatrixUtility

from .worlds import World, shuffled


def plain_aggregate_chrf(hypothesis: str, references: list[str], order: int = 6, beta: float = 2.0) -> float:
    """chrF against mean n-gram counts, from Counters over the expanded list of references."""
    precisions, recalls = [], []
    strip = "".join(hypothesis.split())
    for n in range(1, order + 1):
        own = Counter(strip[k : k + n] for k in range(len(strip) - n + 1))
        mean: Counter[str] = Counter()
        for reference in references:
            text = "".join(reference.split())
            for k in range(len(text) - n + 1):
                mean[text[k : k + n]] += 1 / len(references)
        total = sum(mean.values())
        if not own or not total:
            continue
        matched = sum(min(count, mean[gram]) for gram, count in own.items())
        precisions.append(matched / sum(own.values()))
        recalls.append(matched / total)
    if not precisions:
        return 0.0
    p, r = np.mean(precisions), np.mean(recalls)
    return 100 * (1 + beta**2) * p * r / (beta**2 * p + r) if p + r else 0.0


DRAWN = [
    "the cat sat",
    "a cat sat down",
    "the cat sat",
    "the dog ran",
    "cats sit",
    "the cat sat down",
    "no",
    "a cat sat",
]


def test_chrf_equals_counters_over_the_expanded_list():
    got = AggregationMBR().decode(DRAWN, target="chrf")
    expected = [plain_aggregate_chrf(text, DRAWN) for text in got.candidates.texts]
    np.testing.assert_allclose(got.expected, expected, atol=1e-9)
    assert got.index == int(np.argmax(expected))
    assert got.calls == {"chrf": len(got.candidates)}


@given(st.integers(0, 1000), st.integers(1, 30))
def test_partitions_equal_the_plain_means_of_vectors(seed, partitions):
    world = World.make(seed)
    target = world.target()
    references = shuffled(world.drawn, seed)
    parts = np.array_split(np.arange(len(references)), partitions)
    expected = []
    for h in world.texts:
        total = 0.0
        for part in parts:
            mean = sum(world.vectors[references[k]] for k in part) / len(part)
            total += len(part) * float(target.of_vectors(world.vectors[h], mean))
        expected.append(total / len(references))
    got = AggregationMBR(partitions=partitions).decode(world.drawn, target=target, seed=seed)
    np.testing.assert_allclose(got.expected, expected, atol=1e-12)
    assert got.text == world.texts[int(np.argmax(expected))]


def test_one_reference_for_each_partition_is_mbr():
    world = World.make(2)
    got = AggregationMBR(partitions=10_000).decode(world.drawn, target=world.target())
    full = MBR().decode(world.drawn, target=world.target())
    np.testing.assert_allclose(got.expected, full.expected, atol=1e-12)


@given(st.integers(0, 1000), st.integers(1, 12))
def test_aggregate_to_fine_is_mbr_among_the_best_by_aggregate(seed, fine):
    world = World.make(seed)
    coarse = AggregationMBR().decode(world.drawn, target=world.target())
    full = MBR().decode(world.drawn, target=world.target())
    best = [entry.index for entry in coarse.nbest(fine)]
    got = AggregationMBR(fine=fine).decode(world.drawn, target=world.target())
    assert got.index == max(best, key=lambda i: full.expected[i])
    assert [entry.index for entry in got.nbest()][fine:] == [entry.index for entry in coarse.nbest()][fine:]
    assert got.total_calls == 12 + fine * 12


def test_a_utility_without_representations_is_refused():
    with pytest.raises(ValueError, match=r"aggregation averages .* 'matrix' does not have: use .*'chrf'"):
        AggregationMBR().decode(["0", "1"], target=MatrixUtility(np.eye(2)))


@pytest.mark.parametrize("options", [{"partitions": 0}, {"fine": -1}, {"fine": 1.5}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        AggregationMBR(**options)
