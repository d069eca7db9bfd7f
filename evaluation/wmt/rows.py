"""The rows of the table and the points of the figures, each one decoder of the package."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluation.wmt.settings import BlockSettings, EvaluationSettings
from hf_acpmbr import Recipe
from hf_acpmbr.completion import AgreementALS
from hf_acpmbr.config import Configured
from hf_acpmbr.decoding import PMBR, AgreementPMBR, Decoder
from hf_acpmbr.recipe import PAPER_SAMPLES, Budget


@dataclass(frozen=True)
class UniqueBudget(Budget):
    """A budget counted over the unique pairs instead of the drawn ones."""

    def pairs(self, unique: tuple[int, int], drawn: tuple[int, int] | None = None) -> int:
        return super().pairs(unique)

    def __str__(self) -> str:
        return f"{super().__str__()}(unique)"


@dataclass(frozen=True)
class Row:
    """One line of the table or one point of a figure.

    Args:
        key: unique name, as in the result files.
        label: the method, for people.
        recipe: utilities and decoder.
        budget: the block it belongs to ("low", "high", …); empty where there is none.
        distilled: the distilled utility it uses.
        figure: empty for the table, else the figure it is a point of: "cost" or "agreement".
        x: where in the figure.
        count: whether scores per row are of "drawn" or of "unique" candidates.
    """

    key: str
    label: str
    recipe: Recipe
    budget: str = ""
    distilled: str | None = None
    figure: str = ""
    x: float | None = None
    count: str = "drawn"

    @property
    def method(self) -> str:
        """The decoder's name."""
        return self.recipe.decoder.name

    @property
    def full(self) -> bool:
        """Whether it scores all pairs."""
        return self.method in ("mbr", "distilled-mbr")

    @property
    def can_have_agreement(self) -> bool:
        """Whether AC-ALS, which γ belongs to, can complete it: it needs a guide."""
        return isinstance(self.recipe.decoder, AgreementPMBR)

    def with_agreement(self, key: str, **settings: Any) -> Row:
        """The row with AC-ALS instead of its completer, and other settings of it."""
        completer = agreement_als(self.recipe)
        return dataclasses.replace(
            self, key=key, recipe=self.recipe.changed(completer=dataclasses.replace(completer, **settings))
        )

    @cached_property
    def decoder(self) -> Decoder:
        decoder = self.recipe.decoder
        if self.count == "drawn" or not isinstance(decoder, PMBR):
            return decoder
        if isinstance(decoder, AgreementPMBR):
            decoder = dataclasses.replace(decoder, guide_budgets=tuple(map(_unique, decoder.guide_budgets)))
        return dataclasses.replace(decoder, budget=_unique(decoder.budget))


def agreement_als(recipe: Recipe) -> AgreementALS:
    """AC-ALS with the settings that it shares with the recipe's completer; Transfer's tolerance is another one."""
    completer = recipe.decoder.completer if isinstance(recipe.decoder, PMBR) else None
    if isinstance(completer, AgreementALS):
        return completer
    names = {"rank", "max_sweeps", "seed"} & set(completer.field_names() if isinstance(completer, Configured) else ())
    return AgreementALS(**{name: getattr(completer, name) for name in names})


def table_rows(settings: EvaluationSettings) -> list[Row]:
    """The paper's rows, in its order; without full matrices those that need them are left out."""
    rows = [Row("map", "MAP", settings.recipe("map", target=False)), Row("mbr", "MBR", settings.recipe("mbr"))]
    for name in settings.distilled:
        recipe = settings.recipe("distilled-mbr", target=False, guide=name)
        rows.append(Row(f"distilled-mbr/{name}", "MBR, distilled", recipe, distilled=name))
    for name, block in settings.budgets.items():
        rows += _block(settings, name, block)
    for name in settings.rounds:
        for guide in (None, *settings.distilled):
            key, recipe = "/".join(filter(None, ("rounds", name, guide))), settings.rounds_recipe(name, guide)
            rows.append(Row(key, f"Rounds {name}", recipe, distilled=guide))
    rows.append(Row("oracle", "Oracle", settings.recipe("oracle")))
    return rows if settings.full_matrices else [row for row in rows if not row.full]


def figure_rows(settings: EvaluationSettings) -> list[Row]:
    """Points of the curves over the cost and over γ."""
    return [*_cost_rows(settings), *_agreement_rows(settings)]


def all_rows(settings: EvaluationSettings) -> list[Row]:
    return [*table_rows(settings), *figure_rows(settings)]


def _block(
    settings: EvaluationSettings, name: str, block: BlockSettings, figure: str = "", x: float | None = None
) -> Iterator[Row]:
    """PMBR, and AC-PMBR with each distilled utility."""
    for guide in (None, *settings.distilled):
        key, label = (f"pmbr/{name}", "PMBR") if guide is None else (f"acpmbr/{name}/{guide}", "AC-PMBR")
        yield Row(key, label, settings.block_recipe(block, guide), name, guide, figure, x, block.count)


def _cost_rows(settings: EvaluationSettings) -> Iterator[Row]:
    """Blocks like the base with other budgets: γ lies between the paper's two values, on a logarithmic scale."""
    base = settings.budgets[settings.figures.base or next(iter(settings.budgets))]
    for scores in settings.figures.scores_per_row:
        gamma = min(1.0, max(0.1, 10 ** -math.log(scores, 32)))  # 1.0 at 1 score per row (High), 0.1 at 32 (Low)
        for row in _block(settings, f"cost-{scores:g}", base, "cost", scores):
            recipe, decoder = row.recipe, row.recipe.decoder
            if isinstance(decoder, AgreementPMBR):
                share = decoder.budget.rate(PAPER_SAMPLES) / decoder.guide_budgets[0].rate(PAPER_SAMPLES)
                recipe = recipe.changed(scores_per_row=scores, distilled_scores_per_row=scores * share)
                if isinstance(decoder.completer, AgreementALS):
                    recipe = recipe.changed(agreement=gamma)
            else:
                recipe = recipe.changed(scores_per_row=2 * scores)
            yield dataclasses.replace(row, recipe=recipe)


def _agreement_rows(settings: EvaluationSettings) -> Iterator[Row]:
    """AC-ALS whatever the table's completer is: γ is its setting."""
    for name, block in settings.budgets.items():
        for gamma in settings.figures.agreement:
            for row in _block(settings, name, block, "agreement", gamma):
                if row.can_have_agreement:
                    yield row.with_agreement(f"{row.key}/agreement-{gamma:g}", agreement=gamma)


def _unique(budget: Budget) -> UniqueBudget:
    return UniqueBudget(budget.reduction, budget.scores_per_row)
