"""load_model: what it makes ready, and what it says when it cannot."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers as hf

from hf_acpmbr.embedded import TRANSLATOR
from hf_acpmbr.generation.models import known_languages, load_model, set_languages
from tests.models import tiny_pair

needs_translator = pytest.mark.skipif(
    not (TRANSLATOR / "config.json").is_file(), reason="the embedded translator is not there"
)


def nllb_tokenizer(codes: list[str]) -> hf.NllbTokenizer:
    words = ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "b"]
    vocabulary = {word: number for number, word in enumerate(words)}
    return hf.NllbTokenizer(vocab=vocabulary, merges=[], extra_special_tokens=codes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    model, _ = tiny_pair("llama")
    model.save_pretrained(path)
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"))
    hf.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>").save_pretrained(path)
    return path


def test_a_decoder_only_model_comes_in_eval_mode_with_something_to_pad_by(folder: Path) -> None:
    model, tokenizer, generate = load_model(folder, device="cpu", dtype="float64")
    assert isinstance(model, hf.LlamaForCausalLM)
    assert not model.training
    assert next(model.parameters()).dtype == torch.float64
    assert tokenizer.pad_token == "</s>"
    assert generate == {}


@needs_translator
def test_the_embedded_translator_knows_two_languages() -> None:
    model, tokenizer, generate = load_model("embedded", device="cpu")
    assert next(model.parameters()).dtype == torch.float32
    assert (tokenizer.src_lang, generate) == ("en", {"forced_bos_token_id": tokenizer.get_lang_id("de")})
    _, tokenizer, generate = load_model("embedded", device="cpu", target_language="en")
    assert (tokenizer.src_lang, generate) == ("de", {"forced_bos_token_id": tokenizer.get_lang_id("en")})
    with pytest.raises(ValueError, match="knows en→de and de→en, got en→zh"):
        load_model("embedded", target_language="zh")
    with pytest.raises(ValueError, match="has no revisions"):
        load_model("embedded", revision="main")


def test_languages_among_the_special_tokens() -> None:
    codes = ["eng_Latn", "deu_Latn", "dan_Latn", *(f"{letter}aa_Latn" for letter in "fghijklm")]
    tokenizer = nllb_tokenizer(codes)
    assert known_languages(tokenizer) == codes
    assert set_languages(tokenizer, "eng_Latn", "deu_Latn") == {
        "forced_bos_token_id": tokenizer.convert_tokens_to_ids("deu_Latn")
    }
    assert tokenizer.src_lang == "eng_Latn"
    with pytest.raises(ValueError, match="target_language='de' is not a language of this model: it knows deu_Latn"):
        set_languages(tokenizer, None, "de")


def test_what_cannot_be_done_is_said(folder: Path) -> None:
    with pytest.raises(ValueError, match="target_language='de', but this model's tokenizer has no languages"):
        load_model(folder, target_language="de")
    with pytest.raises(ValueError, match="source_language='en', but this model's tokenizer has no languages"):
        load_model(folder, source_language="en")
    with pytest.raises(ValueError, match="model 'no/where' cannot be loaded: give a hub id, a folder"):
        load_model("no/where")
    with pytest.raises(ValueError, match="dtype must be auto or"):
        load_model(folder, dtype="half-precision")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("it ran",)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", None),
        ("pytorch_model.bin", b""),
        ("pytorch_model.bin", pickle.dumps(Evil(), 2)),
        ("config.json", b"[]"),
        ("config.json", b"[" * 10**5),
        ("tokenizer.json", b"[]"),
    ],
    ids=str,
)
def test_a_damaged_or_malicious_file_of_a_model_is_an_error_with_the_models_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: bytes | None
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    if file == "pytorch_model.bin":
        (copy / "model.safetensors").unlink()
    (copy / file).write_bytes((copy / file).read_bytes()[:-500] if content is None else content)
    with pytest.raises(ValueError, match=f"model '{copy}' cannot be loaded"):
        load_model(copy)
    assert "it ran" not in capsys.readouterr().out
