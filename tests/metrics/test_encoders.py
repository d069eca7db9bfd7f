"""BERTScore, embedding cosine and MetricX on random checkpoints, against plain one-by-one programs."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, MT5ForConditionalGeneration

from hf_acpmbr.metrics.metricx import Pieces
from hf_acpmbr.metrics.tokenization import SpecialTokens
from hf_acpmbr.scoring import load_utility

from . import bertscore_families
from .checkpoints import SENTENCES, train_sentencepiece, write_encoder, write_metricx

HYPOTHESES, REFERENCES = SENTENCES[:5], SENTENCES[3:9]
HALVES = (SENTENCES[:6], SENTENCES[6:12])
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


@pytest.mark.parametrize("output", ["precision", "recall", "f1"])
def test_an_empty_text_has_neither_precision_nor_recall(encoder: Path, output: str) -> None:
    utility = load_utility("bertscore", checkpoint=str(encoder), layer=2, output=output)
    scores = utility.score(["", "a", "a", " "], ["a", "", "a", " "])
    assert scores.tolist() == pytest.approx([0, 0, 1, 0], abs=1e-6)


def test_accents_in_two_characters_are_those_in_one_to_bert(tmp_path: Path) -> None:
    utility = load_utility("bertscore", checkpoint=str(write_encoder(tmp_path, "bert")), layer=2)
    composed, decomposed = (unicodedata.normalize(form, "\u00e9t\u00e9 caf\u00e9") for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert utility.score([composed, decomposed], ["the cat"] * 2)[0] == utility.score([decomposed], ["the cat"])[0]


def test_precision_of_a_pair_is_recall_of_the_swapped_pair_and_not_its_own(encoder: Path) -> None:
    rows, columns = np.divmod(np.arange(9), 3)
    grids = []
    for output in ("precision", "recall"):
        utility = load_utility("bertscore", checkpoint=str(encoder), output=output)
        grids.append(utility.prepare(HYPOTHESES[:3], HYPOTHESES[:3])(rows, columns).reshape(3, 3))
    np.testing.assert_allclose(grids[0], grids[1].T, atol=1e-6)
    assert np.abs(grids[0] - grids[0].T).max() > 1e-3


def test_bertscore_of_empty_and_rescaled_texts(encoder: Path) -> None:
    utility = load_utility("bertscore", checkpoint=str(encoder))
    assert utility.score(["", ""], [SENTENCES[0], ""]).tolist() == [0.0, 0.0]
    plain = utility.score([SENTENCES[0]], [SENTENCES[1]])
    rescaled = load_utility("bertscore", checkpoint=str(encoder), baseline=0.4).score([SENTENCES[0]], [SENTENCES[1]])
    np.testing.assert_allclose(rescaled, (plain - 0.4) / 0.6)


@pytest.fixture
def sentence_transformers() -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")


@pytest.mark.usefixtures("sentence_transformers")
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


MODULES = [
    ("0", "", "Transformer"),
    ("1", "1_Pooling", "Pooling"),
    ("2", "2_Dense", "Dense"),
    ("3", "3_N", "Normalize"),
]


def write_sentence_transformer(folder: Path, pooling: dict, **settings) -> Path:
    """modules.json with pooling, a dense layer and normalisation, as LaBSE has them."""
    write_encoder(folder, "bert")
    modules = [
        {"idx": k, "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for k, (name, path, kind) in enumerate(MODULES)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    for name in ("1_Pooling", "2_Dense"):
        (folder / name).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **pooling}))
    width = 16 * sum(map(bool, pooling.values()))
    dense = {"in_features": width, "out_features": 5, "bias": True}
    dense["activation_function"] = "torch.nn.modules.activation.Tanh"
    (folder / "2_Dense" / "config.json").write_text(json.dumps(dense))
    generator = torch.Generator().manual_seed(5)
    weights = {"linear.weight": torch.randn(5, width, generator=generator), "linear.bias": torch.ones(5)}
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    return folder


@pytest.mark.usefixtures("sentence_transformers")
def test_sentence_transformers_folders_are_used_as_they_say(tmp_path: Path) -> None:
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    folder = write_sentence_transformer(tmp_path, pooling, max_seq_length=8, do_lower_case=True)
    dense = load_file(folder / "2_Dense" / "model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    def vector(text: str) -> torch.Tensor:
        ids = tokenizer(text.lower(), truncation=True, max_length=8, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            hidden = model(ids).last_hidden_state[0]
        pooled = torch.cat([hidden[0], hidden.mean(dim=0)])
        return torch.tanh(dense["linear.weight"] @ pooled + dense["linear.bias"])

    utility = load_utility("embedding-cosine", checkpoint=str(folder))
    expected = [float(torch.cosine_similarity(vector(h), vector(r), dim=0)) for h, r in zip(*HALVES, strict=True)]
    np.testing.assert_allclose(utility.score(*HALVES), expected, atol=1e-5)
    longer = load_utility("embedding-cosine", checkpoint=str(folder), max_length=30)
    assert np.abs(longer.score(*HALVES) - expected).max() > 1e-3, "the longest input matters here"


@pytest.mark.usefixtures("sentence_transformers")
def test_the_default_prompt_is_used_unless_a_prefix_is_given(tmp_path: Path) -> None:
    folder = write_sentence_transformer(tmp_path / "plain", {"pooling_mode_mean_tokens": True})
    shutil.copytree(folder, tmp_path / "prompted")
    prompts = {"prompts": {"query": "nobody "}, "default_prompt_name": "query"}
    (tmp_path / "prompted" / "config_sentence_transformers.json").write_text(json.dumps(prompts))

    def scored(name: str, **options: str) -> np.ndarray:
        return load_utility("embedding-cosine", checkpoint=str(tmp_path / name), **options).score(*HALVES)

    np.testing.assert_allclose(scored("prompted"), scored("plain", prefix="nobody "), atol=1e-6)
    np.testing.assert_allclose(scored("prompted", prefix=""), scored("plain"), atol=1e-6)
    assert np.abs(scored("prompted") - scored("plain")).max() > 1e-3


@pytest.mark.usefixtures("sentence_transformers")
def test_texts_are_cut_to_the_positions_of_the_encoder(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "xlm-roberta")  # 66 positions, the first of them numbered 2
    longest = load_utility("embedding-cosine", checkpoint=str(folder), max_length=10**6)
    texts = [" ".join(SENTENCES * 3), " ".join(SENTENCES * 4)]
    assert longest.score(texts[:1], texts[1:])[0] == pytest.approx(1, abs=1e-6)
    assert longest.network.max_seq_length == 64


@pytest.mark.usefixtures("sentence_transformers")
def test_a_compiled_sentence_encoder_is_compiled_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_, seen = torch.compile, []

    def traced(call, **options):
        seen.append(options)
        return compile_(call, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", traced)  # without needing a C++ compiler
    folder = str(write_encoder(tmp_path, "bert"))
    plain, compiled = (load_utility("embedding-cosine", checkpoint=folder, compile=flag) for flag in (False, True))
    np.testing.assert_allclose(compiled.score(*HALVES), plain.score(*HALVES), atol=1e-5)
    assert seen == [{"dynamic": True}]


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    utility = load_utility("embedding-cosine", checkpoint=str(write_encoder(tmp_path)))
    assert utility.signature, "which needs no library"
    with pytest.raises(ImportError, match=r"extra 'sentence-transformers': pip install 'sentence-transformers>=6'"):
        utility.score(["a"], ["b"])


REAL = {"all-mpnet-base-v2": 384, "all-MiniLM-L6-v2": 256}


@pytest.mark.usefixtures("sentence_transformers")
@pytest.mark.parametrize("name", REAL)
def test_real_sentence_transformers(name: str) -> None:
    """Mean pooling and max_seq_length of the published folders, on their real weights, if they are on this machine."""
    folder = Path(os.environ.get("ACPMBR_REAL", "")) / name
    if not folder.is_dir():
        pytest.skip(f"set ACPMBR_REAL to a folder with the published {name}")
    utility = load_utility("embedding-cosine", checkpoint=str(folder))
    assert utility.network.max_seq_length == REAL[name]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    def vector(text: str) -> torch.Tensor:
        inputs = tokenizer(text, truncation=True, max_length=REAL[name], return_tensors="pt")
        with torch.no_grad():
            return model(**inputs).last_hidden_state[0].mean(dim=0)

    texts = ["This is an example sentence", "Each sentence is converted", " ".join(SENTENCES * 12)]
    expected = [float(torch.cosine_similarity(vector(texts[0]), vector(text), dim=0)) for text in texts]
    np.testing.assert_allclose(utility.score([texts[0]] * 3, texts), expected, atol=1e-5)


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
    # Error scores end at 0 and 25.
    weights["shared.weight" if tied else "lm_head.weight"][token] *= 1e6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert set(load_utility(str(folder), **options).prepare(HYPOTHESES, REFERENCES, source)(ROWS, COLUMNS)) <= {
        0.0,
        25.0,
    }


def test_metricx_is_untied_unless_it_says_otherwise(tmp_path: Path) -> None:
    options = {"version": 23, "score_token": 7}
    silent, untied = (write_metricx(tmp_path / str(tied), tied) for tied in (None, False))
    shutil.copy(untied / "model.safetensors", silent / "model.safetensors")
    scores = [load_utility(str(folder), **options).score(*HALVES) for folder in (silent, untied)]
    np.testing.assert_array_equal(*scores)


def test_metricx_has_unknown_tokens_and_no_bytes(tmp_path: Path) -> None:
    """As the tokeniser that MetricX's program converts from the same pieces: one unknown token for each run."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    train_sentencepiece(tmp_path / "spiece.model", size=440, specials=(), byte_fallback=True)
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    vocabulary = [(model.id_to_piece(k), model.get_score(k)) for k in range(model.get_piece_size())]
    converted = Tokenizer(models.Unigram(vocabulary, unk_id=model.unk_id(), byte_fallback=False))
    converted.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    texts = ["candidate: これはテスト", "a 本 bird 語語 x", "🙂🙂 She 🙂laughed", "Nobody knew", "テ", "ab本cd"]
    assert any(model.is_byte(token) for token in model.encode(texts[0])), "sentencepiece itself spells bytes"
    assert Pieces(tmp_path / "spiece.model").encode(texts) == [row.ids for row in converted.encode_batch(texts)]


def test_roberta_texts_are_stripped_and_begin_with_a_space(shared_data: Path) -> None:
    folder = str(shared_data / "metric_goldens" / "bertscore_roberta")
    utility = load_utility("bertscore", checkpoint=folder, layer=3)
    plain, spaced = utility.score(["hello there", " hello there \n"], ["general", "\tgeneral "])
    assert plain == spaced


@pytest.mark.parametrize(
    ("kind", "file"), [("RemBertTokenizer", "sentencepiece.model"), ("BigBirdTokenizer", "spiece.model")]
)
def test_tokenisers_converted_from_pieces_are_complete(tmp_path: Path, kind: str, file: str) -> None:
    """Normalised as the pieces say, with special tokens around the text and unknown characters as unknown."""
    train_sentencepiece(tmp_path / file)
    settings = {"tokenizer_class": kind, "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / file))
    tokens = SpecialTokens(tmp_path)
    text = "Ｔhe  train 到 leaves"
    assert pieces.unk_id() in pieces.encode(text)
    expected = [pieces.piece_to_id("[CLS]"), *pieces.encode(text), pieces.piece_to_id("[SEP]")]
    assert tokens.join(*tokens.encode([text], 100)) == expected


@pytest.mark.parametrize(("kind", "idf"), bertscore_families.SCORES)
def test_bertscore_of_many_families_equals_bert_score(tmp_path: Path, kind: str, idf: bool) -> None:
    folder = bertscore_families.write_family(tmp_path, kind)
    expected = bertscore_families.SCORES[kind, idf]
    for output, scores in zip(("precision", "recall", "f1"), expected, strict=True):
        options = {"checkpoint": str(folder), "layer": bertscore_families.LAYER, "idf": idf, "output": output}
        found = load_utility("bertscore", **options).score(bertscore_families.HYPOTHESES, bertscore_families.REFERENCES)
        np.testing.assert_allclose(found, scores, atol=1e-5)


def test_idf_counts_every_reference(encoder: Path) -> None:
    utility = load_utility("bertscore", checkpoint=str(encoder), idf=True)
    repeated, once = [REFERENCES[0]] * 4 + REFERENCES[1:3], REFERENCES[:3]
    many = utility.score([HYPOTHESES[0]] * 6, repeated)
    few = utility.score([HYPOTHESES[0]] * 3, once)
    assert many[4] != pytest.approx(few[1], abs=1e-6), "three further copies of a reference change the frequencies"
    documents = [set(AutoTokenizer.from_pretrained(encoder)(text)["input_ids"]) for text in repeated]
    table = {t: math.log(7 / (sum(t in d for d in documents) + 1)) for d in documents for t in d} | {-1: math.log(7)}
    layers = AutoModel.from_pretrained(encoder).config.num_hidden_layers
    expected = plain_bertscore(encoder, HYPOTHESES[0], REFERENCES[1], layers, table)[2]
    assert many[4] == pytest.approx(expected, abs=1e-5)


def test_cached_idf_scores_belong_to_their_references(encoder: Path, tmp_path: Path) -> None:
    options = {"checkpoint": str(encoder), "idf": True, "cache": str(tmp_path / "scores.db")}
    fresh = load_utility("bertscore", checkpoint=str(encoder), idf=True)
    for references in (REFERENCES[:2], REFERENCES[:1] * 2, REFERENCES[:2]):
        scores = load_utility("bertscore", **options).score(HYPOTHESES[:2], references)
        np.testing.assert_allclose(scores, fresh.score(HYPOTHESES[:2], references), atol=1e-12)


def test_metricx_names_say_version_and_kind() -> None:
    for name, version, source, reference in [
        ("google/metricx-24-hybrid-xl-v2p6", 24, True, True),
        ("google/metricx-23-xl-v2p0", 23, False, True),
        ("google/metricx-23-qe-large-v2p0", 23, True, False),
    ]:
        utility = load_utility(name)
        assert (utility.version, utility.needs_source, utility.needs_reference) == (version, source, reference)
