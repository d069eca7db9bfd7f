"""How many pairs to score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .config import Configured, number, optional, setting

if TYPE_CHECKING:
    from .types import JSON

# N = M in the paper's experiments; its reduction rates mean these many scores per row.
PAPER_SAMPLES = 1024


@dataclass(frozen=True)
class Budget(Configured):
    """How many of the pairs a utility may score: a reduction rate or a number of scores per row, not both.

    Both count the candidates *drawn*, duplicates included, so the cost is never above the paper's; if there are fewer
    unique pairs, all of them are scored and nothing needs to be completed.
    """

    reduction: float | None = setting(
        None, optional(number(1, note="1 scores every pair")), help="r, the paper's rate: one pair in r."
    )
    scores_per_row: float | None = setting(
        None,
        optional(number(0, above=True)),
        help="this number of scores per candidate, so r = M / scores_per_row. Unlike r it keeps its meaning for any N. "
        "With N = M = 1,024 the paper's Low has 32 target scores per row and its High 1, and so they have with N = 64.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.reduction is None) == (self.scores_per_row is None):
            raise ValueError(
                "a budget is either reduction or scores_per_row, two ways to say one thing: got "
                f"reduction={self.reduction} and scores_per_row={self.scores_per_row}"
            )

    def to_dict(self) -> dict[str, JSON]:
        return {name: value for name, value in super().to_dict().items() if value is not None}

    def pairs(self, unique: tuple[int, int], drawn: tuple[int, int] | None = None) -> int:
        """How many pairs of a `unique` (N, M) matrix to score, at least 1; `drawn` counts the duplicates too."""
        n, m = unique
        drawn_n, drawn_m = drawn or unique
        wanted = drawn_n * drawn_m / self.rate(drawn_m)
        return max(1, min(int(wanted + 1e-9), n * m))

    def rate(self, columns: int) -> float:
        """The reduction rate that this budget amounts to with so many pseudo-references drawn."""
        return self.reduction if self.reduction is not None else max(1.0, columns / (self.scores_per_row or 1.0))

    def __str__(self) -> str:
        return f"r{self.reduction:g}" if self.reduction is not None else f"{self.scores_per_row:g}/row"


def budget_each(budgets: tuple[Budget, ...], guides: int) -> tuple[Budget, ...]:
    """The budget of every guide, from one for all or one for each."""
    if guides and len(budgets) not in (1, guides):
        raise ValueError(f"guide_budgets has {len(budgets)} budgets for {guides} guides: give one or one each")
    return budgets if len(budgets) == guides else budgets[:1] * guides


@dataclass(frozen=True)
class Level:
    """What a named recipe may spend and how closely it follows the paper, in scores per row with 1,024 samples.

    Args:
        target: target scores per row beside a guide; without one there is twice as much to spend.
        guide: scores per row of a guide as cheap as BLEURT-20-D3; other known guides have their own.
        agreement: γ.
        name: the paper's level, for the rates of known guides.
        paper: to the letter: its AC-ALS, reduction rates, uniform masks, no centring, its tolerance.
        max_regret: where rounds may stop before their budget is spent; see `RoundsMBR`.
    """

    target: float
    guide: float
    agreement: float
    name: str
    paper: bool = False
    max_regret: str | None = None

    def budget(self, scores: float) -> Budget:
        """Make a budget of so many scores per row: the paper's is a reduction rate."""
        return Budget(reduction=PAPER_SAMPLES / scores) if self.paper else Budget(scores_per_row=scores)

    @property
    def alone(self) -> Budget:
        """The target's budget if nothing is spent on guides."""
        return self.budget(2 * self.target)

    def with_guides(self, guides: int) -> dict[str, object]:
        """Make the budgets of a decoder that can use guides."""
        return {
            "budget": self.budget(self.target) if guides else self.alone,
            "guide_budgets": (self.budget(self.guide),),
        }

    @property
    def completer(self) -> dict[str, object]:
        """What it sets in completers that have such fields."""
        paper = {"center": False, "tolerance": 1e-4, "absolute_tolerance": True} if self.paper else {}
        return {"agreement": self.agreement, **paper}
