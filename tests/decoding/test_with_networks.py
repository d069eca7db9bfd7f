"""Decoders that need more of a utility than scores, on random networks in the public checkpoint formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hf_acpmbr import ACPMBR
from hf_acpmbr.decoding import MBR, AggregationMBR, CentroidMBR, HalvingMBR, QEFilterMBR, QERerank
from hf_acpmbr.recipe import Budget
from hf_acpmbr.scoring import Utility, load_utility

from ..metrics.checkpoints import SENTENCES, write_comet

SOURCE, DRAWN = SENTENCES[8], [*SENTENCES[:6], *SENTENCES[2:5], SENTENCES[3]]


@pytest.fixture(scope="module")
def comet(tmp_path_factory: pytest.TempPathFactory) -> Utility:
    folder: Path = tmp_path_factory.mktemp("comet")
    return load_utility(str(write_comet(folder, 6, class_identifier="regression_metric")))


@pytest.fixture(scope="module")
def kiwi(tmp_path_factory: pytest.TempPathFactory) -> Utility:
    folder: Path = tmp_path_factory.mktemp("kiwi")
    options = {"class_identifier": "unified_metric", "input_segments": ["mt", "src"], "sent_layer": "mix"}
    return load_utility(str(write_comet(folder, 1, **options)))


def test_comet_by_averages_and_centroids_becomes_mbr_at_full_size(comet):
    full = MBR().decode(DRAWN, target=comet, source=SOURCE)
    for decoder in (AggregationMBR(partitions=len(DRAWN)), CentroidMBR(centroids=6, weighted=True)):
        got = decoder.decode(DRAWN, target=comet, source=SOURCE)
        np.testing.assert_allclose(got.expected, full.expected, atol=1e-6)
        assert got.text == full.text


def test_one_average_and_few_centroids_cost_few_calls(comet):
    assert AggregationMBR().decode(DRAWN, target=comet, source=SOURCE).total_calls == 6
    assert CentroidMBR(centroids=2).decode(DRAWN, target=comet, source=SOURCE).total_calls == 12
    assert HalvingMBR(Budget(reduction=5)).decode(DRAWN, target=comet, source=SOURCE).total_calls <= 20


def test_reranking_and_filtering_by_a_quality_estimator(comet, kiwi):
    scores = dict(zip(SENTENCES, kiwi.score(SENTENCES, None, [SOURCE] * len(SENTENCES)), strict=True))
    got = QERerank().decode(DRAWN, target=kiwi, source=SOURCE)
    assert got.text == max(DRAWN, key=scores.__getitem__)
    kept = sorted(set(DRAWN), key=lambda text: -scores[text])[:3]
    among = [text for text in DRAWN if text in kept]
    filtered = QEFilterMBR(keep=3).decode(DRAWN, target=comet, guides=kiwi, source=SOURCE)
    assert filtered.text == MBR().decode(among, target=comet, source=SOURCE).text
    with pytest.raises(ValueError, match="needs the source text"):
        QERerank().decode(DRAWN, target=kiwi)


def test_the_default_is_full_mbr_where_texts_cost_and_pairs_do_not(comet, kiwi):
    texts = [f"{text} {k}" for k in range(3) for text in SENTENCES[:8]]
    got = ACPMBR(target=comet).rerank(texts, source=SOURCE)
    full = MBR().decode(texts, target=comet, source=SOURCE)
    assert got.exact
    assert "each text is encoded once" in got.status
    np.testing.assert_allclose(got.expected, full.expected, atol=1e-6)
    assert got.encodings == {comet.name: 25}  # the texts and the source
    assert f"25 {comet.name} encodings" in got.summary()
    # A stated budget is kept to, and so is one for a utility that reads pairs.
    budgeted = ACPMBR(target=comet, recipe="fast").rerank(texts, source=SOURCE)
    assert not budgeted.exact
    assert budgeted.calls[comet.name] <= 2 * len(texts)
    assert load_utility("ter").encodes_texts is kiwi.encodes_texts is False


def test_encodings_are_counted_for_each_of_several_sources(comet):
    lists = [[f"{text} {k}" for text in SENTENCES[: 5 + k]] for k in range(4)]
    lists.append(lists[0])  # shared texts are encoded once, for the first source that asks
    sources = [f"{SOURCE} {k}" for k in range(5)]
    mbr = ACPMBR(target=comet)
    together = [decision.encodings.get(comet.name, 0) for decision in mbr.rerank_many(lists, sources)]
    alone = [mbr.rerank(texts, source).encodings[comet.name] for texts, source in zip(lists, sources, strict=True)]
    assert alone == [6, 7, 8, 9, 6]
    assert together == [6, 7, 8, 9, 1]
