"""The folder for the Hub: a model loaded from it decodes by MBR, utilities are loaded once, a streamer is served."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.version import Version

from hf_acpmbr import ACPMBR
from hf_acpmbr.embedded import TRANSLATOR

pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.17"), reason="the folder asks for transformers 5.17 (CVE-2026-80047)"
)
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "hub_folder"
SETTINGS = {"target": "chrf", "mbr_settings": {"num_candidates": 16, "decoder": "mbr"}}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = runpy.run_path(str(FOLDER / "assemble.py"))["assemble"](tmp_path_factory.mktemp("hub") / "repository")
    return made


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies the code to, which it reads from the environment only once."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", list(sys.path))


@pytest.fixture
def loaded(repository: Path) -> tuple[Any, Any]:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(repository, trust_remote_code=True, dtype="float32")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(repository, src_lang="en")
    return model.eval(), tokenizer


def inputs(tokenizer: Any) -> dict[str, Any]:
    batch = tokenizer(["Where is the station?"], return_tensors="pt")
    return {**batch, "forced_bos_token_id": tokenizer.get_lang_id("de"), "max_new_tokens": 20}


def test_a_model_loaded_from_the_folder_decodes_as_acpmbr_does(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    mbr = ACPMBR(tokenizer, target="chrf", decoder="mbr", num_candidates=16)
    expected = transformers.GenerationMixin.generate(model, **inputs(tokenizer), custom_generate=mbr)
    assert model.generate(**inputs(tokenizer), **SETTINGS).tolist() == expected.tolist()
    output = model.generate(**inputs(tokenizer), **SETTINGS, return_dict_in_generate=True)
    assert output.candidates[0].total == 16
    given = inputs(tokenizer)
    by_position = model.generate(given.pop("input_ids"), **given, **SETTINGS)
    assert by_position.tolist() == expected.tolist()


def test_utilities_are_loaded_once_for_the_same_settings(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    built = model.generate.func.__globals__["built"]
    kept = model.generate.func.__globals__["_BUILT"]
    kept.clear()
    for _ in range(3):
        model.generate(**inputs(tokenizer), **SETTINGS, tokenizer=tokenizer)
    assert len(kept) == 1
    first = built(tokenizer, "chrf", (), SETTINGS["mbr_settings"])
    assert len(kept) == 1
    assert built(tokenizer, "bleu", (), SETTINGS["mbr_settings"]) is not first
    for number in range(1, 12):
        built(tokenizer, "chrf", (), {"num_candidates": number})
    assert len(kept) == 8


def test_a_streamer_gets_the_chosen_text(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    streamer = transformers.TextIteratorStreamer(tokenizer, skip_special_tokens=True, timeout=30)
    ids = model.generate(**inputs(tokenizer), **SETTINGS, streamer=streamer)
    assert "".join(streamer).strip() == tokenizer.decode(ids[0], skip_special_tokens=True).strip() != ""


def test_another_way_to_decode_can_be_given(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    other = ACPMBR(tokenizer, decoder="map", num_candidates=4)
    output = model.generate(**inputs(tokenizer), custom_generate=other, return_dict_in_generate=True)
    assert output.candidates[0].total == 4


def test_a_model_without_files_needs_its_tokenizer(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    generate, name = model.generate, model.config._name_or_path
    model.config._name_or_path = ""
    with pytest.raises(ValueError, match="pass its tokenizer"):
        generate(**inputs(tokenizer))
    model.config._name_or_path = name


def test_settings_that_are_none_are_named(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    for settings, message in (
        ({"num_candidate": 3}, "'num_candidate' is not a setting: did you mean 'num_candidates'"),
        (5, "mbr_settings must be a dict of ACPMBR's settings, got 5"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            model.generate(**inputs(tokenizer), mbr_settings=settings)


def test_the_configuration_in_the_folder_is_the_translators_and_assembling_overwrites_nothing(repository: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        assert (FOLDER / name).read_bytes() == (TRANSLATOR / name).read_bytes()
    with pytest.raises(FileExistsError, match="is there already"):
        runpy.run_path(str(FOLDER / "assemble.py"))["assemble"](repository)
