"""BERTScore, embedding cosine and MetricX on random checkpoints, against plain one-by-one programs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer, MT5ForConditionalGeneration

from hf_acpmbr.utilities import load_utility

from .checkpoints import SENTENCES, write_encoder, write_metricx

HYPOTHESES, REFERENCES = SENTENCES[:5], SENTENCES[3:9]
ROWS, COLUMNS = np.divmod(np.arange(30), 6)


@pytest.fixture(scope="module", params=["bert", "xlm-roberta"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"), request.param)


def states(folder: Path, text: str, layer: int) -> tuple[list[int], torch.Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids = tokenizer(text)["input_ids"]
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0]
    return ids, hidden


def plain_bertscore(folder: Path, hypothesis: str, reference: str, layer: int, idf: dict[int, float] | None) -> list:
    """Precision, recall, F1 by definition: special tokens can be matched but weigh nothing."""
    ids_h, h = states(folder, hypothesis, layer)
    ids_r, r = states(folder, reference, layer)

    def side(ids: list[int], own: torch.Tensor, other: torch.Tensor) -> float:
        total = weight_sum = 0.0
        for position in range(1, len(ids) - 1):
            weight = 1.0 if idf is None else idf.get(ids[position], idf[-1])
            best = max(float(torch.cosine_similarity(own[position], vector, dim=0)) for vector in other)
            total, weight_sum = total + weight * best, weight_sum + weight
        return total / weight_sum

    precision, recall = side(ids_h, h, r), side(ids_r, r, h)
    return [precision, recall, 2 * precision * recall / (precision + recall)]


@pytest.mark.parametrize("idf", [False, True])
def test_bertscore_equals_its_definition(encoder: Path, idf: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    table = None
    if idf:
        documents = [set(tokenizer(text)["input_ids"]) for text in REFERENCES]
        table = {token: math.log(7 / (sum(token in d for d in documents) + 1)) for d in documents for token in d}
        table[-1] = math.log(7)
    pairs = [(0, 0), (1, 4), (3, 0), (4, 5), (2, 2)]
    expected = [plain_bertscore(encoder, HYPOTHESES[i], REFERENCES[j], 2, table) for i, j in pairs]
    for position, output in enumerate(("precision", "recall", "f1")):
        utility = load_utility("bertscore", checkpoint=str(encoder), layer=2, idf=idf, output=output, batch_tokens=64)
        matrix = utility.prepare(HYPOTHESES, REFERENCES)(ROWS, COLUMNS).reshape(5, 6)
        np.testing.assert_allclose([matrix[i, j] for i, j in pairs], [e[position] for e in expected], atol=1e-5)


def test_bertscore_encodes_each_text_once_and_halves_symmetric_pairs(encoder: Path) -> None:
    scorer = load_utility("bertscore", checkpoint=str(encoder)).prepare(HYPOTHESES, HYPOTHESES)
    rows, columns = np.divmod(np.arange(25), 5)
    matrix = scorer(rows, columns).reshape(5, 5)
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), 1.0, atol=1e-6)
    assert scorer.calls == 15
    assert scorer.statistics.encoded == 5
    scorer(rows, columns)
    assert scorer.calls == 15


def test_bertscore_of_empty_and_rescaled_texts(encoder: Path) -> None:
    utility = load_utility("bertscore", checkpoint=str(encoder))
    assert utility.score(["", ""], [SENTENCES[0], ""]).tolist() == [0.0, 0.0]
    plain = utility.score([SENTENCES[0]], [SENTENCES[1]])
    rescaled = load_utility("bertscore", checkpoint=str(encoder), baseline=0.4).score([SENTENCES[0]], [SENTENCES[1]])
    np.testing.assert_allclose(rescaled, (plain - 0.4) / 0.6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_embedding_cosine_equals_its_definition(encoder: Path, pooling: str) -> None:
    def vector(text: str) -> torch.Tensor:
        hidden = states(encoder, text, -1)[1]
        return {"mean": hidden.mean(dim=0), "cls": hidden[0], "max": hidden.max(dim=0).values}[pooling]

    scorer = load_utility("embedding-cosine", checkpoint=str(encoder), pooling=pooling).prepare(HYPOTHESES, REFERENCES)
    expected = [
        [float(torch.cosine_similarity(vector(h), vector(r), dim=0)) for r in REFERENCES[:2]] for h in HYPOTHESES
    ]
    matrix = scorer(ROWS, COLUMNS).reshape(5, 6)
    np.testing.assert_allclose(matrix[:, :2], expected, atol=1e-5)
    np.testing.assert_allclose(scorer(ROWS[:3], COLUMNS[:3]), matrix[0, :3], atol=1e-12)
    h, r = scorer.vectors()
    np.testing.assert_allclose(h @ r.T, matrix, atol=1e-6)
    mean = r.mean(axis=0) / np.linalg.norm(r.mean(axis=0))
    np.testing.assert_allclose(scorer.aggregate_scores(np.arange(5), np.full((1, 6), 1 / 6))[:, 0], h @ mean, atol=1e-6)


def test_sentence_transformers_pooling_is_read(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "bert")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert load_utility("embedding-cosine", checkpoint=str(folder)).pooling == "cls"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("version", [23, 24])
def test_metricx_equals_stock_mt5(tmp_path: Path, version: int, tied: bool) -> None:
    folder = write_metricx(tmp_path, tied)
    model = MT5ForConditionalGeneration.from_pretrained(folder).eval()
    weights = load_file(folder / "model.safetensors")
    readout = weights["shared.weight"] * 16**-0.5 if tied else weights["lm_head.weight"]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    token = 7
    source = SENTENCES[10]
    options = {"version": version, "score_token": token, "batch_tokens": 200}

    def plain(text: str) -> float:
        ids = torch.tensor([pieces.encode(text)])
        with torch.no_grad():
            out = model(input_ids=ids, decoder_input_ids=torch.tensor([[0]]), output_hidden_states=True)
        return float((out.decoder_hidden_states[-1][0, 0] @ readout[token]).clamp(0, 25))

    def text(h: str, r: str | None) -> str:
        if version == 23:
            return f"candidate: {h} reference: {r}" if r is not None else f"candidate: {h} source: {source}"
        return f"source: {source} candidate: {h}" + ("" if r is None else f" reference: {r}")

    expected = np.array([[plain(text(h, r)) for r in REFERENCES] for h in HYPOTHESES])
    scorer = load_utility(str(folder), **options).prepare(HYPOTHESES, REFERENCES, source)
    np.testing.assert_allclose(scorer(ROWS, COLUMNS).reshape(5, 6), expected, atol=1e-4)
    assert len(np.unique(expected.round(3))) > 5, "scores must differ, or parity shows nothing"
    free = load_utility(str(folder), reference_free=True, **options)
    np.testing.assert_allclose(
        free.score(HYPOTHESES, None, [source] * 5), [plain(text(h, None)) for h in HYPOTHESES], atol=1e-4
    )
    assert not free.higher_is_better


def test_metricx_names_say_version_and_kind() -> None:
    for name, version, source, reference in [
        ("google/metricx-24-hybrid-xl-v2p6", 24, True, True),
        ("google/metricx-23-xl-v2p0", 23, False, True),
        ("google/metricx-23-qe-large-v2p0", 23, True, False),
    ]:
        utility = load_utility(name)
        assert (utility.version, utility.needs_source, utility.needs_reference) == (version, source, reference)
