"""The first phase: the candidates of each source and the output of beam search, made once and kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from transformers.utils import logging

from evaluation.wmt.data import Source
from evaluation.wmt.phases.base import Corpus, Given, Phase, Record
from evaluation.wmt.rows import BEAMS
from evaluation.wmt.settings import EvaluationSettings, ModelSettings
from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.generation.models import (
    EMBEDDED,
    embedded_languages,
    known_languages,
    load_model,
    load_tokenizer,
    model_revision,
    set_languages,
)
from hf_acpmbr.generation.prompts import Prompting
from hf_acpmbr.types import Tokenizer
from hf_acpmbr.version import code_version


class Drawn(NamedTuple):
    """What later phases get of one source."""

    candidates: Candidates
    beam: str


class CandidatesPhase(Phase):
    """Draws with the package's `custom_generate`; one source at a time, so that no neighbour changes a last digit."""

    name = "candidates"
    translator: Translator
    schema: ClassVar[pa.Schema] = pa.schema(
        {
            "index": pa.int64(),
            "texts": pa.list_(pa.string()),
            "counts": pa.list_(pa.int64()),
            "token_ids": pa.list_(pa.list_(pa.int32())),
            "logprobs": pa.list_(pa.float64()),
            "sampling_logprobs": pa.list_(pa.float64()),
            "model_rows": pa.int64(),
            "beam": pa.string(),
        }
    )

    def __init__(self, corpus: Corpus, folder: Path, settings: EvaluationSettings) -> None:
        super().__init__(corpus, folder)
        self.run = settings

    def settings(self) -> Mapping[str, object]:
        run = self.run
        return {"model": run.model.to_dict(), "sampling": run.drawing.to_dict(), "seed": run.seed}

    def contents(self) -> Mapping[str, str]:
        return {
            "content of the model": model_revision(self.run.model.name),
            "version of the sampling code": code_version("sampling", "mbr.py", "generation"),
        }

    def check(self) -> None:
        tokenizer = load_tokenizer(self.run.model.name)
        _set_languages(tokenizer, self.run.model, self.corpus.pair)

    def start(self, device: str) -> None:
        self.translator = Translator(self.run, self.corpus.pair, device)

    def stop(self) -> None:
        vars(self).pop("translator", None)

    def source_rows(self, source: Source, given: Given) -> list[Record]:
        drawn, model_rows, beam = self.translator.translate(source.text)
        ids = None if drawn.token_ids is None else [list(row) for row in drawn.token_ids]
        fields = {name: getattr(drawn, name) for name in ("texts", "counts", "logprobs", "sampling_logprobs")}
        return [{"index": source.index, **fields, "token_ids": ids, "model_rows": model_rows, "beam": beam}]

    def by_source(self, shard: int) -> Mapping[int, Drawn]:
        found = {}
        for row in self.store.read(shard):
            logprobs = (
                None if row[name] is None else np.array(row[name]) for name in ("logprobs", "sampling_logprobs")
            )
            pool = Candidates(tuple(row["texts"]), np.array(row["counts"]), row["token_ids"], *logprobs)
            found[row["index"]] = Drawn(pool, row["beam"])
        return found


class Translator:
    """A model that translates one language pair."""

    def __init__(self, settings: EvaluationSettings, pair: str, device: str) -> None:
        logging.set_verbosity_error()  # the same hint for every source would hide the progress
        logging.disable_progress_bar()
        self.settings = settings.model
        self.model, self.tokenizer, _ = load_model(settings.model.name, device=device, dtype=settings.model.dtype)
        languages = _set_languages(self.tokenizer, settings.model, pair)
        self.arguments = {**languages, **settings.model.generate}
        source, target = _languages(settings.model, pair)
        self.prompt = self.settings.prompt.replace("{source_language}", source).replace("{target_language}", target)
        self.mbr = ACPMBR(self.tokenizer, recipe=settings.recipe(decoder="map", target=False))

    def translate(self, text: str) -> tuple[Candidates, int, str]:
        """Return the candidates, how many decoder rows they took, and what beam search finds."""
        inputs = Prompting(self.prompt, self.settings.chat).encode(self.tokenizer, [text], self.model)
        output = self.model.generate(
            **inputs, custom_generate=self.mbr, sources=[text], return_dict_in_generate=True, **self.arguments
        )
        found = self.model.generate(**inputs, num_beams=BEAMS, do_sample=False, **self.arguments)
        prompt_length = 0 if self.model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
        beam = self.tokenizer.batch_decode(found[:, prompt_length:], skip_special_tokens=True)[0]
        return output.candidates[0], int(output.model_rows), beam


def _languages(settings: ModelSettings, pair: str) -> tuple[str, str]:
    """Return source and target language in the model's own spelling."""
    source, target = pair.split("-")
    return settings.languages.get(source, source), settings.languages.get(target, target)


def _set_languages(tokenizer: Tokenizer, settings: ModelSettings, pair: str) -> dict[str, int]:
    """Return what `generate` needs to translate into the pair's language; nothing for models of two languages."""
    if not known_languages(tokenizer):
        return {}
    try:
        if settings.name == EMBEDDED:
            embedded_languages(*_languages(settings, pair))
        return set_languages(tokenizer, *_languages(settings, pair))
    except ValueError as error:
        raise ValueError(f"{error}; model.languages maps {pair} to the model's own codes") from None
