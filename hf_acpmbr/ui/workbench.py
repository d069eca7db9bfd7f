"""Runs what the form asks for: loads models and utilities once, reports progress, and stops when it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..candidates import Candidates, FloatArray
from ..mbr import ACPMBR
from ..prompting import encode
from ..recipe import Recipe
from ..utilities import Utility, load_utility
from .analysis import AllScores, Analysis, other_choices, own_choice
from .settings import Form, Limits, Offer

if TYPE_CHECKING:
    import torch

    from ..foreign import GenerativeModel
    from ..models import LoadedModel

# Pairs scored between two looks at whether the job was cancelled.
_BLOCK = 128
_BEAMS = 5


class Cancelled(Exception):
    """The visitor does not want the result any more."""


class Workbench:
    """Everything the page can compute. Models and utilities are kept, so that the next sentence costs no loading."""

    def __init__(self, offer: Offer | None = None, limits: Limits | None = None) -> None:
        self.offer = offer or Offer()
        self.limits = limits or Limits()
        self._models: dict[str, LoadedModel] = {}
        self._utilities: dict[str, Utility] = {}

    def analyse(self, form: Form, cancelled: Callable[[], bool] = lambda: False) -> Generator[str, None, Analysis]:
        """What is being done, line by line; its value is the Analysis. Raises Cancelled, or ValueError for mistakes."""
        form.check(self.offer, self.limits)
        recipe = form.build()
        yield "loading model and utilities"
        model = self.model(form.model).model
        self.utility(form.target)
        yield f"drawing {form.candidates} samples and deciding"
        with interruptible(model, cancelled):
            beam, beam_seconds = self._beam(form)
            analysis = self._decided(form, recipe)
        expected = None
        if form.score_all:
            truth = yield from all_scores(analysis.target, analysis.candidates, form.source, cancelled)
            analysis = replace(analysis, truth=truth)
            if analysis.guides:
                scores = yield from all_scores(analysis.guides[0], analysis.candidates, form.source, cancelled)
                analysis = replace(analysis, guide_scores=scores)
            pool = analysis.candidates
            worth = analysis.target.score([beam] * len(pool), pool.texts, [form.source] * len(pool))
            expected = float(worth @ pool.weights)
        own = own_choice(analysis, sum(analysis.decision.seconds.values()))
        return replace(analysis, choices=(own, *other_choices(analysis, beam, beam_seconds, expected)))

    def model(self, name: str) -> LoadedModel:
        """Model and tokenizer by an offered name."""
        from ..models import load_model

        if name not in self._models:
            self._models[name] = load_model(name, device=self.offer.device)
        return self._models[name]

    def utility(self, name: str) -> Utility:
        """A utility by an offered name."""
        if name not in self._utilities:
            self._utilities[name] = load_utility(name)
        return self._utilities[name]

    def _inputs(self, form: Form) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        """The source as the model reads it, and what `generate` needs besides."""
        from ..models import set_languages

        model, tokenizer, _ = self.model(form.model)
        options = set_languages(tokenizer, form.source_language.strip() or None, form.target_language.strip() or None)
        inputs = encode(tokenizer, [form.source], model, prompt=self.offer.prompt, chat=self.offer.chat)
        length = min(2 * inputs["input_ids"].shape[1] + 20, self.limits.new_tokens)
        return inputs, {**options, "max_new_tokens": length}

    def _beam(self, form: Form) -> tuple[str, float]:
        """Beam search's translation and how long it took."""
        model, tokenizer, _ = self.model(form.model)
        inputs, options = self._inputs(form)
        start = time.perf_counter()
        found = model.generate(**inputs, num_beams=_BEAMS, do_sample=False, **options)
        skipped = 0 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
        text: str = tokenizer.batch_decode(found[:, skipped:], skip_special_tokens=True)[0]
        return text, time.perf_counter() - start

    def _decided(self, form: Form, recipe: Recipe) -> Analysis:
        """What `generate(custom_generate=ACPMBR(...))` gives for the recipe."""
        model, tokenizer, _ = self.model(form.model)
        target = self.utility(form.target)
        guides = tuple(self.utility(spec.name) for spec in recipe.distilled)
        mbr = ACPMBR(tokenizer, target=target, distilled=list(guides), recipe=recipe)
        inputs, options = self._inputs(form)
        out = model.generate(
            **inputs, custom_generate=mbr, sources=[form.source], return_dict_in_generate=True, **options
        )
        return Analysis(
            source=form.source,
            recipe=recipe,
            candidates=out.candidates[0],
            target=target,
            guides=guides,
            decision=out.decisions[0],
            choices=(),
            sampling_seconds=out.seconds["sampling"],
            model_rows=out.model_rows,
        )


@contextmanager
def interruptible(model: GenerativeModel, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Generation stops with Cancelled at the model's next step."""

    def look(*_: object) -> None:
        if cancelled():
            raise Cancelled

    hook = model.register_forward_pre_hook(look)
    try:
        yield
    finally:
        hook.remove()


def all_scores(
    utility: Utility, pool: Candidates, source: str, cancelled: Callable[[], bool]
) -> Generator[str, None, AllScores]:
    """All pairs of one utility, block by block, with a line of progress for each block."""
    n = len(pool)
    scorer = utility.prepare(pool.texts, pool.texts, source)
    matrix: FloatArray = np.empty(n * n)
    start = time.perf_counter()
    for first in range(0, n * n, _BLOCK):
        yield f"scoring all pairs with {utility.name}: {first:,} of {n * n:,}"
        if cancelled():
            raise Cancelled
        flat = np.arange(first, min(first + _BLOCK, n * n))
        matrix[flat] = scorer(flat // n, flat % n)
    return AllScores(utility, matrix.reshape(n, n), time.perf_counter() - start)
