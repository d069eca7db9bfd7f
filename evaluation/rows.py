"""The rows of the table and the points of the figures, each one decoder of the package."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluation.settings import BudgetSettings, EvaluationSettings
from hf_acpmbr.config import PRESETS, MBRConfig
from hf_acpmbr.decoding import Decoder
from hf_acpmbr.generate import build_decoder
from hf_acpmbr.utilities import distilled_partners

PAPER_SAMPLES = 1024


@dataclass(frozen=True)
class Row:
    """One line of the table or one point of a figure.

    Args:
        key: unique name, as in the result files.
        label: the method, for people.
        config: what the decoder is made from.
        budget: the block it belongs to ("low", "high", …); empty where there is none.
        distilled: the distilled utility it uses.
        figure: empty for the table, else the figure it is a point of: "cost" or "agreement".
        x: where in the figure.
        count: whether scores per row are of "drawn" or of "unique" candidates.
    """

    key: str
    label: str
    config: MBRConfig
    budget: str = ""
    distilled: str | None = None
    figure: str = ""
    x: float | None = None
    count: str = "drawn"

    @property
    def full(self) -> bool:
        """Whether it scores all pairs."""
        return self.config.decoder in ("mbr", "distilled-mbr")

    @property
    def can_have_agreement(self) -> bool:
        """Whether AC-ALS, which γ belongs to, can complete it: it needs a guide and cannot observe in rounds."""
        return self.config.decoder == "acpmbr" and self.config.observation != "adaptive"

    def with_agreement(self, key: str, **settings: Any) -> Row:
        """The row with AC-ALS in the place of its completer, and other settings of it."""
        config = dataclasses.replace(self.config, completer="agreement-als", **settings)
        return dataclasses.replace(self, key=key, config=config)

    @cached_property
    def decoder(self) -> Decoder:
        decoder: Any = build_decoder(self.config, 0 if self.distilled is None else 1)
        if self.count == "drawn":
            return decoder  # type: ignore[no-any-return]
        changes: dict[str, Any] = {"budget": UniqueBudget(decoder.budget)}
        if self.config.decoder == "acpmbr":
            changes["guide_budgets"] = tuple(map(UniqueBudget, decoder.guide_budgets))
        return dataclasses.replace(decoder, **changes)


@dataclass(frozen=True)
class UniqueBudget:
    """A budget counted over the unique pairs instead of the drawn ones."""

    budget: Any

    def pairs(self, unique: tuple[int, int], drawn: tuple[int, int] | None = None) -> int:
        return int(self.budget.pairs(unique))

    def rate(self, columns: int) -> float:
        return float(self.budget.rate(columns))

    def __str__(self) -> str:
        return f"{self.budget}(unique)"


def table_rows(settings: EvaluationSettings) -> list[Row]:
    """The paper's rows, in its order; without full matrices those that need them are left out."""
    rows = [Row("map", "MAP", _config(settings, decoder="map")), Row("mbr", "MBR", _config(settings, decoder="mbr"))]
    rows += [
        Row(f"distilled-mbr/{name}", "MBR, distilled", _config(settings, name, decoder="distilled-mbr"), distilled=name)
        for name in settings.distilled
    ]
    for name, budget in settings.budgets.items():
        rows += _block(settings, name, budget)
    rows.append(Row("oracle", "Oracle", _config(settings, decoder="oracle")))
    return rows if settings.full_matrices else [row for row in rows if not row.full]


def figure_rows(settings: EvaluationSettings) -> list[Row]:
    """Points of the curves over the cost and over γ."""
    return [*_cost_rows(settings), *_agreement_rows(settings)]


def all_rows(settings: EvaluationSettings) -> list[Row]:
    return [*table_rows(settings), *figure_rows(settings)]


def _block(settings: EvaluationSettings, name: str, budget: BudgetSettings, **changes: Any) -> list[Row]:
    """PMBR, and AC-PMBR with each distilled utility."""
    made = [
        Row(f"pmbr/{name}", "PMBR", _preset(settings, budget, None, decoder="pmbr"), name, count=budget.count),
        *(
            Row(
                f"acpmbr/{name}/{distilled}",
                "AC-PMBR",
                _preset(settings, budget, distilled, decoder="acpmbr"),
                name,
                distilled,
                count=budget.count,
            )
            for distilled in settings.distilled
        ),
    ]
    return [dataclasses.replace(row, **changes) for row in made]


def _cost_rows(settings: EvaluationSettings) -> list[Row]:
    """Blocks like the paper's with other budgets: γ lies between its two published values, on a logarithmic scale."""
    name = settings.figures.base or next(iter(settings.budgets))
    base, rows = settings.budgets[name], []
    for per_row in settings.figures.scores_per_row:
        gamma = min(1.0, max(0.1, 10 ** -math.log(per_row, 32)))  # 1.0 at 1 score a row (High), 0.1 at 32 (Low)
        for row in _block(settings, f"cost-{per_row:g}", base, figure="cost", x=per_row):
            target = per_row * (2 if row.distilled is None else 1)
            guide = per_row * _guide_scores(settings, base, row.distilled)
            config = dataclasses.replace(
                row.config,
                reduction=None,
                scores_per_row=target,
                distilled_reduction=None,
                distilled_scores_per_row=guide,
                agreement=gamma,
            )
            rows.append(dataclasses.replace(row, config=config))
    return rows


def _agreement_rows(settings: EvaluationSettings) -> list[Row]:
    """AC-ALS whatever the table's completer is: γ is its setting."""
    return [
        row.with_agreement(f"{row.key}/agreement-{gamma:g}", agreement=gamma)
        for name, budget in settings.budgets.items()
        for gamma in settings.figures.agreement
        for row in _block(settings, name, budget, figure="agreement", x=gamma)
        if row.can_have_agreement
    ]


def _config(settings: EvaluationSettings, distilled: str | None = None, **changes: Any) -> MBRConfig:
    """A config with this run's utilities and sampling, so that it alone says how the row was made."""
    return MBRConfig.from_dict({**_common(settings, distilled), **changes})


def _preset(settings: EvaluationSettings, budget: BudgetSettings, distilled: str | None, decoder: str) -> MBRConfig:
    rate = None if distilled is None else _distilled_rate(settings, budget, distilled)
    values = {**_common(settings, distilled), **budget.mbr, "decoder": decoder}
    if decoder == "pmbr":
        values.pop("completer", None)  # a block's completer is that of AC-PMBR; PMBR has no guide for it
        if values.get("observation") == "adaptive":
            values["observation"] = "balanced"  # nor for rounds
    return MBRConfig.preset(budget.preset, paper=budget.paper, distilled_rate=rate, **values)


def _common(settings: EvaluationSettings, distilled: str | None) -> dict[str, Any]:
    return {
        "target": settings.target,
        "distilled": () if distilled is None else (distilled,),
        "seed": settings.seed,
        **dataclasses.asdict(settings.sampling),
    }


def _distilled_rate(settings: EvaluationSettings, budget: BudgetSettings, distilled: str) -> float | None:
    """r′ as given, else the one known for this pair of utilities, else the preset's own."""
    if distilled in budget.distilled_rates:
        return budget.distilled_rates[distilled]
    known = {partner.name: partner for partner in distilled_partners(settings.target)}
    return float(getattr(known[distilled], budget.preset)) if distilled in known else None


def _guide_scores(settings: EvaluationSettings, budget: BudgetSettings, distilled: str | None) -> float:
    """How many distilled scores stand for one target score at the paper's High, where the target has one a row."""
    if distilled is None:
        return 1.0
    rate = _distilled_rate(settings, dataclasses.replace(budget, preset="high"), distilled)
    return PAPER_SAMPLES / (rate or PRESETS["high"].distilled)
