"""COMET's files: where hyper-parameters come from, the defaults of each class, encoders by their hub ids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from hf_acpmbr.scoring import load_utility

from .checkpoints import SENTENCES, write_comet, write_hub_cache

HYPOTHESES, REFERENCES, SOURCE = SENTENCES[:4], SENTENCES[3:8], SENTENCES[8]


def change_stored(folder: Path, **hparams) -> None:
    """Change the hyper-parameters inside the .ckpt."""
    path = folder / "checkpoints" / "model.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    torch.save({**checkpoint, "hyper_parameters": {**checkpoint["hyper_parameters"], **hparams}}, path)


def change_yaml(folder: Path, **hparams) -> None:
    settings = yaml.safe_load((folder / "hparams.yaml").read_text())
    (folder / "hparams.yaml").write_text(yaml.safe_dump({**settings, **hparams}))


def test_hyper_parameters_are_those_inside_the_checkpoint(tmp_path: Path) -> None:
    folder = write_comet(tmp_path, 6, class_identifier="regression_metric", layer_norm=False)
    expected = load_utility(str(folder)).score(HYPOTHESES, REFERENCES[:4], [SOURCE] * 4)
    change_yaml(folder, layer_norm=True, hidden_sizes=[99], pool="max")
    np.testing.assert_array_equal(load_utility(str(folder)).score(HYPOTHESES, REFERENCES[:4], [SOURCE] * 4), expected)
    change_yaml(folder, layer_transformation="sparsemax_patch")
    assert load_utility(str(folder)).hparams.layer_transformation == "softmax"


@pytest.mark.parametrize(
    ("kind", "blocks", "expected"),
    [
        ("regression_metric", 6, ("softmax", True, (3072, 1024), ("mt", "src", "ref"))),
        ("referenceless_regression_metric", 4, ("softmax", True, (2048, 1024), ("mt", "src", "ref"))),
        ("unified_metric", 1, ("sparsemax", True, (3072, 1024), ("mt", "src", "ref"))),
        ("xcomet_metric", 1, ("sparsemax", False, (2560, 1280), ("mt", "src", "ref"))),
    ],
)
def test_defaults_are_those_of_comets_classes(tmp_path: Path, kind: str, blocks: int, expected: tuple) -> None:
    missing = dict.fromkeys(("layer_transformation", "layer_norm", "hidden_sizes", "final_activation"))
    folder = write_comet(tmp_path, blocks, class_identifier=kind, **missing)
    found = load_utility(str(folder)).hparams
    assert (found.layer_transformation, found.layer_norm, found.hidden_sizes, found.input_segments) == expected
    assert found.tags == (4 if kind == "xcomet_metric" else 0)


def test_the_published_xcomet_lite_mixes_by_softmax(tmp_path: Path) -> None:
    published = {"encoder_model": "DeBERTa", "pretrained_model": "microsoft/mdeberta-v3-base", "word_layer": 8}
    for sizes, transformation in (([3072, 1024], "softmax"), ([96, 32], "sparsemax")):
        (tmp_path / "config.json").write_text(json.dumps({**published, "hidden_sizes": sizes}))
        utility = load_utility(str(tmp_path))
        assert utility.hparams.layer_transformation == transformation
        assert utility.hparams.class_identifier == "xcomet_metric"


@pytest.mark.parametrize("written", ["xlm-roberta-large", "FacebookAI/xlm-roberta-large"])
def test_encoders_are_found_by_ids_with_and_without_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    folder = write_comet(tmp_path / "comet", 6, class_identifier="regression_metric")
    expected = load_utility(str(folder)).score(HYPOTHESES, REFERENCES[:4], [SOURCE] * 4)
    cache = write_hub_cache(tmp_path / "cache", {written: folder / "encoder"})
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    change_stored(folder, pretrained_model=written)
    utility = load_utility(str(folder))
    np.testing.assert_array_equal(utility.score(HYPOTHESES, REFERENCES[:4], [SOURCE] * 4), expected)
    assert f"encoder:{'a' * 12}" in utility.signature


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = write_comet(tmp_path / "short", 6, class_identifier="regression_metric", hidden_sizes=[12, 8])
    change_stored(folder, hidden_sizes=[12, 8, 4])
    with pytest.raises(ValueError, match="lacks 2 weights"):
        load_utility(str(folder)).score(["a"], ["b"], ["c"])
