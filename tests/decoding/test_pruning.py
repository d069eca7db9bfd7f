from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, PruningMBR
from hf_acpmbr.decoding.pruning import win_rates

from .worlds import World, random_for, shuffled


def plain_win_rates(rows: list[list[float]], samples: list[list[int]]) -> list[float]:
    """Resampled means of every row against those of the best row; samples[b] lists positions drawn with replacement."""
    means = [sum(row) / len(row) for row in rows]
    best = means.index(max(means))
    wins = [0] * len(rows)
    for sample in samples:
        resampled = [sum(row[k] for k in sample) / len(sample) for row in rows]
        for i, value in enumerate(resampled):
            wins[i] += value >= resampled[best] - 1e-12
    return [won / len(samples) for won in wins]


def plain_pruning(world, target, seed, alpha, schedule, bootstrap):
    """Cheng & Vlachos 2023 over the expanded list of references."""
    references = shuffled(world.drawn, seed)
    rng = random_for(seed, 1)
    alive = list(world.texts)
    for r in schedule:
        seen = references[: min(r, len(references))]
        rows = [[target.of_texts(h, s) for s in seen] for h in alive]
        kinds = list(dict.fromkeys(seen))
        counts = np.array([seen.count(kind) for kind in kinds])
        drawn = rng.multinomial(len(seen), counts / len(seen), size=bootstrap)
        place = {kind: seen.index(kind) for kind in kinds}
        samples = [[place[k] for k, c in zip(kinds, row, strict=True) for _ in range(c)] for row in drawn]
        rates = plain_win_rates(rows, samples)
        means = {h: sum(row) / len(row) for h, row in zip(alive, rows, strict=True)}
        alive = [h for h, rate in zip(alive, rates, strict=True) if rate > 1 - alpha]
        if len(alive) == 1 or r >= len(references):
            break
    return max(alive, key=means.__getitem__), alive, means


@given(st.integers(0, 1000), st.sampled_from([0.6, 0.9, 0.99]))
def test_equals_the_plain_algorithm(seed, alpha):
    world = World.make(seed, unique=10, draws=24)
    target = world.target()
    best, alive, means = plain_pruning(world, target, seed, alpha, (4, 8, 16), 40)
    got = PruningMBR(alpha=alpha, schedule=(4, 8, 16), bootstrap=40).decode(world.drawn, target=target, seed=seed)
    assert got.text == best
    assert list(got.rounds)[-1] == len(alive)
    assert {r.text for r in got.nbest(len(alive))} == set(alive)
    for entry in got.nbest(len(alive)):
        assert entry.expected == pytest.approx(means[entry.text])


def test_win_rates_of_clear_cases():
    rng = np.random.default_rng(0)
    values = np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [3.0, 0.0, 0.0]])
    best, worst, twin, gamble = win_rates(values, np.array([2, 3, 1]), 4000, rng)
    assert best == twin == 1.0
    assert worst == 0.0
    # Three of six draws of the first reference or more give at least the best row's mean: P(Binomial(6, 1/3) ≥ 2).
    assert gamble == pytest.approx(1 - (2 / 3) ** 6 - 6 * (1 / 3) * (2 / 3) ** 5, abs=0.03)


def test_calls_fall_as_candidates_are_dropped():
    world = World.make(2, unique=40, draws=80, dimension=8)
    got = PruningMBR(alpha=0.8, schedule=(8, 16, 32, 64)).decode(world.drawn, target=world.target())
    sizes = list(got.rounds)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 40
    assert got.total_calls < MBR().decode(world.drawn, target=world.target()).total_calls / 2


def test_a_pruned_candidate_never_comes_before_a_survivor():
    """Its estimate stems from few references and may be the highest number of all."""
    for seed in range(20):
        world = World.make(seed, unique=20, draws=60)
        got = PruningMBR(alpha=0.7, schedule=(3, 30), bootstrap=50).decode(
            world.drawn, target=world.target(), seed=seed
        )
        survivors = list(got.rounds)[-1]
        values = [entry.expected for entry in got.nbest(survivors)]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, "alpha must be above 0 and below 1"),
        ({"alpha": "high"}, "alpha must be a number"),
        ({"schedule": []}, "schedule must have at least 1 entries"),
        ({"schedule": [8, 8]}, "schedule must rise"),
        ({"schedule": [0, 8]}, r"schedule\[0\] must be at least 1"),
        ({"bootstrap": 0}, "bootstrap must be"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PruningMBR(**options)


def test_it_is_exact_only_if_nobody_was_dropped():
    pruning = PruningMBR(alpha=0.9, schedule=(6, 24), bootstrap=50)
    worlds = (World.make(seed, unique=10, draws=24) for seed in range(20))
    seen = [got for w in worlds if "24 of 24" in (got := pruning.decode(w.drawn, target=w.target())).status]
    assert any(got.rounds[-1] < 10 for got in seen)
    assert all(got.exact == (got.rounds[-1] == 10) for got in seen)
    same = World({text: np.ones(3) for text in seen[0].candidates.texts}, list(seen[0].candidates.texts), {})
    assert pruning.decode(same.drawn, target=same.target()).exact, "candidates that are equally good all stay"
