from __future__ import annotations

import json
import math
import random
from argparse import Namespace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file
from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer

from evaluation.training.planted_errors import ORDER, Planter
from evaluation.training.rated_pairs import GROUP, RatedPair, RatedPairs, cached_chunks, joined
from evaluation.training.synthetic_pairs import SAMPLE_SHARE, SyntheticPairs
from evaluation.training.train_utility import split_by_reference
from evaluation.training.utility_network import (
    FULL_WEIGHT,
    MARGIN,
    SIZES,
    SOFTNESS,
    Parts,
    build_network,
    correlation,
    export,
    fit,
    load_network,
    predict,
    training_loss,
    translator_vectors,
)
from hf_acpmbr import load_utility
from hf_acpmbr.embedded import TRANSLATOR, UTILITY_FOLDERS
from hf_acpmbr.metrics.bleurt import BLEURTNetwork


@pytest.fixture(scope="session")
def pieces() -> Path:
    return UTILITY_FOLDERS["embedded"] / "spm.model"


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


@pytest.mark.parametrize("name", SIZES)
def test_the_first_layer_starts_with_equal_pieces_of_the_other_sentence_and_with_neighbours(name: str) -> None:
    torch.manual_seed(0)
    network, heads = build_network(SIZES[name]), SIZES[name].heads
    pieces, order = torch.arange(10, 30), torch.randperm(20)
    segments = torch.arange(40) // 20
    states = network.embeddings(torch.cat([pieces, pieces[order]])[None], segments[None])[0]
    attention = network.encoder.layer[0].attention.self
    query, key = (part(states).unflatten(-1, (heads, -1)).transpose(0, 1) for part in (attention.query, attention.key))
    looks = (query @ key.mT / (SIZES[name].width / heads) ** 0.5).softmax(-1).detach()
    copies = torch.cat([20 + order.argsort(), order])
    assert looks[: heads // 2, torch.arange(40), copies].mean() > 0.5
    assert looks[heads // 2, torch.arange(1, 40), torch.arange(39)].mean() > 0.9
    assert looks[heads // 2 + 1, torch.arange(39), torch.arange(1, 40)].mean() > 0.9


def test_embeddings_start_with_the_similarities_of_known_vectors() -> None:
    vectors = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    vectors[20] = vectors[10] + 0.1 * vectors[11]
    vectors[:5] = 0
    weight = build_network(SIZES["embedded-d1"], vectors=vectors).embeddings.word_embeddings.weight.detach()
    weight = weight[:, : Parts.of(30, 28, 30).content]  # the rest is for places
    likeness = torch.cosine_similarity(weight[10], weight, dim=1)
    assert likeness.argsort(descending=True)[:2].tolist() == [10, 20]
    assert weight[5:].std().item() == pytest.approx(0.05, rel=0.05)
    assert (weight[1:5].abs().sum(1) > 0).all()


def test_the_translators_vectors_are_its_embeddings_of_the_same_pieces(pieces: Path) -> None:
    table = load_file(TRANSLATOR / "model.safetensors")["model.shared.weight"].float()
    numbers = json.loads((TRANSLATOR / "vocab.json").read_text(encoding="utf-8"))
    vectors = translator_vectors(pieces, TRANSLATOR)
    vocabulary = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    shared = [i for i in range(len(vectors)) if vocabulary.id_to_piece(i) in numbers and not vocabulary.is_control(i)]
    assert len(shared) > 10
    for i in shared:
        if not vocabulary.is_unknown(i):
            torch.testing.assert_close(vectors[i], table[numbers[vocabulary.id_to_piece(i)]])
    assert not vectors[vocabulary.piece_to_id("[CLS]")].any()


def test_the_network_learns_a_score(
    pieces: Path, rated: list[RatedPair], training_options: Namespace, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = build_network(SIZES["embedded-d2"])
    data = RatedPairs(rated, pieces, 320)
    training_options.steps, training_options.batch_tokens, training_options.rate = 120, 800, 2e-3
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


def test_the_faults_of_joined_texts_add_up(rated: list[RatedPair]) -> None:
    scores = {(pair.reference, pair.hypothesis): pair.score for pair in rated}
    best, worst = max(scores.values()), min(scores.values())
    made = joined(rated, 40)
    assert len(made) == 40
    assert made == joined(rated, 40)
    for pair in made:
        references, hypotheses = pair.reference.split(". "), pair.hypothesis.split(". ")
        assert 2 <= len(references) == len(hypotheses) <= 4
        parts = zip(references, hypotheses, strict=True)
        known = [scores[r.rstrip(".") + ".", h.rstrip(".") + "."] for r, h in parts]
        assert pair.score == pytest.approx(max(worst, best - sum(best - score for score in known)))
    assert len({pair.reference for pair in made}) == math.ceil(40 / GROUP)


def test_held_out_references_are_not_trained_on(rated: list[RatedPair]) -> None:
    train, held_out = split_by_reference(rated, 10, seed=0)
    assert len(train) + len(held_out) == len(rated)
    assert len(held_out) >= 10
    assert not {pair.reference for pair in train} & {pair.reference for pair in held_out}


def test_a_planted_error_changes_one_thing_and_the_kind_says_what(pairs: list[tuple[str, str]]) -> None:
    rng, planter = random.Random(0), Planter([*(pair[1] for pair in pairs), "Wir sehen ein Kaufhaus."], "de")
    text = "Mein Bruder kaufe das alte Buch."
    found = [planter.plant(text, rng) for _ in range(300)]
    by_kind = {
        error.kind: {other.text for other in found if other and other.kind == error.kind} for error in found if error
    }
    assert by_kind.keys() == planter.kinds.keys()
    assert all(text not in texts for texts in by_kind.values())
    assert by_kind["missing"] <= {
        "Bruder kaufe das alte Buch.",
        "Mein kaufe das alte Buch.",
        "Mein Bruder das alte Buch.",
        "Mein Bruder kaufe alte Buch.",
        "Mein Bruder kaufe das Buch.",
        "Mein Bruder kaufe das alte.",
    }
    assert "Mein Bruder kaufe das alte Buch Buch." in by_kind["doubled"]
    assert {"Mein Bruder Kaufe das alte Buch.", "Mein bruder kaufe das alte Buch."} <= by_kind["case"]
    assert "Mein Bruder kaufe den alte Buch." in by_kind["article"]
    assert "Mein Bruder das kaufe alte Buch." in by_kind["swapped"]
    assert by_kind["moved"] == {
        "Mein kaufe das Bruder alte Buch.",
        "Mein kaufe das alte Bruder Buch.",
        "Mein Bruder das alte kaufe Buch.",
        "Mein das Bruder kaufe alte Buch.",
        "Mein alte Bruder kaufe das Buch.",
        "Mein Bruder alte kaufe das Buch.",
    }
    assert {error.kind for _ in range(50) if (error := planter.plant(text, rng, ORDER))} == set(ORDER)
    assert "Mein Bruder mag das alte Buch." in by_kind["fitting word"]
    assert by_kind["related word"] == {"Mein Bruder Kaufhaus das alte Buch."}
    assert planter.plant("", rng) is None


def test_synthetic_scores_know_humans_errors_and_equal_texts(
    translator: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, pairs: list[tuple[str, str]]
) -> None:
    maker = SyntheticPairs(pairs, (translator, tokenizer), seed=1)
    made = maker.chunk(0, 24)
    assert made == maker.chunk(0, 24)
    assert all(0 <= pair.score <= 1 for pair in made)
    humans = {text for pair in pairs for text in pair}
    equal = [pair for pair in made if pair.reference == pair.hypothesis]
    assert {pair.score for pair in equal if pair.reference in humans} == {1.0}
    samples = [pair for pair in equal if pair.reference not in humans]
    assert samples
    assert all(SAMPLE_SHARE <= pair.score < 1 for pair in samples)  # like itself, and no human translation
    assert {0.75, 0.85} <= {pair.score for pair in made if pair.reference in humans}


def test_pairs_of_one_reference_stay_together(pieces: Path, pairs: list[tuple[str, str]]) -> None:
    rated = [RatedPair(pairs[k % 9][1], pairs[k][1], k / 100) for k in range(90)]
    data = RatedPairs(rated, pieces, 320)
    plan = data.plan(seed=1, epoch=0, batch_tokens=400)
    assert sorted(np.concatenate(plan).tolist()) == list(range(90))
    for indices in plan:
        batch = data.batch(indices)
        assert [rated[k].reference for k in indices] == [
            rated[np.flatnonzero(data.groups == g)[0]].reference for g in batch.groups
        ]
    # Ten hypotheses of a reference make one part of GROUP and one of the rest, each within one batch.
    places = {k: b for b, indices in enumerate(plan) for k in indices}
    for group in range(9):
        counts = np.unique([places[k] for k in np.flatnonzero(data.groups == group)], return_counts=True)[1]
        assert sorted(counts) in ([10 - GROUP, GROUP], [10])
    other = data.plan(seed=1, epoch=1, batch_tokens=400)
    assert {frozenset(indices) for indices in plan} != {frozenset(indices) for indices in other}


def test_the_ranking_loss_counts_pairs_of_one_reference_in_the_wrong_order(pieces: Path) -> None:
    texts = ["Ich sehe Brot.", "Ich mag Brot.", "Er mag nichts."]
    rated = [RatedPair("Ich sehe Brot.", text, score) for text, score in zip(texts, (1.0, 0.9, 0.1), strict=True)]
    rated += [RatedPair("Er mag nichts.", texts[0], 0.9)]
    batch = RatedPairs(rated, pieces, 320).batch(np.arange(4))

    def loss(scores: list[float]) -> float:
        found, count = training_loss(cast(BLEURTNetwork, lambda *_: torch.tensor(scores)), batch)
        return float(found) / count

    def expected(scores: list[float]) -> float:
        total = sum(100 * (s - r.score) ** 2 for s, r in zip(scores, rated, strict=True)) / 4
        ranking = 0.0
        for i, j in ((0, 1), (0, 2), (1, 2)):
            better = rated[i].score - rated[j].score
            lead = scores[i] - scores[j] - min(MARGIN, better)
            ranking += min(1.0, better / FULL_WEIGHT) * math.log1p(math.exp(-lead / SOFTNESS)) / 3
        return total + ranking

    for scores in ([1.0, 0.9, 0.1, 0.9], [0.6, 0.7, 0.5, 0.2]):
        assert loss(scores) == pytest.approx(expected(scores), rel=1e-5)


def test_an_exported_network_is_loaded_as_it_was(pieces: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = build_network(SIZES["embedded-d2"], 56)
    export(network, pieces, tmp_path)
    loaded = load_network(tmp_path)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value.half().float(), rtol=0, atol=0)
