from __future__ import annotations

import random
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer

from evaluation.embedded.rated_pairs import RatedPair, RatedPairs, cached_chunks, train_pieces
from evaluation.embedded.synthetic_pairs import SyntheticPairs, damage
from evaluation.embedded.train_utility import split_by_reference
from evaluation.embedded.utility_network import SIZES, build_network, correlation, export, fit, predict
from hf_acpmbr import load_utility


@pytest.fixture(scope="session")
def pieces(pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces") / "spm.model"
    train_pieces((text for pair in pairs for text in pair), path, 56, seed=1)
    return path


@pytest.fixture(scope="session")
def rated(pairs: list[tuple[str, str]]) -> list[RatedPair]:
    rng = random.Random(0)
    chosen = [(rng.choice(pairs)[1], rng.choice(pairs)[1]) for _ in range(60)]
    scores = load_utility("chrf").score([h for _, h in chosen], [r for r, _ in chosen]) / 100
    return [RatedPair(r, h, float(score)) for (r, h), score in zip(chosen, scores, strict=True)]


def test_an_exported_network_scores_the_same_through_the_public_loader(
    pieces: Path, rated: list[RatedPair], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = build_network(SIZES["embedded-d2"]).eval()
    torch.nn.init.normal_(network.classifier.weight, std=0.1)
    data = RatedPairs(rated, pieces, 320)
    expected = np.empty(len(data))
    with torch.no_grad():
        for indices in data.plan(0, 0, 500):
            expected[indices] = predict(network, data.batch(indices)).numpy()
    export(network, pieces, tmp_path / "model")
    utility = load_utility(str(tmp_path / "model"))
    found = utility.score([pair.hypothesis for pair in rated], [pair.reference for pair in rated])
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_distilled_sizes_cost_a_quarter_and_a_tenth() -> None:
    def cost(name: str) -> int:
        return sum(p.numel() for key, p in build_network(SIZES[name]).named_parameters() if ".layer." in key)

    assert 3.5 < cost("embedded") / cost("embedded-d1") < 5
    assert 8 < cost("embedded") / cost("embedded-d2") < 12


def test_the_network_learns_a_score(
    pieces: Path, rated: list[RatedPair], training_options: Namespace, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = build_network(SIZES["embedded-d2"])
    data = RatedPairs(rated, pieces, 320)
    training_options.steps, training_options.batch_tokens, training_options.rate = 60, 800, 2e-3
    fit(network, data, {"train": data}, training_options, tmp_path)
    with torch.no_grad():
        assert correlation(network.eval(), data, "train")["pearson_train"] > 0.5


def test_made_chunks_are_not_made_again(rated: list[RatedPair], tmp_path: Path) -> None:
    made: list[int] = []

    def make(k: int) -> list[RatedPair]:
        made.append(k)
        return rated[k::2]

    assert cached_chunks(tmp_path, 2, make) == cached_chunks(tmp_path, 2, make) == [rated[0::2], rated[1::2]]
    assert made == [0, 1]


def test_held_out_references_are_not_trained_on(rated: list[RatedPair]) -> None:
    train, held_out = split_by_reference(rated, 10, seed=0)
    assert len(train) + len(held_out) == len(rated)
    assert len(held_out) >= 10
    assert not {pair.reference for pair in train} & {pair.reference for pair in held_out}


def test_damage_changes_the_words_of_long_texts() -> None:
    rng = random.Random(0)
    text = "one two three four five six seven eight nine"
    damaged = [damage(text, ["zero"], rng) for _ in range(50)]
    assert sum(other != text for other in damaged) > 40
    assert all(set(other.split()) <= {*text.split(), "zero"} for other in damaged)


def test_synthetic_scores_are_one_for_equal_texts_and_between_otherwise(
    translator: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, pairs: list[tuple[str, str]]
) -> None:
    maker = SyntheticPairs(pairs, (translator, tokenizer), samples=1, seed=1)
    made = maker.chunk(0, 12)
    assert made == maker.chunk(0, 12)
    assert all(-1e-6 <= pair.score <= 1 + 1e-6 for pair in made)
    assert all(pair.score == pytest.approx(1.0) for pair in made if pair.reference == pair.hypothesis)
