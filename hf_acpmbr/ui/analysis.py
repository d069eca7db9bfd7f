"""One source with everything that was scored for it, and decisions at other budgets from the same scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..budget import PAPER_SAMPLES
from ..candidates import Candidates, FloatArray
from ..decision import Completed
from ..decoding import PMBR, AgreementPMBR, Decision
from ..decoding.gain import Gain
from ..decoding.halving import HalvingMBR
from ..decoding.rounds import RoundsMBR
from ..recipe import Recipe
from ..registry import COMPLETERS, DECODERS
from ..utilities import MatrixUtility, Utility

_NORMAL_95 = 1.96
METHODS = {"rounds": "Rounds", "acpmbr": "AC-PMBR", "pmbr": "PMBR", "halving": "Halving"}


@dataclass(frozen=True, eq=False)
class AllScores:
    """Every score of one utility, and how long it took to compute them."""

    utility: Utility
    matrix: FloatArray
    seconds: float

    def stored(self, texts: Sequence[str]) -> MatrixUtility:
        """The same scores to be looked up: decisions from it count calls and compute none."""
        return MatrixUtility.standing_for(self.utility, self.matrix, texts)


@dataclass(frozen=True, eq=False)
class Choice:
    """What one method chose.

    Args:
        method: its name for people.
        text: what it chose.
        calls: scored pairs of each utility.
        seconds: what that took; None where it was decided from scores that were there already.
        expected: the true expected utility of the choice, where all pairs were scored.
        error: squared error of its completed matrix, where it has one and the true scores are known.
        own: whether this is the recipe that the visitor chose.
    """

    method: str
    text: str
    calls: Mapping[str, int]
    seconds: float | None = None
    expected: float | None = None
    error: float | None = None
    own: bool = False


@dataclass(frozen=True, eq=False)
class Analysis:
    """A source, its candidates, the recipe's decision, and what the other methods chose.

    Args:
        truth: all target scores, where they were asked for.
        guide_scores: all scores of the guide, where there is one and all were asked for.
        sampling_seconds, model_rows: what drawing the candidates cost.
        decided_again: whether `decision` was made from scores that were there already, at another budget.
    """

    source: str
    recipe: Recipe
    candidates: Candidates
    target: Utility
    guides: tuple[Utility, ...]
    decision: Decision
    choices: tuple[Choice, ...]
    sampling_seconds: float
    model_rows: int
    truth: AllScores | None = None
    guide_scores: AllScores | None = None
    decided_again: bool = False

    @cached_property
    def completed(self) -> FloatArray | None:
        """(n, n) the target's scores with the unscored ones filled in from the scores of the decision."""
        decision = self.decision
        if decision.observed is None or decision.completed_matrix is not None:
            return decision.completed_matrix
        guides = [Gain.of(u, g.values).apply(g) for u, g in zip(self.guides, decision.guides, strict=True)]
        completer = COMPLETERS.build("transfer" if guides else "als")
        gain = Gain.of(self.target, decision.observed.values)
        observed, features = gain.apply(decision.observed), self.candidates.features
        return Completed(completer.solve(observed, guides, features, self.recipe.seed), gain).matrix

    @property
    def exact(self) -> FloatArray | None:
        """(n,) true expected utilities, where all pairs were scored."""
        return None if self.truth is None else self.truth.matrix @ self.candidates.weights

    def cost(self, calls: Mapping[str, int]) -> float:
        """Calls weighted by the size of their network, as a part of what scoring all pairs with the target costs."""
        sizes = {utility.name: max(utility.parameters, 1) for utility in (self.target, *self.guides)}
        full = sizes[self.target.name] * len(self.candidates) ** 2
        return sum(sizes[name] * count for name, count in calls.items()) / full

    def full_ranks(self) -> list[int] | None:
        """The rank of every candidate under full MBR, 1 for the best."""
        if (exact := self.exact) is None:
            return None
        order = np.argsort(-exact if self.target.higher_is_better else exact, kind="stable")
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(1, len(order) + 1)
        return [int(rank) for rank in ranks]


def scores_per_row(recipe: Recipe) -> float | None:
    """The recipe's target budget in scores per candidate of the paper's 1,024; None where its decoder has no budget."""
    decoder = recipe.decoder
    if not isinstance(decoder, (PMBR, RoundsMBR, HalvingMBR)):
        return None
    return PAPER_SAMPLES / decoder.budget.rate(PAPER_SAMPLES)


def with_budget(recipe: Recipe, scores: float) -> Recipe:
    """The recipe with another target budget, which is spent, and the guide's in the same proportion."""
    before = scores_per_row(recipe)
    if before is None:
        raise ValueError(f"decoder {recipe.decoder.name!r} of this recipe has no budget")
    changes: dict[str, float | None] = {"scores_per_row": scores}
    if isinstance(recipe.decoder, RoundsMBR):
        changes["max_regret"] = None
    if isinstance(recipe.decoder, (AgreementPMBR, RoundsMBR)):
        ratio = PAPER_SAMPLES / recipe.decoder.guide_budgets[0].rate(PAPER_SAMPLES) / before
        changes["distilled_scores_per_row"] = ratio * scores
    return recipe.changed(**changes)


def decide_again(analysis: Analysis, scores: float) -> Analysis:
    """The same source at another budget, from the scores that are there: no utility is called."""
    if analysis.truth is None or (analysis.guides and analysis.guide_scores is None):
        raise ValueError("another budget needs all scores: run again with 'score all pairs' ticked")
    decision = _from_all_scores(analysis, with_budget(analysis.recipe, scores))
    changed = replace(analysis, decision=decision, decided_again=True)
    own = own_choice(changed, None)
    return replace(changed, choices=tuple(own if choice.own else choice for choice in analysis.choices))


def _from_all_scores(analysis: Analysis, recipe: Recipe) -> Decision:
    """What the recipe decides, looking up all scores."""
    assert analysis.truth is not None
    texts = analysis.candidates.texts
    guides = [] if analysis.guide_scores is None else [analysis.guide_scores.stored(texts)]
    return recipe.decoder.decode(
        analysis.candidates,
        target=analysis.truth.stored(texts),
        guides=guides if recipe.distilled else [],
        source=analysis.source,
        seed=recipe.seed,
        full_matrix=analysis.truth.matrix,
    )


def own_choice(analysis: Analysis, seconds: float | None) -> Choice:
    """The choice of the visitor's recipe."""
    decision = analysis.decision
    name = analysis.recipe.decoder.name
    return Choice(
        f"{METHODS.get(name, name)} (this recipe)",
        decision.text,
        dict(decision.calls),
        seconds,
        _true(analysis, decision.index),
        completion_error(analysis),
        own=True,
    )


def completion_error(analysis: Analysis) -> float | None:
    """Mean squared error of the completed matrix on a 0–100 scale, every pair counted as often as it was drawn."""
    if analysis.truth is None or analysis.completed is None:
        return None
    squared = np.square((analysis.completed - analysis.truth.matrix) * (100 / analysis.target.scale))
    weights = analysis.candidates.weights
    return float(weights @ squared @ weights)


def other_choices(analysis: Analysis, beam: str, beam_seconds: float, beam_expected: float | None) -> list[Choice]:
    """Beam search, the most probable sample and, from all scores where they are there, the other ways to choose."""
    pool = analysis.candidates
    choices = [Choice("Beam search (5 beams)", beam, {}, beam_seconds, beam_expected)]
    if pool.logprobs is not None:
        best = int(np.argmax(pool.logprobs))
        choices.append(Choice("Most probable sample", pool.texts[best], {}, None, _true(analysis, best)))
    if analysis.truth is None:
        return choices
    choices.append(_best(analysis, "Full MBR", analysis.truth))
    for name, method in METHODS.items():
        if name == analysis.recipe.decoder.name or (name == "acpmbr" and not analysis.guides):
            continue
        recipe = _at_equal_cost(analysis, name)
        decision = _from_all_scores(analysis, recipe)
        error, worth = None if decision.exact else decision.completion_error, _true(analysis, decision.index)
        choices.append(Choice(method, decision.text, dict(decision.calls), None, worth, error))
    if analysis.guide_scores is not None:
        choices.append(_best(analysis, "Guide alone", analysis.guide_scores))
    return choices


def _best(analysis: Analysis, method: str, scores: AllScores) -> Choice:
    """The best by all scores of one utility."""
    means = scores.matrix @ analysis.candidates.weights
    best = int(np.argmax(means if scores.utility.higher_is_better else -means))
    calls = {scores.utility.name: scores.matrix.size}
    return Choice(method, analysis.candidates.texts[best], calls, scores.seconds, _true(analysis, best))


def _at_equal_cost(analysis: Analysis, decoder: str) -> Recipe:
    """Another decoder with the calls of the decision; one that takes no guide has target calls of the same cost."""
    recipe, calls, drawn = analysis.recipe, analysis.decision.calls, analysis.candidates.total
    guided = analysis.guides and "guide_budgets" in DECODERS.get(decoder).field_names()
    target = calls[analysis.target.name] if guided else analysis.cost(calls) * len(analysis.candidates) ** 2
    budgets = {"scores_per_row": target / drawn}
    if guided:
        budgets["distilled_scores_per_row"] = max(calls[analysis.guides[0].name], 1) / drawn
    distilled = recipe.distilled if guided else ()
    return Recipe.named("fast", target=recipe.target, distilled=distilled, decoder=decoder, seed=recipe.seed, **budgets)


def intervals(analysis: Analysis) -> FloatArray | None:
    """(n,) half widths of the 95% intervals of the expected utilities; None where the decoder does not know them."""
    deviation = analysis.decision.deviation
    return None if deviation is None else np.asarray(_NORMAL_95 * deviation)


def _true(analysis: Analysis, index: int) -> float | None:
    exact = analysis.exact
    return None if exact is None else float(exact[index])
