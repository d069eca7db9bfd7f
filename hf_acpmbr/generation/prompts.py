"""From source texts to the batch that a model reads."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import torch

    from ..types import GenerativeModel, Tokenizer

_INVISIBLE = ("Cc", "Cf")  # control and format characters
_NO_LIMIT = 10**6  # tokenizers without a limit say something astronomical


def has_text(text: str) -> bool:
    """Tell whether a text has more than white space and invisible characters (zero-width ones, marks of direction)."""
    return any(unicodedata.category(letter) not in _INVISIBLE for letter in text if not letter.isspace())


@dataclass(frozen=True)
class Prompting:
    """How a source text becomes what the model reads.

    Args:
        prompt: with {source} where the text goes.
        chat: put the prompt into the tokenizer's chat template as one turn of the user.
        too_long: what happens to sources beyond the model's limit: "cut" them, with a warning, or "refuse" them.
    """

    prompt: str = "{source}"
    chat: bool = False
    too_long: str = "cut"

    def __post_init__(self) -> None:
        if "{source}" not in self.prompt:
            raise ValueError(f"prompt must have {{source}} where the text goes, got {self.prompt!r}")
        if self.too_long not in ("cut", "refuse"):
            raise ValueError(f"too_long must be 'cut' or 'refuse', got {self.too_long!r}")

    def encode(
        self, tokenizer: Tokenizer, texts: Sequence[str], model: GenerativeModel, *, max_new_tokens: int = 0
    ) -> dict[str, torch.Tensor]:
        """Make a batch for `model`, on its device, padded on the right for an encoder, else on the left.

        Args:
            max_new_tokens: room to leave for the continuation of a decoder-only model.
        """
        fitting = self._fit(tokenizer, texts, length_limit(tokenizer, model, max_new_tokens))
        batch = tokenizer(
            self._fill(tokenizer, fitting),
            return_tensors="pt",
            padding=True,
            padding_side="right" if model.config.is_encoder_decoder else "left",
            add_special_tokens=not self.chat,
        )
        batch.pop("token_type_ids", None)
        return {name: tensor.to(model.device) for name, tensor in batch.items()}

    def _fill(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
        filled = [self.prompt.replace("{source}", text) for text in texts]
        if self.chat:
            turns = [[{"role": "user", "content": text}] for text in filled]
            filled = cast("list[str]", tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
        return filled

    def _fit(self, tokenizer: Tokenizer, texts: Sequence[str], limit: int | None) -> list[str]:
        """Return the texts, those that are too long cut at a token so that the filled prompt fits."""
        fitting = list(texts)
        if limit is None:
            return fitting
        prompts = tokenizer(self._fill(tokenizer, texts), add_special_tokens=not self.chat, verbose=False)
        lengths = [len(ids) for ids in prompts["input_ids"]]
        long = [row for row, length in enumerate(lengths) if length > limit]
        if not long:
            return fitting
        count = f"{len(long)} of {len(texts)} sources are longer than the model's {limit} tokens"
        if self.too_long == "refuse":
            raise ValueError(
                f"{count}, the first is row {long[0]} with {lengths[long[0]]}: shorten it, or cut sources with "
                "too_long='cut'"
            )
        warnings.warn(
            f"{count} and are cut (row {long[0]} had {lengths[long[0]]}): split them into sentences, or refuse them "
            "with too_long='refuse'",
            UserWarning,
            stacklevel=3,
        )
        for row in long:
            ids = tokenizer(texts[row], add_special_tokens=False, verbose=False)["input_ids"]
            keep = len(ids) - (lengths[row] - limit)
            if keep < 1:
                raise ValueError(f"the prompt alone has more than the model's {limit} tokens: shorten the prompt")
            fitting[row] = tokenizer.batch_decode([ids[:keep]], skip_special_tokens=True)[0]
        return fitting


def length_limit(tokenizer: Tokenizer, model: GenerativeModel, max_new_tokens: int) -> int | None:
    """Return how many tokens the model can read, by its own account and its tokenizer's; None if neither says."""
    config = model.config.get_text_config()
    own = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    limits = [int(limit) for limit in own if limit]
    if model.config.is_encoder_decoder:
        limits = limits[:1] if getattr(config, "relative_attention_num_buckets", None) is None else []
    else:
        limits = [limit - max_new_tokens for limit in limits]
    if (tokens := getattr(tokenizer, "model_max_length", None)) and tokens < _NO_LIMIT:
        limits.append(int(tokens))
    return min(limits, default=None)
