"""How a sentence-transformers folder turns texts into vectors: modules.json and the files it names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .checkpoints import Fields, inside, read_json

POOLINGS = ("mean", "cls", "max")
# sentence-transformers' switches; mean_sqrt_len differs from the mean by a factor, which a cosine does not see.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean",
}


@dataclass(frozen=True)
class SentenceModules:
    """What a folder says about its vectors; an encoder without these files has the defaults.

    Args:
        encoder: folder of the encoder and its tokeniser.
        pooling: how token states become vectors; several are put side by side.
        dense: folders of linear layers after it.
        max_length: longest input in tokens, special tokens included.
        lowercase: texts are made lower case first.
        prompt: text put before every input.
    """

    encoder: Path
    pooling: tuple[str, ...] = ("mean",)
    dense: tuple[Path, ...] = ()
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""

    @classmethod
    def read(cls, folder: Path) -> SentenceModules:
        """Of a local folder."""
        listed = folder / "modules.json"
        modules: list[Fields] = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
        encoder, dense, pooling = folder, [], _pooling(folder / "1_Pooling")
        for module in modules:
            kind = str(module["type"]).rpartition(".")[2]
            path = inside(folder, str(module.get("path", "")), listed)
            if kind == "Transformer":
                encoder = path
            elif kind == "Pooling":
                pooling = _pooling(path)
            elif kind == "Dense":
                dense.append(path)
            elif kind != "Normalize":  # a cosine normalises in any case
                raise ValueError(f"{folder} has a module {kind!r}, which embedding-cosine does not know")
        settings = read_json(encoder / "sentence_bert_config.json")
        prompts = read_json(folder / "config_sentence_transformers.json")
        chosen = prompts.get("default_prompt_name")
        return cls(
            encoder,
            pooling,
            tuple(dense),
            settings.get("max_seq_length"),
            bool(settings.get("do_lower_case", False)),
            str(prompts.get("prompts", {}).get(chosen, "")) if chosen else "",
        )


def _pooling(folder: Path) -> tuple[str, ...]:
    settings = read_json(folder / "config.json")
    if "pooling_mode" in settings:  # the newer form
        modes = settings["pooling_mode"]
        named = [modes] if isinstance(modes, str) else list(modes)
        found = ["mean" if name == "mean_sqrt_len_tokens" else name for name in named]
    else:
        on = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value]
        found = [_SWITCHES.get(key, key) for key in on]
    unknown = [name for name in found if name not in POOLINGS]
    if unknown:
        raise ValueError(f"{folder} asks for {unknown[0]}; supported are {', '.join(_SWITCHES)}")
    return tuple(found) or ("mean",)
