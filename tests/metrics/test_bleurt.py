"""BLEURT: parity with transformers' RemBERT on random weights, Google's truncation, input order, loading."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from hf_acpmbr.metrics.bleurt import truncated_sizes
from hf_acpmbr.scoring import load_utility

from .checkpoints import SENTENCES, bleurt_config, bleurt_weights, write_bleurt

LONG = " ".join(SENTENCES[:4])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bleurt(tmp_path_factory.mktemp("bleurt"))


def google_truncation(reference: list[int], candidate: list[int], room: int) -> None:
    """Drops from the longer side, from the candidate at a tie, one token at a time."""
    while len(reference) + len(candidate) > room:
        (reference if len(reference) > len(candidate) else candidate).pop()


def rembert_scores(folder: Path, hypotheses: list[str], references: list[str]) -> list[float]:
    """Independent: transformers' RemBERT (eager attention), one pair at a time, ids built by hand."""
    from transformers import RemBertConfig, RemBertForSequenceClassification

    config = json.loads((folder / "config.json").read_text())
    model = RemBertForSequenceClassification(
        RemBertConfig(
            vocab_size=config["vocab_size"],
            input_embedding_size=config["embedding_size"],
            hidden_size=config["hidden_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=config["num_attention_heads"],
            intermediate_size=config["intermediate_size"],
            max_position_embeddings=config["max_position_embeddings"],
            layer_norm_eps=config["layer_norm_eps"],
            num_labels=1,
        )
    ).eval()
    renamed = {
        key.replace("bleurt.encoder.embedding_projection.", "rembert.encoder.embedding_hidden_mapping_in.").replace(
            "bleurt.", "rembert."
        ): value
        for key, value in load_file(folder / "model.safetensors").items()
    }
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    assert [key for key in missing if "position_ids" not in key] == []
    assert unexpected == []
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    cls, sep = pieces.piece_to_id("[CLS]"), pieces.piece_to_id("[SEP]")
    scores = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        r, h = pieces.encode(reference), pieces.encode(hypothesis)
        google_truncation(r, h, 61)
        ids = torch.tensor([[cls, *r, sep, *h, sep]])
        types = torch.tensor([[0] * (len(r) + 2) + [1] * (len(h) + 1)])
        with torch.no_grad():
            logits = model(input_ids=ids, token_type_ids=types, attention_mask=torch.ones_like(ids)).logits
        scores.append(float(logits[0, 0]))
    return scores


def test_equals_rembert_on_random_weights(folder: Path) -> None:
    hypotheses = [*SENTENCES, "", LONG, SENTENCES[0]]
    references = [*SENTENCES[::-1], SENTENCES[3], SENTENCES[2], LONG]
    utility = load_utility(str(folder), batch_tokens=150)
    scores = utility.score(hypotheses, references)
    np.testing.assert_allclose(scores, rembert_scores(folder, hypotheses, references), atol=1e-5)
    assert np.ptp(scores) > 0.1, "random weights must tell texts apart, or parity shows nothing"


def test_batches_change_nothing(folder: Path) -> None:
    rows, columns = np.divmod(np.arange(144), 12)
    one, many = (load_utility(str(folder), batch_tokens=tokens).prepare(SENTENCES, SENTENCES) for tokens in (1, 10**6))
    np.testing.assert_allclose(one(rows, columns), many(rows, columns), atol=1e-5)
    assert one.statistics.batches == 144
    assert one.statistics.padding == 0
    assert many.statistics.batches == 1


def test_the_last_layer_computes_the_position_that_is_read_alone(folder: Path) -> None:
    utility = load_utility(str(folder))
    shapes: list[tuple[int, ...]] = []
    for layer in utility.network.encoder["layer"]:
        layer.output.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    utility.score([SENTENCES[0]], [SENTENCES[1]])
    assert len(shapes) > 1
    assert shapes[-1][1] == 1 < shapes[-2][1]


def test_reference_comes_first(folder: Path) -> None:
    utility = load_utility(str(folder))
    forth, back = utility.score(["She laughed.", "Sie lachte."], ["Sie lachte.", "She laughed."])
    assert forth != pytest.approx(back, abs=1e-4)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 50))
def test_truncation_follows_googles_loop(reference: int, candidate: int, room: int) -> None:
    r, c = [0] * reference, [0] * candidate
    google_truncation(r, c, room)
    kept = truncated_sizes(np.array([reference]), np.array([candidate]), room)
    assert (int(kept[0][0]), int(kept[1][0])) == (len(r), len(c))


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_both_weight_formats_give_the_same(tmp_path: Path, folder: Path, file: str) -> None:
    other = write_bleurt(tmp_path / "other", file=file)
    np.testing.assert_allclose(
        load_utility(str(other)).score(SENTENCES[:3], SENTENCES[1:4]),
        load_utility(str(folder)).score(SENTENCES[:3], SENTENCES[1:4]),
        atol=1e-7,
    )


def test_sharded_weights(tmp_path: Path, folder: Path) -> None:
    from safetensors.torch import save_file

    shutil.copytree(folder, tmp_path / "sharded")
    weights = load_file(folder / "model.safetensors")
    (tmp_path / "sharded" / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, keys in parts.items():
        save_file({key: weights[key] for key in keys}, tmp_path / "sharded" / file)
    index = {"weight_map": {key: file for file, keys in parts.items() for key in keys}}
    (tmp_path / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(
        load_utility(str(tmp_path / "sharded")).score(SENTENCES[:2], SENTENCES[2:4]),
        load_utility(str(folder)).score(SENTENCES[:2], SENTENCES[2:4]),
    )


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "bird", "chirps", "she", "laughed", ".", "##s"]
VOCABULARY += ["[", "]", "sep"]


def write_old_bleurt(folder: Path, max_length: float = 64, positions: int = 64) -> tuple[dict, dict[str, torch.Tensor]]:
    """As bleurt-*-128: WordPiece, no factorised embeddings, config.json with Google's word for its own gelu."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**bleurt_config(len(VOCABULARY), None), "max_position_embeddings": positions}
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"do_lower_case": True, "model_max_length": max_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    weights = bleurt_weights(config)
    torch.save(weights, folder / "pytorch_model.bin")
    return config, weights


def test_older_wordpiece_checkpoints_equal_bert_with_googles_gelu(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    vocabulary = VOCABULARY
    config, weights = write_old_bleurt(tmp_path)
    known = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "hidden_act")}
    model = BertForSequenceClassification(
        BertConfig(**known, hidden_act="gelu_new", attn_implementation="eager")
    ).eval()
    model.load_state_dict({key.replace("bleurt.", "bert."): value for key, value in weights.items()}, strict=False)
    number = {word: position for position, word in enumerate(vocabulary)}
    ids = [[number[w] for w in ["[CLS]", "a", "bird", "chirps", ".", "[SEP]", "she", "laughed", ".", "[SEP]"]]]
    types = [[0] * 6 + [1] * 4]
    with torch.no_grad():
        expected = float(model(torch.tensor(ids), token_type_ids=torch.tensor(types)).logits[0, 0])
    utility = load_utility(str(tmp_path))
    assert utility.score(["She laughed."], ["A BIRD chirps."])[0] == pytest.approx(expected, abs=1e-5)
    assert utility.parameters == sum(value.numel() for value in weights.values())
    ids = utility.tokenizer.encode(["a [SEP] bird"])[0]
    assert ids == [number[w] for w in ["a", "[", "sep", "]", "bird"]], "a literal [SEP] is text, as for Google"


@pytest.mark.parametrize(("name", "kept"), [("bleurt-tiny-128", 128), ("bleurt-tiny-512", 512), ("mine", 600)])
def test_the_longest_input_is_in_the_name_where_the_tokeniser_has_none(tmp_path: Path, name: str, kept: int) -> None:
    write_old_bleurt(tmp_path / name, max_length=1e30, positions=600)
    by_name, explicit = load_utility(str(tmp_path / name)), load_utility(str(tmp_path / name), max_length=kept)
    pair = (["a bird chirps " * 200], ["she laughed . " * 200])
    assert by_name.score(*pair) == explicit.score(*pair)
    scorer = by_name.prepare(*pair)
    scorer(np.array([0]), np.array([0]))
    assert scorer.statistics.tokens == kept


def test_wrong_weights_are_named(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "broken")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "broken" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(ValueError, match=r"weights are missing.*layer\.3"):
        load_utility(str(tmp_path / "broken")).score(["a"], ["b"])
    (tmp_path / "broken" / "config.json").write_text(json.dumps({**config, "hidden_size": 28}))
    with pytest.raises(ValueError, match="has shape"):
        load_utility(str(tmp_path / "broken")).score(["a"], ["b"])


def test_signature_follows_the_weights(tmp_path: Path, folder: Path) -> None:
    other = write_bleurt(tmp_path / folder.name, seed=1)
    one, two = load_utility(str(folder)).signature, load_utility(str(other)).signature
    assert one != two
    assert one.split("@")[0] == two.split("@")[0]
    assert " " not in one


def test_compiled_networks_give_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    # The eager backend traces the graph without needing a C++ compiler on the test machine.
    monkeypatch.setattr(torch, "compile", lambda network, **options: compile_(network, backend="eager", **options))
    plain, compiled = (load_utility(str(folder), compile=flag) for flag in (False, True))
    np.testing.assert_allclose(
        compiled.score(SENTENCES[:4], SENTENCES[4:8]), plain.score(SENTENCES[:4], SENTENCES[4:8]), atol=1e-5
    )
    assert compiled.parameters == plain.parameters
