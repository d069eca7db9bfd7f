from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, DiverseMBR
from hf_acpmbr.decoding.diverse import diverse_set

from .worlds import World


def objective(value, similarity, chosen, diversity):
    """Σ E(i) − diversity/|H| · Σ_{i≠j} s(i, j)."""
    among = similarity[np.ix_(chosen, chosen)]
    return float(value[chosen].sum() - diversity / len(chosen) * (among.sum() - np.trace(among)))


def plain_objective(world, target, alike, chosen, diversity):
    """Σ E(i) − λ/|H| Σ_{i≠j} s(i, j), from loops over all draws."""
    value = sum(sum(target.of_texts(h, r) for r in world.drawn) / len(world.drawn) for h in chosen)
    crowd = sum(alike.of_texts(a, b) for a in chosen for b in chosen if a != b)
    return value - diversity / len(chosen) * crowd


@given(st.integers(0, 500), st.integers(1, 4), st.sampled_from([0.0, 0.1, 0.5, 2.0]))
def test_the_set_has_the_reported_objective_and_no_exchange_improves_it(seed, size, diversity):
    world = World.make(seed, unique=9, draws=20)
    target = world.target()
    got = DiverseMBR(size=size, diversity=diversity).decode(world.drawn, target=target)
    chosen = [entry.text for entry in got.nbest()]
    assert len(chosen) == size
    reached = plain_objective(world, target, target, chosen, diversity)
    assert [got.candidates.texts[k] for k in got.shortlist] == sorted(chosen, key=got.candidates.texts.index)
    for leaving in chosen:
        for entering in set(world.texts) - set(chosen):
            other = [entering if text == leaving else text for text in chosen]
            assert plain_objective(world, target, target, other, diversity) <= reached + 1e-9


def test_close_to_the_best_set_of_all():
    shares = []
    for seed in range(30):
        world = World.make(seed, unique=9, draws=20)
        target = world.target()
        got = DiverseMBR(size=3, diversity=1.0).decode(world.drawn, target=target)
        values = [plain_objective(world, target, target, c, 1.0) for c in combinations(world.texts, 3)]
        reached = plain_objective(world, target, target, [entry.text for entry in got.nbest()], 1.0)
        shares.append((reached - min(values)) / (max(values) - min(values)))
    assert np.mean(shares) > 0.97
    assert min(shares) > 0.85


def test_the_divisor_of_the_authors_code_is_another_scale_of_lambda():
    rng = np.random.default_rng(0)
    value, similarity = rng.random(12), rng.random((12, 12))
    size, theirs = 4, 0.5
    for chosen in (np.array(c) for c in combinations(range(12), size)):
        among = [similarity[a, b] for a in chosen for b in chosen if a != b]
        means = value[chosen].mean() - theirs * np.mean(among)
        ours = objective(value, similarity, chosen, theirs * size / (size - 1))
        assert ours == pytest.approx(size * means)


def test_no_diversity_is_mbrs_n_best_list():
    world = World.make(1)
    got = DiverseMBR(size=5, diversity=0).decode(world.drawn, target=world.target())
    full = MBR().decode(world.drawn, target=world.target())
    assert [r.text for r in got.nbest(12)] == [r.text for r in full.nbest()]
    assert got.exact
    assert got.total_calls == full.total_calls


def test_another_utility_can_say_how_alike_candidates_are():
    world = World.make(2)
    target, alike = world.target(), world.guide()
    got = DiverseMBR(size=3, diversity=1.0, similarity=alike).decode(world.drawn, target=target)
    chosen = [entry.text for entry in got.nbest()]
    reached = plain_objective(world, target, alike, chosen, 1.0)
    for leaving in chosen:
        for entering in set(world.texts) - set(chosen):
            other = [entering if text == leaving else text for text in chosen]
            assert plain_objective(world, target, alike, other, 1.0) <= reached + 1e-9
    assert got.calls == {"target": 144, "guide": 144}
    assert "similarity:guide" in got.full_signature


def test_separate_references_cost_the_pairs_among_candidates():
    world = World.make(3)
    got = DiverseMBR(size=3).decode(world.drawn, references=world.drawn[:5], target=world.target())
    assert got.total_calls == 12 * len(set(world.drawn[:5])) + 12 * 12
    named = DiverseMBR(size=2, similarity="chrf").decode(["a cat", "a dog", "a cat sat"], target="bleu")
    assert set(named.calls) == {"bleu", "chrf"}


def test_more_diversity_makes_the_list_less_alike():
    world = World.make(4, unique=30, draws=60)
    target = world.target()
    alike = []
    for diversity in (0.0, 0.3, 3.0):
        chosen = [r.text for r in DiverseMBR(4, diversity).decode(world.drawn, target=target).nbest()]
        alike.append(np.mean([target.of_texts(a, b) for a in chosen for b in chosen if a != b]))
    assert alike[0] > alike[1] > alike[2]


def test_a_size_beyond_the_candidates_takes_all():
    chosen = diverse_set(np.array([1.0, 2.0]), np.zeros((2, 2)), 5, 0.5, 10)
    assert sorted(chosen.tolist()) == [0, 1]
    assert objective(np.array([1.0, 2.0]), np.ones((2, 2)), chosen, 0.5) == pytest.approx(2.5)


@pytest.mark.parametrize("options", [{"size": 0}, {"diversity": -1}, {"exchanges": -1}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        DiverseMBR(**options)
