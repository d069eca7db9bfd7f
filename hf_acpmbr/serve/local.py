"""Texts drawn by a model of transformers in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..candidates import Candidates
from ..generation.prompts import length_limit
from ..mbr import ACPMBR
from ..recipe import Recipe
from .api import CHAT, ApiError, Asked, Drawn, content_text
from .batcher import Batcher

if TYPE_CHECKING:
    from ..types import GenerativeModel, Tokenizer

_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "epsilon"}
_TAKEN = {"model", "messages", "prompt", "seed", "max_tokens", "max_completion_tokens", "user"}
_DRAWN_TOGETHER = 8  # requests; more make the first of them wait longer for little


class Local:
    """A model that draws; requests with the same settings are drawn in one batch.

    Args:
        model, tokenizer, generate: as `load_model` gives them.
        recipe: how texts are drawn unless a request says otherwise.
        name: what clients call the model.
        most_tokens: the largest `max_tokens`, and its default.
    """

    def __init__(
        self,
        model: GenerativeModel,
        tokenizer: Tokenizer,
        generate: Mapping[str, object],
        *,
        recipe: Recipe,
        name: str,
        most_tokens: int = 256,
    ) -> None:
        self.model, self.tokenizer, self.generate = model, tokenizer, dict(generate)
        self.name, self.most_tokens = name, most_tokens
        # "map" takes the most probable text and scores nothing: only its candidates are wanted.
        drawing = Recipe.named(decoder="map")
        self._recipe = dataclasses.replace(drawing, sampling=recipe.sampling, seed=recipe.seed)
        self._draws: Batcher[list[int], Candidates] = Batcher(self._draw, _DRAWN_TOGETHER)

    async def models(self, key: str | None) -> object:
        """Return a list of the one model."""
        about = {"id": self.name, "object": "model", "created": 0, "owned_by": "hf_acpmbr"}
        return {"object": "list", "data": [about]}

    async def draw(self, path: str, asked: Asked, number: int, key: str | None) -> Drawn:
        """Draw with the request's sampling settings; refuse fields that would have no effect."""
        given = asked.passed_on()
        for field in given.keys() - _TAKEN - _SAMPLING:
            if given[field] not in (0, {}, []):  # the API's defaults, which some clients send
                raise ApiError(400, f"{field!r} is not supported here: leave it out", field)
        if asked.model not in (None, self.name):
            message = f"the model is {self.name!r}, not {asked.model!r}"
            raise ApiError(404, message, "model", "model_not_found")
        tokens = asked.max_completion_tokens or asked.max_tokens or self.most_tokens
        if tokens > self.most_tokens:
            raise ApiError(400, f"max_tokens may be {self.most_tokens} at most", "max_tokens")
        changes = {field: given[field] for field in sorted(_SAMPLING & given.keys())}
        try:
            recipe = self._recipe.changed(num_candidates=number, **changes)
            if asked.seed is not None:
                recipe = dataclasses.replace(recipe, seed=asked.seed)
        except (ValueError, TypeError) as error:  # about what the request said, in its words
            raise ApiError(400, str(error), next(iter(changes), "seed")) from error
        ids = self._tokens(asked)
        limit = length_limit(self.tokenizer, self.model, tokens)
        if limit is not None and len(ids) > limit:
            message = f"the input has {len(ids)} tokens; with max_tokens={tokens} it may have {limit}"
            raise ApiError(400, message, None, "context_length_exceeded")
        candidates = await self._draws.submit((recipe.to_json(), tokens), ids)
        return self._drawn(path, candidates, len(ids), tokens)

    async def close(self) -> None:
        """Nothing is open."""

    def _tokens(self, asked: Asked) -> list[int]:
        """Return what the model reads: the messages in its chat template, or one text."""
        texts = [content_text(message) for message in asked.messages or [{"content": asked.prompt}]]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ApiError(400, "this model reads texts alone, and none that are empty")
        if asked.messages is None or self.tokenizer.chat_template is None:
            if len(texts) > 1:
                raise ApiError(400, "this model knows no chats: send a single message", "messages")
            return list(self.tokenizer(texts[0])["input_ids"])
        turns = [{**turn, "content": text} for turn, text in zip(asked.messages, texts, strict=True)]
        try:
            chat = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # templates refuse roles and their order by any kind of error
            message = "the model's chat template refuses these messages"
            raise ApiError(400, message, "messages") from error
        return list(self.tokenizer(chat, add_special_tokens=False)["input_ids"])

    def _draw(self, settings: tuple[str, int], rows: Sequence[list[int]]) -> list[Candidates]:
        recipe, tokens = settings
        side = "right" if self.model.config.is_encoder_decoder else "left"
        inputs = self.tokenizer.pad({"input_ids": list(rows)}, padding_side=side, return_tensors="pt")
        output = self.model.generate(
            **inputs.to(self.model.device),
            **self.generate,
            max_new_tokens=tokens,
            custom_generate=ACPMBR(self.tokenizer, recipe=Recipe.from_json(recipe)),
            return_dict_in_generate=True,
        )
        return [decision.candidates for decision in output.decisions]

    def _drawn(self, path: str, candidates: Candidates, read: int, tokens: int) -> Drawn:
        """Return the candidates as choices."""
        ends, rows = self.model.generation_config.eos_token_id, candidates.token_ids or ()
        choices: dict[str, dict[str, Any]] = {}
        written = 0
        for text, ids, count in zip(candidates.texts, rows, candidates.counts.tolist(), strict=True):
            ended = len(ids) < tokens or ids[-1] in (ends if isinstance(ends, list) else [ends])
            message = {"message": {"role": "assistant", "content": text}}
            shown = message if path == CHAT else {"text": text}
            choices[text] = {**shown, "logprobs": None, "finish_reason": "stop" if ended else "length"}
            written += len(ids) * count
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return Drawn(candidates, choices, self.name, usage)
