from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, CentroidMBR
from hf_acpmbr.decoding.aggregation import k_means

from .worlds import World, random_for


def plain_k_means(points, k, iterations, rng_draw):
    """Lloyd's algorithm over a list in which points repeat; `rng_draw(weights)` picks an index of a distinct point."""
    distinct = sorted({tuple(point) for point in points})
    number = [points.count(point) for point in distinct]

    def squared(a, b):
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))

    chosen = [rng_draw([c / sum(number) for c in number])]
    while len(chosen) < min(k, len(distinct)):
        mass = [
            0.0 if i in chosen else c * min(squared(point, distinct[j]) for j in chosen)
            for i, (point, c) in enumerate(zip(distinct, number, strict=True))
        ]
        chosen.append(rng_draw([m / sum(mass) for m in mass]))
    centres = [distinct[i] for i in chosen]
    for _ in range(iterations):
        clusters = [[] for _ in centres]
        for point in points:
            clusters[int(np.argmin([squared(point, centre) for centre in centres]))].append(point)
        centres = [tuple(np.mean(cluster, axis=0)) for cluster in clusters if cluster]
    return centres


@given(st.integers(0, 500), st.integers(1, 8))
def test_equals_plain_k_means_on_the_expanded_list(seed, k):
    world = World.make(seed, unique=8, draws=18, dimension=2)
    # Numbered by vector so that the order by text is the order by vector, which the plain version uses.
    names = {
        text: f"{rank:03d}" for rank, text in enumerate(sorted(world.texts, key=lambda t: tuple(world.vectors[t])))
    }
    world = World({names[t]: v for t, v in world.vectors.items()}, [names[t] for t in world.drawn], {})
    target, rng = world.target(), random_for(seed, 0)
    points = [tuple(world.vectors[text]) for text in world.drawn]
    centres = plain_k_means(points, k, 12, lambda p: int(rng.choice(len(p), p=p)))
    expected = [
        np.mean([float(target.of_vectors(world.vectors[h], np.array(centre))) for centre in centres])
        for h in world.texts
    ]
    got = CentroidMBR(centroids=k, iterations=12).decode(world.drawn, target=target, seed=seed)
    np.testing.assert_allclose(got.expected, expected, atol=1e-9)
    assert got.text == world.texts[int(np.argmax(expected))]
    assert got.calls == {"target": 8 * len(centres)}


def test_as_many_weighted_centroids_as_references_are_mbr():
    world = World.make(7)
    got = CentroidMBR(centroids=500, weighted=True).decode(world.drawn, target=world.target())
    full = MBR().decode(world.drawn, target=world.target())
    np.testing.assert_allclose(got.expected, full.expected, atol=1e-12)


@given(st.integers(0, 500), st.integers(0, 5))
def test_a_centroid_for_every_draw_is_mbr_over_the_list(seed, more):
    world = World.make(seed, unique=6, draws=14)
    target = world.target()
    expected = [np.mean([target.of_texts(h, r) for r in world.drawn]) for h in world.texts]
    got = CentroidMBR(centroids=len(world.drawn) + more).decode(world.drawn, target=target, seed=seed)
    np.testing.assert_allclose(got.expected, expected, atol=1e-9)
    assert got.calls == {"target": 6 * 6}


def test_k_means_finds_clear_clusters_and_their_shares():
    rng = np.random.default_rng(0)
    middles = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = np.concatenate([middles[k] + 0.1 * rng.normal(size=(20, 2)) for k in range(3)])
    centres, shares = k_means(points, np.repeat([1.0, 2.0, 3.0], 20), 3, 20, rng)
    found = np.argsort(((middles[:, None] - centres[None]) ** 2).sum(-1), axis=1)[:, 0]
    np.testing.assert_allclose(centres[found], middles, atol=0.2)
    np.testing.assert_allclose(shares[found], [1 / 6, 1 / 3, 1 / 2])


def test_equal_vectors_make_one_cluster():
    centres, shares = k_means(np.ones((5, 3)), np.ones(5), 4, 10, np.random.default_rng(0))
    assert centres.shape == (1, 3)
    assert shares.tolist() == [1.0]


def test_a_utility_without_vectors_is_refused():
    with pytest.raises(ValueError, match="centroid clusters sentence vectors, which 'chrf' does not have"):
        CentroidMBR().decode(["a", "b"], target="chrf")


@pytest.mark.parametrize("options", [{"centroids": 0}, {"iterations": -1}, {"weighted": 1}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        CentroidMBR(**options)
