"""The rows of the table and the points of the figures: the paper's, then the package's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from evaluation.wmt.settings import EvaluationSettings
from hf_acpmbr import Recipe
from hf_acpmbr.completion import AgreementALS
from hf_acpmbr.decoding import PMBR, AgreementPMBR, Decoder
from hf_acpmbr.recipe import PAPER_SAMPLES, Budget

BEAM, BEAMS = "beam", 5


@dataclass(frozen=True)
class UniqueBudget(Budget):
    """A budget counted over the unique pairs instead of the drawn ones."""

    def pairs(self, unique: tuple[int, int], drawn: tuple[int, int] | None = None) -> int:
        return super().pairs(unique)

    def __str__(self) -> str:
        return f"{super().__str__()}(unique)"


@dataclass(frozen=True)
class Row:
    """One line of the table or one point of a figure."""

    key: str  # as in the result files
    label: str  # the method, for people
    recipe: Recipe
    budget: str = ""  # the paper's block it belongs to ("low", "high")
    distilled: str | None = None
    figure: str = ""  # that it is a point of, "cost" or "agreement"; empty for the table
    x: float | None = None  # where in the figure
    own: str = ""  # its name, if it is the package's own and not one of the paper's
    per_row: bool = False  # whether the paper's rates stand for its scores per row, for each unique candidate

    @property
    def method(self) -> str:
        """The decoder's name, or "beam"."""
        return BEAM if self.key == BEAM else self.recipe.decoder.name

    @property
    def full(self) -> bool:
        """Whether it scores all pairs."""
        return self.method in ("mbr", "distilled-mbr")

    @cached_property
    def decoder(self) -> Decoder:
        decoder = self.recipe.decoder
        if not self.per_row or not isinstance(decoder, PMBR):
            return decoder
        if isinstance(decoder, AgreementPMBR):
            decoder = dataclasses.replace(decoder, guide_budgets=tuple(map(_per_row, decoder.guide_budgets)))
        return dataclasses.replace(decoder, budget=_per_row(decoder.budget))


def table_rows(settings: EvaluationSettings) -> list[Row]:
    """List the paper's rows in its order, with beam search, then the package's own.

    Without full matrices those that need them are left out.
    """
    map_recipe = settings.recipe(decoder="map", target=False)
    rows = [Row("map", "MAP", map_recipe), Row(BEAM, f"Beam {BEAMS}", map_recipe)]
    rows.append(Row("mbr", "MBR", settings.recipe(decoder="mbr")))
    for name in settings.distilled:
        recipe = settings.recipe(decoder="distilled-mbr", target=False, guide=name)
        rows.append(Row(f"distilled-mbr/{name}", "MBR, distilled", recipe, distilled=name))
    for block in settings.budgets:
        rows += _block(settings, block)
    rows.append(Row("oracle", "Oracle", settings.recipe(decoder="oracle")))
    for name in settings.own:
        for guide, recipe in settings.own_recipes(name).items():
            key = "/".join(filter(None, ("own", name, guide)))
            rows.append(Row(key, f"{name} (this package)", recipe, distilled=guide, own=name))
    return rows if settings.full_matrices else [row for row in rows if not row.full]


def all_rows(settings: EvaluationSettings) -> list[Row]:
    """List the rows of the table, then the points of the curves over the cost and over γ."""
    return [*table_rows(settings), *_cost_rows(settings), *_agreement_rows(settings)]


def _block(settings: EvaluationSettings, block: str) -> Iterator[Row]:
    """Yield the paper's PMBR, by ALS, and AC-PMBR with each distilled utility, by AC-ALS."""
    for guide in (None, *settings.distilled):
        key, label = (f"pmbr/{block}", "PMBR") if guide is None else (f"acpmbr/{block}/{guide}", "AC-PMBR")
        recipe, per_row = settings.recipe(f"paper-{block}", guide=guide), settings.density == "row"
        yield Row(key, label, recipe, block, guide, per_row=per_row)


def _cost_rows(settings: EvaluationSettings) -> Iterator[Row]:
    """Yield the paper's method with other budgets: γ lies between its two values, on a logarithmic scale."""
    for scores in settings.figures.scores_per_row:
        gamma = min(1.0, max(0.1, 10 ** -math.log(scores, 32)))  # 1.0 at 1 score per row (High), 0.1 at 32 (Low)
        for row in _block(settings, "high"):
            recipe, decoder = row.recipe, row.recipe.decoder
            if isinstance(decoder, AgreementPMBR):
                share = decoder.budget.rate(PAPER_SAMPLES) / decoder.guide_budgets[0].rate(PAPER_SAMPLES)
                budgets = {"scores_per_row": scores, "distilled_scores_per_row": scores * share}
                recipe = recipe.changed(**budgets, agreement=gamma)
            else:
                recipe = recipe.changed(scores_per_row=2 * scores)
            key = row.key.replace("/high", f"/cost-{scores:g}")
            yield dataclasses.replace(row, key=key, recipe=recipe, budget="", figure="cost", x=scores)


def _agreement_rows(settings: EvaluationSettings) -> Iterator[Row]:
    for block in settings.budgets:
        for gamma in settings.figures.agreement:
            for row in _block(settings, block):
                if isinstance(row.recipe.decoder, AgreementPMBR):
                    key, recipe = f"{row.key}/agreement-{gamma:g}", row.recipe.changed(agreement=gamma)
                    yield dataclasses.replace(row, key=key, recipe=recipe, figure="agreement", x=gamma)


def completer_name(row: Row) -> str:
    """Name the completer of a row in the paper's words; empty where it completes nothing."""
    decoder = row.recipe.decoder
    if not isinstance(decoder, PMBR):
        return ""
    return "AC-ALS" if isinstance(decoder.completer, AgreementALS) else decoder.completer.name.replace("als", "ALS")


def _per_row(budget: Budget) -> UniqueBudget:
    return UniqueBudget(scores_per_row=PAPER_SAMPLES / budget.rate(PAPER_SAMPLES))
