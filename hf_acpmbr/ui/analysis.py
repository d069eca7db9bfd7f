"""One source decided by the visitor's recipe and by other methods; every decision is one call of ACPMBR."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..candidates import Candidates
from ..decoding import Decision
from ..generation.models import EMBEDDED, EMBEDDED_LANGUAGES, known_languages, load_model, load_tokenizer, set_languages
from ..generation.prompts import encode
from ..mbr import ACPMBR
from ..recipe import Recipe
from ..scoring import MatrixUtility, Utility, load_utility
from .session import DRAW, Form, Limits, Offer, interruptible

if TYPE_CHECKING:
    from ..generation.models import LoadedModel

METHODS = {"rounds": "Rounds", "acpmbr": "AC-PMBR", "pmbr": "PMBR", "halving": "Halving"}
_BEAMS = 5


@dataclass(frozen=True, eq=False)
class Choice:
    """What one method chose.

    Args:
        method: its name for people.
        text: what it chose.
        calls: scored pairs per utility.
        seconds: what that took; None if it was decided from scores that were already there.
        expected: the true expected utility of the choice, if all pairs were scored.
    """

    method: str
    text: str
    calls: Mapping[str, int] = field(default_factory=dict)
    seconds: float | None = None
    expected: float | None = None


@dataclass(frozen=True, eq=False)
class Analysis:
    """A source, the recipe's decision, and what the other methods chose.

    Args:
        full: full MBR by the target and by the guide, if all pairs were scored; else empty.
        others: what the other methods chose.
        drawing: decoder rows and seconds of the sampling; None for pasted candidates.
        decided_again: whether `decision` was made from scores that were already there, at another budget.
    """

    source: str
    recipe: Recipe
    target: Utility
    guides: tuple[Utility, ...]
    decision: Decision
    full: tuple[Decision, ...] = ()
    others: tuple[Choice, ...] = ()
    drawing: tuple[int, float] | None = None
    decided_again: bool = False

    @property
    def candidates(self) -> Candidates:
        return self.decision.candidates

    @property
    def method(self) -> str:
        """The name of the recipe's decoder for people."""
        return METHODS.get(self.recipe.decoder.name, self.recipe.decoder.name)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The recipe's choice, then the others'."""
        seconds = None if self.decided_again else sum(self.decision.seconds.values())
        return (self.choice(f"{self.method} (this recipe)", self.decision, seconds), *self.others)

    def choice(self, method: str, decision: Decision, seconds: float | None = None) -> Choice:
        """A method's decision as a row of the table, with the true worth of its choice if that is known."""
        expected = float(self.full[0].expected[decision.index]) if self.full else None
        return Choice(method, decision.text, dict(decision.calls), seconds, expected)

    def cost(self, calls: Mapping[str, int]) -> float:
        """Calls weighted by the size of their network, as a part of what full MBR by the target costs."""
        sizes = {utility.name: max(utility.parameters, 1) for utility in (self.target, *self.guides)}
        full = sizes[self.target.name] * len(self.candidates) ** 2
        return sum(sizes[name] * count for name, count in calls.items()) / full

    def from_all_scores(self, recipe: Recipe) -> Decision:
        """Decide by looking up all scores: calls are counted, and no utility is called."""
        texts = self.candidates.texts
        target, *guides = (
            MatrixUtility.standing_for(utility, full.completed_matrix, texts)
            for utility, full in zip((self.target, *self.guides), self.full, strict=True)
            if full.completed_matrix is not None
        )
        mbr = ACPMBR(target=target, distilled=guides if recipe.distilled else [], recipe=recipe)
        return mbr.rerank(self.candidates, self.source)


class Workbench:
    """Everything the page can compute. Models and utilities are kept, so that the next sentence costs no loading."""

    def __init__(self, offer: Offer | None = None, limits: Limits | None = None) -> None:
        self.offer = offer or Offer()
        self.limits = limits or Limits()
        self._models: dict[str, LoadedModel] = {}
        self._utilities: dict[str, Utility] = {}

    def model(self, name: str) -> LoadedModel:
        """Model and tokenizer by an offered name."""
        if name not in self._models:
            self._models[name] = load_model(name, device=self.offer.device)
        return self._models[name]

    def utility(self, name: str) -> Utility:
        """A utility by an offered name."""
        if name not in self._utilities:
            self._utilities[name] = load_utility(name)
        return self._utilities[name]

    def languages(self, model: str) -> list[str]:
        """The languages that a model asks for; empty if it has none to choose from."""
        return list(EMBEDDED_LANGUAGES) if model == EMBEDDED else known_languages(load_tokenizer(model))

    def analyse(self, form: Form, cancelled: Callable[[], bool] = lambda: False) -> Generator[str, None, Analysis]:
        """Yield what is being done; the value is the Analysis. Raises Cancelled, or ValueError for mistakes."""
        form.check(self.offer, self.limits)
        recipe = form.build()
        yield "loading model and utilities"
        target = self.utility(form.target)
        guides = tuple(self.utility(spec.name) for spec in recipe.distilled)
        tokenizer = self.model(form.model).tokenizer if form.mode == DRAW else None
        mbr = ACPMBR(tokenizer, target=target, distilled=list(guides), recipe=recipe)
        yield f"drawing {form.candidates} samples and deciding" if form.mode == DRAW else "deciding"
        with interruptible(cancelled):
            if form.mode == DRAW:
                beam = self._beam(form)
                output, _ = self._generate(form, custom_generate=mbr, sources=[form.source])
                decision, drawing = output.decisions[0], (output.model_rows, output.seconds["sampling"])
            else:
                beam, drawing = None, None
                decision = mbr.rerank(form.lines(), form.source or None)
        analysis = Analysis(form.source, recipe, target, guides, decision, drawing=drawing)
        for utility in (target, *guides) if form.score_all else ():
            yield f"scoring all {len(decision.candidates) ** 2:,} pairs with {utility.name}"
            with interruptible(cancelled):
                full = full_mbr(utility, decision.candidates, form.source)
            analysis = replace(analysis, full=(*analysis.full, full))
        yield "comparing methods"
        with interruptible(cancelled):
            return replace(analysis, others=tuple(other_choices(analysis, beam, self.offer)))

    def _generate(self, form: Form, **options: Any) -> tuple[Any, int]:
        """Call `model.generate` on the form's source; also tokens of the prompt that the output repeats."""
        model, tokenizer, _ = self.model(form.model)
        languages = set_languages(tokenizer, form.source_language or None, form.target_language or None)
        inputs = encode(tokenizer, [form.source], model, prompt=self.offer.prompt, chat=self.offer.chat)
        size = inputs["input_ids"].shape[1]
        options |= {"max_new_tokens": min(2 * size + 20, self.limits.new_tokens), "return_dict_in_generate": True}
        return model.generate(**inputs, **languages, **options), 0 if model.config.is_encoder_decoder else size

    def _beam(self, form: Form) -> Choice:
        """Beam search's translation."""
        start = time.perf_counter()
        output, skipped = self._generate(form, num_beams=_BEAMS, do_sample=False)
        texts = self.model(form.model).tokenizer.batch_decode(output.sequences[:, skipped:], skip_special_tokens=True)
        return Choice("Beam search", texts[0], seconds=time.perf_counter() - start)


def full_mbr(
    utility: Utility, pool: Candidates | list[str], source: str, references: Candidates | None = None
) -> Decision:
    """Score all pairs of one utility."""
    return ACPMBR(target=utility, decoder="mbr").rerank(pool, source or None, references)


def other_choices(analysis: Analysis, beam: Choice | None, offer: Offer) -> list[Choice]:
    """Beam search, the most probable sample and, if all pairs were scored, the other ways to choose."""
    pool, choices = analysis.candidates, []
    if beam is not None:
        if analysis.full:
            worth = full_mbr(analysis.target, [beam.text], analysis.source, references=pool)
            beam = replace(beam, expected=float(worth.expected[0]))
        choices.append(beam)
    if pool.logprobs is not None:
        choices.append(analysis.choice("Most probable sample", ACPMBR(decoder="map").rerank(pool)))
    if not analysis.full:
        return choices
    target, *guides = analysis.full
    choices.append(analysis.choice("Full MBR", target, sum(target.seconds.values())))
    for name in offer.decoders:
        if name != analysis.recipe.decoder.name and (recipe := _at_equal_cost(analysis, name)) is not None:
            choices.append(analysis.choice(METHODS.get(name, name), analysis.from_all_scores(recipe)))
    return [*choices, *(analysis.choice("Guide alone", guide, sum(guide.seconds.values())) for guide in guides)]


def decide_again(analysis: Analysis, scores: float) -> Analysis:
    """Decide the same source at another budget from the scores that are there: no utility is called."""
    if not analysis.full:
        raise ValueError("another budget needs all scores: run again with 'score all pairs' ticked")
    decision = analysis.from_all_scores(with_budget(analysis.recipe, scores))
    return replace(analysis, decision=decision, decided_again=True)


def decoder_fields(recipe: Recipe) -> Mapping[str, Any]:
    """The decoder's settings by name, as its JSON has them."""
    fields: Any = recipe.to_dict()["decoder"]
    return dict(fields)


def with_budget(recipe: Recipe, scores: float) -> Recipe:
    """The recipe with another target budget, which is spent in full, and the guides' in the same proportion."""
    fields = decoder_fields(recipe)
    if "budget" not in fields:
        raise ValueError(f"decoder {recipe.decoder.name!r} of this recipe has no budget")
    changes: dict[str, float | None] = {"scores_per_row": scores}
    if "max_regret" in fields:
        changes["max_regret"] = None
    if "guide_budgets" in fields:
        drawn = recipe.sampling.num_candidates
        before, guide = (
            budget.get("scores_per_row") or drawn / budget["reduction"]
            for budget in (fields["budget"], fields["guide_budgets"][0])
        )
        changes["distilled_scores_per_row"] = scores * guide / before
    return recipe.changed(**changes)


def _at_equal_cost(analysis: Analysis, decoder: str) -> Recipe | None:
    """Another decoder at the cost of the decision, with its guide if it takes one; None if it needs one."""
    before, calls, drawn = analysis.recipe, analysis.decision.calls, analysis.candidates.total
    for guides in (before.distilled, ()) if before.distilled else ((),):
        try:
            recipe = Recipe.named("fast", target=before.target, distilled=guides, decoder=decoder, seed=before.seed)
            recipe.decoder.check_utilities(True, len(guides))
        except ValueError:
            continue
        if "budget" not in decoder_fields(recipe):
            return recipe
        if not guides:
            return recipe.changed(scores_per_row=analysis.cost(calls) * len(analysis.candidates) ** 2 / drawn)
        target, guide = (max(calls[utility.name], 1) / drawn for utility in (analysis.target, analysis.guides[0]))
        return recipe.changed(scores_per_row=target, distilled_scores_per_row=guide)
    return None
