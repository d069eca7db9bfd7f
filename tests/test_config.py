from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import MBRConfig

settings = st.fixed_dictionaries(
    {},
    optional={
        "num_candidates": st.integers(1, 5000),
        "epsilon": st.floats(0, 0.9),
        "reduction": st.floats(1, 1e6),
        "distilled_scores_per_row": st.floats(0.1, 1e3),
        "agreement": st.one_of(st.floats(0, 10), st.lists(st.floats(0, 10), min_size=1, max_size=3).map(tuple)),
        "distilled": st.lists(st.sampled_from(["chrf", "bleu"]), max_size=2).map(tuple),
        "decoder_options": st.dictionaries(st.sampled_from(["a", "b"]), st.integers()),
        "center": st.booleans(),
        "seed": st.integers(0, 2**40),
    },
)


@given(settings)
def test_json_round_trip(values):
    config = MBRConfig(**values)
    assert MBRConfig.from_json(config.to_json()) == config


def test_save_and_load(tmp_path):
    config = MBRConfig.preset("high", target="chrf", distilled="bleu", seed=7)
    path = config.save_pretrained(tmp_path / "new" / "folder")
    assert path.name == "mbr_config.json"
    assert MBRConfig.from_pretrained(path.parent) == config
    assert MBRConfig.from_pretrained(path.parent, seed=8).seed == 8
    assert [p.name for p in path.parent.iterdir()] == ["mbr_config.json"]
    with pytest.raises(FileNotFoundError, match="save_pretrained"):
        MBRConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "decoder", "rate", "distilled", "gamma"),
    [
        ("low", "acpmbr", 32, 2, 0.1),
        ("high", "acpmbr", 1024, 64, 1.0),
        ("low", "pmbr", 16, 2, 0.1),
        ("high", "pmbr", 512, 64, 1.0),
    ],
)
def test_presets_are_the_papers_settings(name, decoder, rate, distilled, gamma):
    paper = MBRConfig.preset(name, paper=True, decoder=decoder)
    assert (paper.reduction, paper.distilled_reduction, paper.agreement) == (rate, distilled, gamma)
    assert (paper.rank, paper.regularization, paper.max_sweeps, paper.tolerance) == (8, 0.1, 30, 1e-4)
    assert (paper.observation, paper.center, paper.absolute_tolerance) == ("uniform", False, True)
    assert (paper.num_candidates, paper.epsilon, paper.top_k) == (1024, 0.02, 0)
    ours = MBRConfig.preset(name, decoder=decoder)
    assert (ours.scores_per_row, ours.distilled_scores_per_row) == (1024 / rate, 1024 / distilled)


def test_the_defaults_are_the_low_preset():
    assert MBRConfig() == MBRConfig.preset("low")
    assert (MBRConfig().scores_per_row, MBRConfig().distilled_scores_per_row) == (32, 512)


def test_settings_override_the_preset():
    config = MBRConfig.preset("high", scores_per_row=4, agreement=0.5)
    assert (config.scores_per_row, config.reduction, config.agreement) == (4, None, 0.5)
    assert MBRConfig.preset("low", reduction=64).scores_per_row is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_candidate": 5}, "'num_candidate' is no setting of MBRConfig: did you mean 'num_candidates'"),
        ({"num_candidates": 0}, "num_candidates must be at least 1, got 0"),
        ({"num_candidates": 1.5}, "num_candidates must be a whole number"),
        ({"num_candidates": True}, "num_candidates must be a whole number"),
        ({"epsilon": 1.2}, "epsilon must be at least 0 and at most 1"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"reduction": 0.5}, "reduction must be at least 1"),
        ({"reduction": 2, "scores_per_row": 3}, "two ways to say one thing"),
        ({"agreement": -1}, "agreement"),
        ({"agreement": [0.1, -1]}, "agreement"),
        ({"center": "yes"}, "center must be true or false"),
        ({"decoder": ""}, "decoder must be a name"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"rank": float("nan")}, "rank must be"),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        MBRConfig.from_dict(values)


def test_unknown_preset():
    with pytest.raises(ValueError, match="'medium' is unknown: choose one of low, high"):
        MBRConfig.preset("medium")


def test_a_config_is_frozen_and_its_json_readable():
    config = MBRConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 3
    assert json.loads(config.to_json())["num_candidates"] == 1024
    with pytest.raises(ValueError, match="JSON object"):
        MBRConfig.from_json("[1]")
