"""The model and the settings of `generate` as words of a signature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from ..types import GenerativeModel

# Fields of a GenerationConfig that do not change which sequences can be drawn here: MBR has its own sampling, and
# the rest is about speed and about the form of the output.
_NOT_IN_FORCE = frozenset(
    {"transformers_version", "custom_generate", "return_dict_in_generate", "num_return_sequences"}
    | {"output_scores", "output_logits", "output_attentions", "output_hidden_states"}
    | {"use_cache", "cache_implementation", "cache_config", "compile_config", "disable_compile"}
    | {"num_beams", "length_penalty", "early_stopping", "renormalize_logits", "do_sample", "temperature", "top_k"}
    | {"assistant_confidence_threshold", "assistant_lookbehind", "num_assistant_tokens", "target_lookbehind"}
    | {"num_assistant_tokens_schedule", "num_beam_groups", "diversity_penalty"}
    | {"top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"}
)


def model_signature(model: GenerativeModel) -> str:
    """Name, revision where the Hub gave one, and a digest of the weights, so that a replaced folder shows."""
    config = model.config
    name = str(getattr(config, "_name_or_path", "") or type(model).__name__)
    if Path(name).is_absolute():  # where a folder lies does not change a result; the digest says what is in it
        name = Path(name).name
    commit = getattr(config, "_commit_hash", None)
    return f"{name}{f'@{commit[:12]}' if commit else ''}#{_weights_digest(model)}"


def generation_signature(config: GenerationConfig, processors: Iterable[object] | None) -> str:
    """What `generate` was asked for and holds here: lengths, constraints, special tokens, the caller's processors."""
    known = config.to_diff_dict()
    values = {key: known[key] for key in known if key not in _NOT_IN_FORCE and not key.startswith("_")}
    words = [f"{key}={_short(value)}" for key, value in sorted(values.items())]
    own = [type(item).__name__ for item in processors or () if not type(item).__module__.startswith("transformers.")]
    return ",".join([*words, *(f"processor={name}" for name in own)])


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 60 else f"sha1-{hashlib.sha1(text.encode()).hexdigest()[:10]}"


def _weights_digest(model: GenerativeModel) -> str:
    """Of the names, shapes and some values of all parameters: milliseconds, and every training step changes it."""
    digest = hashlib.sha1()
    for name, weight in model.named_parameters():
        digest.update(f"{name}{tuple(weight.shape)}{weight.dtype}".encode())
        if weight.device.type != "meta" and weight.numel():
            flat = weight.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // 16)][:16]
            digest.update(sample.double().cpu().numpy().tobytes() if sample.is_floating_point() else b"")
    return digest.hexdigest()[:10]
