"""What a model of any class reads: words, and an image or a sound as small as its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from tests.sweep.tiny import FIRST_WORD, LAST_WORD

WORDS = 6
_SIDE = 4  # patches of an image along each axis


def source(model: Any, number: int) -> dict[str, torch.Tensor]:
    """Return the inputs of one source; sources have one shape and different contents."""
    with torch.random.fork_rng():
        torch.manual_seed(1000 + number)
        words = torch.randint(FIRST_WORD, LAST_WORD + 1, (1, WORDS))
        kind = getattr(model.config, "model_type", "")
        if kind in _OF_FAMILY:
            return _OF_FAMILY[kind](model, words)
        takes = set(inspect.signature(model.forward).parameters)
        if "image_grid_thw" in takes and "pixel_values" in takes:
            return _with_images(model, words, _patches(model))
        if "pixel_values" in takes and model.main_input_name == "pixel_values":
            return {"pixel_values": _image(model)["pixel_values"]}
        if "pixel_values" in takes:
            return _with_images(model, words, _image(model))
        if model.main_input_name == "input_features":
            return {"input_features": _sound(model)}
        if model.main_input_name == "input_values":
            return {"input_values": torch.randn(1, 2000)}
        if "input_features" in takes:
            return _with_sound(model, words)
        return {"input_ids": words, "attention_mask": torch.ones_like(words)}


def batch(sources: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Put sources of one shape together, as processors do: images one after the other."""
    return {name: torch.cat([one[name] for one in sources]) for name in sources[0]}


def _setting(config: Any, *names: str, default: Any = None) -> Any:
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    return default


def _vision(model: Any) -> Any:
    return _setting(model.config, "vision_config", "vision", "vq_config", "encoder", default=model.config)


def _image(model: Any) -> dict[str, torch.Tensor]:
    vision = _vision(model)
    size = _setting(vision, "image_size", "img_size", default=_setting(model.config, "image_size", default=32))
    height, width = (size, size) if isinstance(size, int) else size
    channels = _setting(vision, "num_channels", "in_channels", "in_chans", default=3)
    takes = set(inspect.signature(model.forward).parameters)
    given = {"pixel_values": torch.randn(1, channels, height, width)}
    if "image_sizes" in takes and model.config.model_type != "llava":  # there for encoders that take any size
        given["image_sizes"] = torch.tensor([[height, width]])
    return given


def _patches(model: Any) -> dict[str, torch.Tensor]:
    vision = _vision(model)
    channels = _setting(vision, "in_channels", "in_chans", "num_channels", default=3)
    patch, frames = _setting(vision, "patch_size", default=14), _setting(vision, "temporal_patch_size", default=1)
    return {
        "pixel_values": torch.randn(_SIDE * _SIDE, channels * frames * patch * patch),
        "image_grid_thw": torch.tensor([[1, _SIDE, _SIDE]]),
    }


def _count(features: Any) -> int:
    """How many vectors an encoder made."""
    features = getattr(features, "pooler_output", features)
    if isinstance(features, torch.Tensor):
        return features.shape[:-1].numel()
    return sum(_count(part) for part in features)


def _token(config: Any, kind: str) -> int:
    token = _setting(config, f"{kind}_token_id", f"{kind}_token_index", "image_token_index" if kind == "image" else "")
    assert token is not None, f"no {kind} token"
    return int(token)


def _with_images(model: Any, words: torch.Tensor, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    takes = set(inspect.signature(model.get_image_features).parameters)
    with torch.no_grad():
        count = _count(model.get_image_features(**{name: value for name, value in given.items() if name in takes}))
    return _around(model, words, "image", count) | given


def _around(model: Any, words: torch.Tensor, kind: str, count: int) -> dict[str, torch.Tensor]:
    """Return ids with `count` placeholders among the words."""
    places = torch.full((1, count), _token(model.config, kind))
    ids = torch.cat([words[:, :2], places, words[:, 2:]], dim=1)
    takes = set(inspect.signature(model.forward).parameters)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in takes:
            inputs[name] = (ids == places[0, 0]).long()
    return inputs


def _sound(model: Any) -> torch.Tensor:
    config = model.config
    audio = _setting(config, "audio_config", "encoder_config", default=config)
    bins = _setting(audio, "num_mel_bins", "input_feat_per_channel", "input_dim", "feature_size", default=80)
    return torch.randn(1, bins, 2 * _setting(audio, "max_source_positions", default=32))


def _with_sound(model: Any, words: torch.Tensor) -> dict[str, torch.Tensor]:
    features = _sound(model)
    mask = torch.ones(1, features.shape[-1], dtype=torch.long)
    takes = inspect.signature(model.get_audio_features).parameters
    given = {"input_features": features}
    for name in ("input_features_mask", "feature_attention_mask"):
        if name in takes:
            given[name] = mask
    with torch.no_grad():
        count = _count(model.get_audio_features(**{name: value for name, value in given.items() if name in takes}))
    return _around(model, words, "audio", count) | given


def _grouped(model: Any, words: torch.Tensor) -> dict[str, torch.Tensor]:
    """Images of a prompt are an axis of their own: (1, images, C, H, W)."""
    return _with_images(model, words, {"pixel_values": _image(model)["pixel_values"][:, None]})


def _idefics(model: Any, words: torch.Tensor) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    seen = torch.ones(1, words.shape[1], 1, dtype=torch.long)
    return inputs | {"pixel_values": _image(model)["pixel_values"][:, None], "image_attention_mask": seen}


def _queries(model: Any, words: torch.Tensor) -> dict[str, torch.Tensor]:
    """An image becomes a fixed number of tokens."""
    inputs = _around(model, words, "image", model.config.num_query_tokens) | _image(model)
    if "qformer_input_ids" in inspect.signature(model.forward).parameters:
        inputs |= {"qformer_input_ids": words, "qformer_attention_mask": torch.ones_like(words)}
    return inputs


def _speech_to_text(model: Any, words: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 32, model.config.input_feat_per_channel)}


_OF_FAMILY: dict[str, Callable[[Any, torch.Tensor], dict[str, torch.Tensor]]] = {
    **dict.fromkeys(("smolvlm", "idefics2", "idefics3"), _grouped),
    **dict.fromkeys(("blip-2", "instructblip"), _queries),
    **dict.fromkeys(("speech_to_text", "cohere_asr", "canary", "granite_speech5_ctc", "lasr_ctc"), _speech_to_text),
    "idefics": _idefics,
}
