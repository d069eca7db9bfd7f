"""One source with everything that was scored for it, and decisions at other budgets from the same scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..candidates import Candidates, FloatArray
from ..decoding import Decision
from ..decoding.completing import PMBR, AgreementPMBR
from ..recipe import PAPER_SAMPLES, Recipe
from ..registry import DECODERS
from ..utilities import MatrixUtility, Utility
from .recorded import Round, recorded

_NORMAL_95 = 1.96


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
    rounds: tuple[Round, ...]
    choices: tuple[Choice, ...]
    sampling_seconds: float
    model_rows: int
    truth: AllScores | None = None
    guide_scores: AllScores | None = None
    decided_again: bool = False

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


def scores_per_row(recipe: Recipe) -> float:
    """The recipe's target budget in scores per candidate of the paper's 1,024."""
    decoder = recipe.decoder
    return PAPER_SAMPLES / decoder.budget.rate(PAPER_SAMPLES) if isinstance(decoder, PMBR) else float(PAPER_SAMPLES)


def with_budget(recipe: Recipe, scores: float) -> Recipe:
    """The recipe with another target budget, the guide's in the same proportion."""
    changes = {"scores_per_row": scores}
    if isinstance(recipe.decoder, AgreementPMBR):
        ratio = PAPER_SAMPLES / recipe.decoder.guide_budgets[0].rate(PAPER_SAMPLES) / scores_per_row(recipe)
        changes["distilled_scores_per_row"] = ratio * scores
    return recipe.changed(**changes)


def decide(
    recipe: Recipe,
    candidates: Candidates,
    target: Utility,
    guides: Sequence[Utility],
    source: str,
    context: Mapping[str, object] | None = None,
) -> tuple[Decision, tuple[Round, ...]]:
    """The recipe's decision, and who took part in its rounds."""
    decoder, log = recorded(recipe.decoder)
    decision = decoder.decode(
        candidates, target=target, guides=list(guides), source=source, seed=recipe.seed, context=context
    )
    return decision, tuple(log)


def decide_again(analysis: Analysis, scores: float) -> Analysis:
    """The same source at another budget, from the scores that are there: no utility is called."""
    if analysis.truth is None or (analysis.guides and analysis.guide_scores is None):
        raise ValueError("another budget needs all scores: run again with 'score all pairs' ticked")
    texts = analysis.candidates.texts
    recipe = with_budget(analysis.recipe, scores)
    guides = [] if analysis.guide_scores is None else [analysis.guide_scores.stored(texts)]
    decision, rounds = decide(recipe, analysis.candidates, analysis.truth.stored(texts), guides, analysis.source)
    changed = replace(analysis, decision=decision, rounds=rounds, decided_again=True)
    own = own_choice(changed, None)
    return replace(changed, choices=tuple(own if choice.own else choice for choice in analysis.choices))


def own_choice(analysis: Analysis, seconds: float | None) -> Choice:
    """The choice of the visitor's recipe."""
    decision = analysis.decision
    name = "AC-PMBR" if analysis.guides else "PMBR"
    return Choice(
        f"{name} (this recipe)",
        decision.text,
        dict(decision.calls),
        seconds,
        _true(analysis, decision.index),
        completion_error(analysis),
        own=True,
    )


def completion_error(analysis: Analysis) -> float | None:
    """Mean squared error of the completed matrix on a 0–100 scale, every pair counted as often as it was drawn."""
    completed = analysis.decision.completed_matrix
    if analysis.truth is None or completed is None:
        return None
    squared = np.square((completed - analysis.truth.matrix) * (100 / analysis.target.scale))
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
    target = analysis.truth.stored(pool.texts)
    spent = 2 * scores_per_row(analysis.recipe)
    plain: dict[str, dict[str, object]] = {"Full MBR": {"name": "mbr"}}
    if analysis.guides:
        plain["PMBR, no guide"] = {"name": "pmbr", "budget": {"scores_per_row": spent}}
    plain["Halving, no guide"] = {"name": "halving", "budget": {"scores_per_row": spent}}
    for name, settings in plain.items():
        decision = DECODERS.build(settings).decode(
            pool, target=target, source=analysis.source, seed=analysis.recipe.seed, full_matrix=analysis.truth.matrix
        )
        seconds = analysis.truth.seconds if name == "Full MBR" else None
        error = None if decision.exact else decision.completion_error
        choices.append(
            Choice(name, decision.text, dict(decision.calls), seconds, _true(analysis, decision.index), error)
        )
    choices.append(_default_choice(analysis, target))
    if analysis.guide_scores is not None:
        guide = analysis.guide_scores
        means = guide.matrix @ pool.weights
        best = int(np.argmax(means if guide.utility.higher_is_better else -means))
        calls = {guide.utility.name: guide.matrix.size}
        choices.append(Choice("Guide alone", pool.texts[best], calls, guide.seconds, _true(analysis, best)))
    return choices


def _default_choice(analysis: Analysis, target: Utility) -> Choice:
    """What the package's default decoder chooses with the same budgets, from the scores that are there."""
    ours = analysis.recipe.decoder
    settings: dict[str, object] = {"name": "rounds"}
    if isinstance(ours, PMBR):
        settings["budget"] = ours.budget
    if isinstance(ours, AgreementPMBR):
        settings["guide_budgets"] = ours.guide_budgets
    pool, guide = analysis.candidates, analysis.guide_scores
    decision = DECODERS.build(settings).decode(
        pool,
        target=target,
        guides=[] if guide is None else [guide.stored(pool.texts)],
        source=analysis.source,
        seed=analysis.recipe.seed,
    )
    return Choice("Rounds (default)", decision.text, dict(decision.calls), None, _true(analysis, decision.index))


def intervals(analysis: Analysis) -> FloatArray | None:
    """(n,) half widths of the 95% intervals of the expected utilities; None where the completion does not know them."""
    completed = analysis.decision.completed
    if completed is None:
        return None
    deviation = completed.completion.posterior(analysis.candidates.weights).deviation
    return None if deviation is None else np.asarray(_NORMAL_95 * deviation * completed.gain.scale)


def _true(analysis: Analysis, index: int) -> float | None:
    exact = analysis.exact
    return None if exact is None else float(exact[index])
