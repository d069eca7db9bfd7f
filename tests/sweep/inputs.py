"""What a model of any class reads: words, and an image or a sound as small as its configuration.

Models take images in a handful of forms: whole, as tiles, cut into patches. Which one, and how many places of the text
it fills, is found by trying: the model's own function says how many vectors it makes of it, or its error does.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tests.sweep.tiny import FIRST_WORD, LAST_WORD, PLACE

WORDS = 6
_SIDE = 4  # patches of an image along each axis
_TILES = 4
_MOST_PLACES, _MOST_TOLD = 80, 1000  # tried where nothing says how many vectors an image becomes, or an error does
_FRAMES = (64, 200)  # of a sound, unless a configuration says; some encoders read windows of 100

# Taken by every model of a family, and used by some of its encoders.
_FOR_SOME = {"image_sizes", "input_features_mask", "pixel_attention_mask"}

Inputs = dict[str, torch.Tensor]


def sources(model: Any, count: int) -> list[Inputs]:
    """Return the inputs of `count` sources, of one shape and with different contents.

    Raises:
        ValueError: if the model takes no known form of an image or a sound, or says the same of any.
    """
    reasons: list[str] = []
    for form in _forms(model):
        for places in _places(model, form, reasons):
            try:
                found = [_with_words(model, _another(form, number), places, number) for number in range(count)]
                same = torch.equal(first_logits(model, found[0]), first_logits(model, found[0] | _another(form, count)))
            except Exception as error:
                reasons.append(f"{type(error).__name__}: {error}")
                continue
            if not same:
                return found
            reasons.insert(0, f"another content of {', '.join(form)} changes nothing")
    if reasons:
        raise ValueError(reasons[0])
    return [_with_words(model, {}, 0, number) for number in range(count)]


def batch(sources: list[Inputs]) -> Inputs:
    """Put sources of one shape together, as processors do: images one after the other."""
    return {name: torch.cat([one[name] for one in sources]) for name in sources[0]}


def first_logits(model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of the first token; NaN, which equals nothing, where a model's own `generate` gives none."""
    out = model.generate(**inputs, max_new_tokens=1, do_sample=False, output_logits=True, return_dict_in_generate=True)
    logits = getattr(out, "logits", None)
    return logits[0] if isinstance(logits, tuple) else torch.tensor(torch.nan)


def _takes(model: Any) -> set[str]:
    functions = [model.forward]
    for owner in (model, getattr(model, "model", None)):
        functions += [
            getattr(owner, name) for name in ("get_image_features", "get_audio_features") if hasattr(owner, name)
        ]
    return {name for function in functions for name in inspect.signature(function).parameters}


def _setting(config: Any, *names: str, default: Any = None) -> Any:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), default)


def _forms(model: Any) -> Iterator[Inputs]:
    """Yield what an image or a sound may look like, with the grids, masks and sizes that go with it."""
    takes = _takes(model)
    for name, forms in (
        ("pixel_values", _images),
        ("flattened_patches", _flattened),
        ("input_features", _features),
        ("input_values", _waves),
    ):
        for values in forms(model) if name in takes else ():
            beside = {other: found for other in takes if (found := _beside(model, other, name, values)) is not None}
            yield {name: values, **beside}
            if _FOR_SOME & beside.keys():
                yield {name: values, **{other: beside[other] for other in beside.keys() - _FOR_SOME}}


def _vision(model: Any) -> Any:
    outer = _setting(model.config, "vision_config", "vision", "vq_config", "encoder", default=model.config)
    return _setting(outer, "vision_config", default=outer)


def _image_size(model: Any) -> tuple[int, int]:
    vision = _vision(model)
    inner = _setting(vision, "sam_config", default=vision)
    patch = _setting(vision, "patch_size", default=8)
    default = _SIDE * patch if isinstance(patch, int) else 64
    size = _setting(inner, "image_size", "img_size", default=_setting(model.config, "image_size", default=default))
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _images(model: Any) -> Iterator[torch.Tensor]:
    vision = _vision(model)
    channels = _setting(vision, "in_channels", "in_chans", "num_channels", default=3)
    whole = (channels, *_image_size(model))
    shapes: list[tuple[int, ...]] = [(1, *whole), (1, 1, *whole), (1, 2, *whole), (1, 1, _TILES, *whole)]
    patch = _setting(vision, "model_patch_size", "patch_size")
    if isinstance(patch, int):
        frames = _setting(vision, "temporal_patch_size", "patch_temporal", default=1)
        count, values = _SIDE * _SIDE, channels * patch * patch
        patches = [(count, values * frames), (count, channels, patch, patch), (1, count, channels, patch, patch)]
        rows = [(1, count, values), (1, channels, patch, count * patch)]
        in_grid = any("grid" in name for name in _takes(model))
        shapes = [*patches, *shapes, *rows] if in_grid else [*shapes, *rows, *patches]
    yield from (torch.randn(shape) for shape in shapes)


def _flattened(model: Any) -> Iterator[torch.Tensor]:
    """Yield patches behind their row and column."""
    size = _setting(_vision(model), "patch_embed_hidden_size", default=32)
    values = torch.randn(1, _SIDE * _SIDE, 2 + size)
    values[0, :, :2] = 1.0 + torch.cartesian_prod(torch.arange(_SIDE), torch.arange(_SIDE))
    yield values


def _features(model: Any) -> Iterator[torch.Tensor]:
    most, bins = _setting(_audio(model), "max_source_positions"), _bins(model)
    for frames in (2 * most, *_FRAMES) if most else _FRAMES:
        yield torch.randn(1, bins, frames)
        yield torch.randn(1, frames, bins)


def _audio(model: Any) -> Any:
    audio = _setting(model.config, "audio_config", "encoder_config", "audio_encoder", default=model.config)
    return _setting(audio, "encoder_config", default=audio)


def _bins(model: Any) -> int:
    names = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim", "feature_size")
    bins: int = _setting(_audio(model), *names, default=80)
    return bins * int(_setting(_audio(model), "num_stacked_frames", default=1))


def _waves(model: Any) -> Iterator[torch.Tensor]:
    yield torch.randn(1, 2000)
    yield torch.randn(1, 1, 7680)


def _beside(model: Any, name: str, kind: str, values: torch.Tensor) -> torch.Tensor | None:
    """Return what goes with the `values` of `kind` under this name; None if nothing known does."""
    if name == kind or kind.startswith("input_") != ("feature" in name):
        return None
    grid = torch.tensor([[_SIDE, _SIDE]])
    if name in ("image_grid_hw", "spatial_shapes", "target_sizes"):
        return grid
    if name == "image_grid_thw":
        return torch.tensor([[1, _SIDE, _SIDE]])
    if name == "image_sizes":
        return torch.tensor([_image_size(model)])
    if name == "image_token_pooling":  # every four patches become one vector
        return torch.arange(_SIDE * _SIDE).view(_SIDE, -1)
    if name == "image_grids":
        return torch.tensor([[2, _SIDE // 2, 0, 0]])
    if name == "image_merge_sizes":
        return torch.tensor([1])
    if name == "image_position_ids":
        return torch.cartesian_prod(torch.arange(_SIDE), torch.arange(_SIDE))[None]
    if name == "pixel_attention_mask":  # of pixels, or of patches or tiles
        of_pixels = values.dim() == 5 and "tile_fine_mask" not in _takes(model)
        return torch.ones(values.shape[:2] + (values.shape[3:] if of_pixels else ()), dtype=torch.long)
    if name == "aspect_ratio_ids":
        return torch.ones(1, 1, dtype=torch.long)
    if name == "aspect_ratio_mask":
        return torch.ones(1, 1, _TILES, dtype=torch.long)
    if name == "high_res_pixel_values":
        side = model.config.high_res_vision_config.image_size
        return torch.randn(1, 3, side, side)
    if name in ("input_features_mask", "feature_attention_mask") and kind == "input_features":
        return torch.ones(1, values.shape[1 if values.shape[2] == _bins(model) else 2], dtype=torch.long)
    return None


def _another(form: Inputs, number: int) -> Inputs:
    """Draw the contents of a form anew; grids and masks stay."""
    with torch.random.fork_rng():
        torch.manual_seed(1000 + number)
        drawn = {name: torch.randn_like(values) for name, values in form.items() if values.is_floating_point()}
    if "flattened_patches" in form:
        drawn["flattened_patches"][..., :2] = form["flattened_patches"][..., :2]
    return form | drawn


def _kind(form: Inputs) -> str:
    return "audio" if any(name.startswith("input_") for name in form) else "image"


def _token(model: Any, form: Inputs) -> int | None:
    """Return the id of the places in the text that an image or a sound fills; None if it needs none."""
    kind = _kind(form)
    names = (
        f"{kind}_token_id",
        f"{kind}_token_index",
        f"{kind}_patch_id",
        "speech_token_id" if kind == "audio" else "video_token_index",
    )
    inner = getattr(model, "model", None)
    token = _setting(model.config, *names, default=_setting(inner, *names))
    return PLACE if token is None and "image_embeds_position_mask" in _takes(model) else token


def _places(model: Any, form: Inputs, reasons: list[str]) -> Iterator[int]:
    """Yield how many places of the text an image or a sound may fill, the likeliest first."""
    if _token(model, form) is None:
        yield 0
        return
    if (queries := _setting(model.config, "latent_query_num", "num_query_tokens")) is not None:
        yield queries
    for owner in (model, getattr(model, "model", None)):
        function = getattr(owner, f"get_{_kind(form)}_features", None)
        if function is not None:
            takes = inspect.signature(function).parameters
            given = {name: value for name, value in form.items() if name in takes or "args" in takes}
            try:
                with torch.no_grad():
                    count = _count(function(**given))
            except Exception as error:
                reasons.append(f"{type(error).__name__}: {error}")
            else:
                yield count
    try:
        first_logits(model, _with_words(model, form, 1, 0))
    except Exception as error:
        reasons.append(f"{type(error).__name__}: {error}")
        if not re.search("unpack|multiplied|shape|size|dimension|expected", str(error)):
            told = (int(number) for number in re.findall(r"\d+", str(error)))
            yield from (number for number in dict.fromkeys(told) if 0 < number <= _MOST_TOLD)
            yield from range(2, _MOST_PLACES)
    else:
        yield 1


def _count(features: Any) -> int:
    """Count the vectors that an encoder made."""
    features = getattr(features, "pooler_output", features)
    if isinstance(features, torch.Tensor):
        return features.shape[:-1].numel()
    return sum(_count(part) for part in features)


def _with_words(model: Any, form: Inputs, places: int, number: int) -> Inputs:
    """Return the inputs of source `number`: words, with `places` among them, and what depends on their length."""
    token = _token(model, form)
    takes = set(inspect.signature(model.forward).parameters)
    if form and token is None and (model.main_input_name in form or "input_ids" not in takes):
        return dict(form)
    with torch.random.fork_rng():
        torch.manual_seed(2000 + number)
        words = torch.randint(FIRST_WORD, LAST_WORD + 1, (1, WORDS))
    filled = torch.full((1, places), token or 0)
    ids = torch.cat([words[:, :2], filled, words[:, 2:]], dim=1)
    here = torch.cat([torch.zeros(1, 2), torch.ones(1, places), torch.zeros(1, WORDS - 2)], dim=1).long()
    along = {
        "mm_token_type_ids": here,
        "token_type_ids": here,
        "image_embeds_position_mask": here,
        "image_attention_mask": torch.ones(1, ids.shape[1], 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(1, ids.shape[1], 1, _TILES, dtype=torch.long),
        "qformer_input_ids": words,
        "qformer_attention_mask": torch.ones_like(words),
        "bbox": torch.zeros(1, ids.shape[1], 4),
    }
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs | {name: value for name, value in along.items() if form and name in takes} | form
