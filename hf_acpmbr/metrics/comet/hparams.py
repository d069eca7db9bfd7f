"""Hyper-parameters of COMET checkpoints, read as COMET itself reads them.

COMET takes them from the `hyper_parameters` inside the .ckpt, and what is missing there from its class's defaults;
hparams.yaml only names the class, and says by `sparsemax_patch` that the layer mix is a softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...scoring.checkpoints import COMET_WEIGHTS, Fields, read_json, read_pickle

# What COMET's classes take where a checkpoint says nothing.
DEFAULTS: dict[str, Fields] = {
    "regression_metric": {},
    "referenceless_regression_metric": {"hidden_sizes": (2048, 1024)},
    "unified_metric": {"layer_transformation": "sparsemax", "pretrained_model": "microsoft/infoxlm-large"},
    "xcomet_metric": {
        "encoder_model": "XLM-RoBERTa-XL",
        "pretrained_model": "facebook/xlm-roberta-xl",
        "layer_transformation": "sparsemax",
        "layer_norm": False,
        "word_layer": 36,
        "hidden_sizes": (2560, 1280),
        "error_labels": ("minor", "major", "critical"),
    },
}
# The published XCOMET-lite. It was trained when COMET's layer mix was a softmax whatever was asked for, which its
# config.json does not say; other models saved in its way are read as COMET 2.2.7 reads them.
_XCOMET_LITE = {
    "encoder_model": "DeBERTa",
    "pretrained_model": "microsoft/mdeberta-v3-base",
    "word_layer": 8,
    "hidden_sizes": [3072, 1024],
}


@dataclass(frozen=True)
class CometHparams:
    """What the networks and utilities need to know; the defaults are those of COMET's regression metric.

    Args:
        layer: encoder layer of the sentence states, or "mix" for a learnt mix of all.
        layer_transformation: "softmax" or "sparsemax", of the mix's weights.
        layer_norm: normalise each layer before it is mixed.
        word_layer: encoder layer of the word tags.
        input_segments: what a unified metric was trained on, hypothesis first.
    """

    class_identifier: str = "regression_metric"
    encoder_model: str = "XLM-RoBERTa"
    pretrained_model: str = "xlm-roberta-large"
    pool: str = "avg"
    layer: str | int = "mix"
    layer_transformation: str = "softmax"
    layer_norm: bool = True
    word_layer: int = 24
    hidden_sizes: tuple[int, ...] = (3072, 1024)
    activations: str = "Tanh"
    final_activation: str | None = None
    input_segments: tuple[str, ...] = ("mt", "src", "ref")
    word_level_training: bool = False
    error_labels: tuple[str, ...] = ("minor", "major")

    @property
    def tags(self) -> int:
        """Classes of the word tagger; 0 for none."""
        return 1 + len(self.error_labels) if self.word_level_training else 0

    @classmethod
    def read(cls, folder: Path) -> CometHparams:
        """Read all of a checkpoint folder."""
        kind = comet_class(folder)
        if not kind:
            raise FileNotFoundError(
                f"{folder} has neither hparams.yaml nor the config.json of XCOMET-lite: is it a COMET checkpoint?"
            )
        if (folder / "hparams.yaml").is_file():
            named = given = read_json(folder / "hparams.yaml")
            if (folder / COMET_WEIGHTS).is_file():
                given = read_pickle(folder / COMET_WEIGHTS).get("hyper_parameters") or named
            softmax = named.get("layer_transformation") == "sparsemax_patch"
            values = {**DEFAULTS[kind], **given} | ({"layer_transformation": "softmax"} if softmax else {})
        else:
            given = read_json(folder / "config.json")
            softmax = all(given.get(key) == value for key, value in _XCOMET_LITE.items())
            values = {**DEFAULTS[kind], **({"layer_transformation": "softmax"} if softmax else {}), **given}
        values["class_identifier"] = kind
        if kind in ("unified_metric", "xcomet_metric"):
            values["layer"] = given.get("sent_layer", "mix")
        if kind == "xcomet_metric":
            values |= {"input_segments": ("mt", "src", "ref"), "word_level_training": True}
        known: Fields = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in values.items()
            if key in cls.__dataclass_fields__
        }
        return cls(**known)


def comet_class(folder: Path) -> str:
    """Return COMET's name for the class of a checkpoint folder, from its small files alone; "" for other folders."""
    if (folder / "hparams.yaml").is_file():
        kind = str(read_json(folder / "hparams.yaml").get("class_identifier"))
        if kind not in DEFAULTS:
            raise ValueError(f"{folder} is a {kind!r} checkpoint; supported are {', '.join(DEFAULTS)}")
        return kind
    # As huggingface_hub saves COMET's own settings; those of a transformers model have a model_type.
    config = read_json(folder / "config.json")
    saved_by_hub = "model_type" not in config and "encoder_model" in config and "pretrained_model" in config
    return "xcomet_metric" if saved_by_hub else ""
