"""Phase 1: the candidates of every source, drawn once and kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from transformers.utils import logging

from evaluation.wmt.phases.base import Corpus, Given, Phase, Source
from evaluation.wmt.settings import EvaluationSettings
from evaluation.wmt.store import Record
from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.models import load_model
from hf_acpmbr.prompting import encode, language_token


class CandidatesPhase(Phase[Candidates]):
    """Draws with the package's `custom_generate`; one source at a time, so that no neighbour changes a last digit."""

    name = "candidates"
    schema: ClassVar[pa.Schema] = pa.schema(
        {
            "index": pa.int64(),
            "texts": pa.list_(pa.string()),
            "counts": pa.list_(pa.int64()),
            "token_ids": pa.list_(pa.list_(pa.int32())),
            "logprobs": pa.list_(pa.float64()),
            "sampling_logprobs": pa.list_(pa.float64()),
            "model_rows": pa.int64(),
        }
    )

    def __init__(self, corpus: Corpus, folder: Path, settings: EvaluationSettings) -> None:
        super().__init__(corpus, folder)
        self.run = settings
        self.translator: Translator | None = None

    def settings(self) -> object:
        return [self.run.model.to_dict(), self.run.drawing.to_dict(), self.run.seed, self.corpus.pair]

    def start(self, device: str) -> None:
        self.translator = Translator(self.run, self.corpus.pair, device)

    def stop(self) -> None:
        self.translator = None

    def source_rows(self, source: Source, given: Given) -> list[Record]:
        if self.translator is None:
            raise LookupError("candidates has not been started")
        drawn, model_rows = self.translator.sample(source.text)
        return [
            {
                "index": source.index,
                "texts": drawn.texts,
                "counts": drawn.counts,
                "token_ids": None if drawn.token_ids is None else [list(ids) for ids in drawn.token_ids],
                "logprobs": drawn.logprobs,
                "sampling_logprobs": drawn.sampling_logprobs,
                "model_rows": model_rows,
            }
        ]

    def by_source(self, shard: int) -> Mapping[int, Candidates]:
        return {
            row["index"]: Candidates(
                tuple(row["texts"]),
                np.array(row["counts"]),
                row["token_ids"],
                None if row["logprobs"] is None else np.array(row["logprobs"]),
                None if row["sampling_logprobs"] is None else np.array(row["sampling_logprobs"]),
            )
            for row in self.store.read(shard)
        }


class Translator:
    """A model that draws candidates for one language pair."""

    def __init__(self, settings: EvaluationSettings, pair: str, device: str) -> None:
        logging.set_verbosity_error()  # the same hint for every source would hide the progress
        logging.disable_progress_bar()
        name, dtype = settings.model.name, settings.model.dtype
        self.model, self.tokenizer, _ = load_model(name, device=device, dtype=dtype)
        self.settings = settings.model
        self.source_language, self.target_language = (settings.model.languages.get(c, c) for c in pair.split("-"))
        self.arguments = dict(settings.model.generate)
        self._set_languages()
        self.mbr = ACPMBR(self.tokenizer, recipe=settings.recipe("map", target=False))

    def _set_languages(self) -> None:
        """Source language in the tokenizer, target language as the forced first token, for models that know them."""
        if not hasattr(self.tokenizer, "src_lang"):
            return
        self.tokenizer.src_lang = self.source_language
        token = language_token(self.tokenizer, self.target_language)
        if token is None:
            raise ValueError(f"{self.target_language!r} is not a language of this tokenizer: map it by model.languages")
        self.arguments.setdefault("forced_bos_token_id", token)

    def sample(self, text: str) -> tuple[Candidates, int]:
        """The candidates, and how many decoder rows they took."""
        languages = {"{source_language}": self.source_language, "{target_language}": self.target_language}
        prompt = self.settings.prompt
        for name, language in languages.items():
            prompt = prompt.replace(name, language)
        inputs = encode(self.tokenizer, [text], self.model, prompt=prompt, chat=self.settings.chat)
        output = self.model.generate(
            **inputs, custom_generate=self.mbr, sources=[text], return_dict_in_generate=True, **self.arguments
        )
        return output.candidates[0], int(output.model_rows)
