"""The model and the settings of `generate` as words of a signature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig

    from ..types import GenerativeModel

# Fields of a GenerationConfig that do not change which sequences can be drawn: MBR samples by settings of its own,
# and the rest is about speed and the form of the output.
_NOT_IN_FORCE = frozenset(
    {"transformers_version", "custom_generate", "return_dict_in_generate", "num_return_sequences"}
    | {"output_scores", "output_logits", "output_attentions", "output_hidden_states"}
    | {"use_cache", "cache_implementation", "cache_config", "compile_config", "disable_compile"}
    | {"num_beams", "length_penalty", "early_stopping", "renormalize_logits", "do_sample", "temperature", "top_k"}
    | {"assistant_confidence_threshold", "assistant_lookbehind", "num_assistant_tokens", "target_lookbehind"}
    | {"num_assistant_tokens_schedule", "num_beam_groups", "diversity_penalty"}
    | {"top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"}
)
_VALUES = 16  # of each parameter that the digest looks at
_LONGEST = 60  # characters of a value that are written out


class ModelSignature:
    """Name, revision if the Hub gave one, and a digest of the weights, so that a replaced folder shows.

    The digest covers names, shapes and a few values of all parameters, which every training step changes. The values
    are picked at once and stay on the device; they are read when the text is first asked for.
    """

    def __init__(self, model: GenerativeModel) -> None:
        import torch

        config = model.config
        name = str(getattr(config, "_name_or_path", "") or type(model).__name__)
        if Path(name).is_absolute():  # where a folder lies does not change a result; the digest says what is in it
            name = Path(name).name
        commit = getattr(config, "_commit_hash", None)
        self._name = f"{name}{f'@{commit[:12]}' if commit else ''}"
        self._words: list[tuple[bytes, torch.device, int]] = []  # of each parameter: what it is, values picked
        picked: dict[torch.device, list[torch.Tensor]] = {}
        for label, weight in model.named_parameters():
            word, count = f"{label}{tuple(weight.shape)}{weight.dtype}".encode(), 0
            if weight.device.type != "meta" and weight.is_floating_point() and weight.numel():
                flat = weight.detach().reshape(-1)
                sample = flat[:: max(1, flat.numel() // _VALUES)][:_VALUES]
                exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
                picked.setdefault(weight.device, []).append(sample.to(exact))
                count = len(sample)
            self._words.append((word, weight.device, count))
        self._picked = {device: torch.cat(samples) for device, samples in picked.items()}

    @cached_property
    def text(self) -> str:
        """The signature; reads the values once per device."""
        values = {device: picked.cpu().double().numpy() for device, picked in self._picked.items()}
        digest, read = hashlib.sha1(), dict.fromkeys(values, 0)
        for word, device, count in self._words:
            digest.update(word)
            if count:
                digest.update(values[device][read[device] : read[device] + count].tobytes())
                read[device] += count
        return f"{self._name}#{digest.hexdigest()[:10]}"

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.text,)


def generation_signature(config: GenerationConfig, processors: Iterable[object] | None) -> str:
    """Return the settings of `generate` that hold here: lengths, constraints, special tokens, own processors."""
    words = []
    for key, value in sorted(config.to_diff_dict().items()):
        if key not in _NOT_IN_FORCE and not key.startswith("_"):
            text = json.dumps(value, sort_keys=True, default=str)
            short = text if len(text) <= _LONGEST else f"sha1-{hashlib.sha1(text.encode()).hexdigest()[:10]}"
            words.append(f"{key}={short}")
    own = [type(item).__name__ for item in processors or () if not type(item).__module__.startswith("transformers.")]
    return ",".join([*words, *(f"processor={name}" for name in own)])
