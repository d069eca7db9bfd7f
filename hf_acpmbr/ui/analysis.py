"""One source decided by the visitor's recipe and by other methods; every decision is a call of ACPMBR."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from ..candidates import Candidates
from ..decoding import PMBR, Decision
from ..generation.models import EMBEDDED, EMBEDDED_LANGUAGES, known_languages, load_model, load_tokenizer, set_languages
from ..generation.prompts import Prompting
from ..mbr import ACPMBR
from ..recipe import Recipe
from ..scoring import MatrixUtility, Utility, load_utility
from .session import DRAW, Form, Limits, Offer, interruptible

METHODS = {"rounds": "Rounds", "acpmbr": "AC-PMBR", "pmbr": "PMBR", "halving": "Halving"}
_BEAMS = 5


@dataclass(frozen=True, eq=False)
class Choice:
    """What one method chose."""

    method: str  # its name for people
    text: str
    calls: Mapping[str, int] = field(default_factory=dict)  # scored pairs per utility
    expected: float | None = None  # the true expected utility of the choice, if all pairs were scored


@dataclass(frozen=True, eq=False)
class Analysis:
    """A source, the recipe's decision, and what the other methods chose."""

    source: str
    recipe: Recipe
    target: Utility
    guides: tuple[Utility, ...]
    decision: Decision
    full: tuple[Decision, ...] = ()  # full MBR by the target and by the guide, if all pairs were scored
    others: tuple[Choice, ...] = ()  # what the other methods chose
    drawing: tuple[int, float] | None = None  # decoder rows and seconds of the sampling

    @property
    def candidates(self) -> Candidates:
        return self.decision.candidates

    @property
    def method(self) -> str:
        """The name of the recipe's decoder for people."""
        return method_name(self.recipe)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The recipe's choice, then the others'."""
        return (self.choice(f"{self.method} (this recipe)", self.decision), *self.others)

    def choice(self, method: str, decision: Decision) -> Choice:
        """Make a method's decision a row of the table, with the true worth of its choice if that is known."""
        expected = float(self.full[0].expected[decision.index]) if self.full else None
        return Choice(method, decision.text, dict(decision.calls), expected)

    def cost(self, calls: Mapping[str, int]) -> float:
        """Return the cost of calls, weighted by the size of their network, as a share of full MBR's by the target."""
        sizes = {utility.name: max(utility.parameters, 1) for utility in (self.target, *self.guides)}
        full = sizes[self.target.name] * len(self.candidates) ** 2
        return sum(sizes[name] * count for name, count in calls.items()) / full

    def from_all_scores(self, recipe: Recipe) -> Decision:
        """Decide by looking up all scores: calls are counted, and no utility is called."""
        target, *guides = (
            MatrixUtility.standing_for(utility, full.matrix, self.candidates.texts)
            for utility, full in zip((self.target, *self.guides), self.full, strict=True)
            if full.matrix is not None
        )
        mbr = ACPMBR(target=target, distilled=guides if recipe.distilled else [], recipe=recipe)
        return mbr.rerank(self.candidates, self.source)


class Workbench:
    """Everything the page can compute. Models and utilities are kept for the next sentence."""

    def __init__(self, offer: Offer | None = None, limits: Limits | None = None) -> None:
        self.offer = offer or Offer()
        self.limits = limits or Limits()
        self.model = cache(partial(load_model, device=self.offer.device))
        self.utility = cache(load_utility)

    def languages(self, model: str) -> list[str]:
        """List the languages that a model asks for; empty if it has none to choose from."""
        return list(EMBEDDED_LANGUAGES) if model == EMBEDDED else known_languages(load_tokenizer(model))

    def analyse(self, form: Form, cancelled: Callable[[], bool] = lambda: False) -> Generator[str, None, Analysis]:
        """Yield what is being done and return the Analysis. Raises Cancelled, or ValueError for mistakes."""
        form.check(self.offer, self.limits)
        recipe, draws = form.build(), form.mode == DRAW
        yield "loading model and utilities"
        target = self.utility(form.target)
        guides = tuple(self.utility(spec.name) for spec in recipe.distilled)
        tokenizer = self.model(form.model).tokenizer if draws else None
        mbr = ACPMBR(tokenizer, target=target, distilled=list(guides), recipe=recipe)
        yield f"drawing {'at most ' * form.until_sure}{form.candidates} samples and deciding" if draws else "deciding"
        with interruptible(cancelled):
            if draws:
                _, (beam,) = self._generate(form, num_beams=_BEAMS, do_sample=False)
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

    def _generate(self, form: Form, **options: Any) -> tuple[Any, list[str]]:
        """Call `model.generate` on the form's source; return its output, and the texts in it."""
        model, tokenizer, _ = self.model(form.model)
        languages = set_languages(tokenizer, form.source_language or None, form.target_language or None)
        inputs = Prompting(self.offer.prompt, self.offer.chat).encode(tokenizer, [form.source], model)
        size = inputs["input_ids"].shape[1]
        options |= {"max_new_tokens": min(2 * size + 20, self.limits.new_tokens), "return_dict_in_generate": True}
        output: Any = model.generate(**inputs, **languages, **options)
        new = output.sequences if model.config.is_encoder_decoder else output.sequences[:, size:]
        return output, tokenizer.batch_decode(new, skip_special_tokens=True)


def method_name(recipe: Recipe) -> str:
    """Name the recipe's decoder for people, with its completer: AC-PMBR is not always the paper's."""
    decoder = recipe.decoder
    name = METHODS.get(decoder.name, decoder.name)
    return f"{name} ({decoder.completer.name})" if isinstance(decoder, PMBR) else name


def full_mbr(
    utility: Utility, pool: Candidates | list[str], source: str, references: Candidates | None = None
) -> Decision:
    """Score all pairs of one utility."""
    return ACPMBR(target=utility, decoder="mbr").rerank(pool, source or None, references)


def other_choices(analysis: Analysis, beam: str | None, offer: Offer) -> list[Choice]:
    """Choose by beam search, by log-probability and, if all pairs were scored, in the other ways."""
    pool, choices = analysis.candidates, []
    if beam is not None:
        worth = full_mbr(analysis.target, [beam], analysis.source, references=pool) if analysis.full else None
        choices.append(Choice("Beam search", beam, expected=None if worth is None else float(worth.expected[0])))
    if pool.logprobs is not None:
        choices.append(analysis.choice("Most probable sample", ACPMBR(decoder="map").rerank(pool)))
    if not analysis.full:
        return choices
    target, *guides = analysis.full
    choices.append(analysis.choice("Full MBR", target))
    for name in offer.decoders:
        if name != analysis.recipe.decoder.name and (recipe := fast(name, analysis.recipe)) is not None:
            choices.append(analysis.choice(f"{method_name(recipe)}, fast", analysis.from_all_scores(recipe)))
    return [*choices, *(analysis.choice("Guide alone", guide) for guide in guides)]


def fast(decoder: str, before: Recipe) -> Recipe | None:
    """Make the recipe "fast" with another decoder, with the guide if it takes one; None if it needs one."""
    for guides in (before.distilled, ()) if before.distilled else ((),):
        try:
            recipe = Recipe.named("fast", target=before.target, distilled=guides, decoder=decoder, seed=before.seed)
            recipe.decoder.check_utilities(True, len(guides))
        except ValueError:
            continue
        return recipe
    return None
