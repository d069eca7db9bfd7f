"""Recipe: everything that a decoding run depends on besides its inputs, as a tree of the stages' own settings.

Here are also what a run may spend (`Budget`, and `Level` for the named recipes) and `KEYWORDS`, the settings that
`ACPMBR` and `Recipe.named` take by name: each is a path into the tree.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .config import (
    COMPLETERS,
    DECODERS,
    OBSERVATIONS,
    SAMPLERS,
    C,
    Configured,
    Registry,
    integer,
    nested,
    number,
    one_of,
    optional,
    setting,
    several,
    suggest,
)
from .files import parse_json, write_atomically
from .scoring import UtilityLike, UtilitySpec, distilled_partners

if TYPE_CHECKING:
    from .decoding.base import Decoder
    from .sampling.base import Sampler
    from .types import JSON

RECIPE_NAME = "mbr_recipe.json"
# N = M in the paper's experiments: what its reduction rates refer to.
PAPER_SAMPLES = 1024
# What a loss stated for "auto" bounds; `Sampling.sure` says it for people.
ON_AVERAGE, EVERY_SENTENCE = "on average", "every sentence"
# Added before rounding down, so that 0.1 · 30 pairs are 3.
_ROUNDING = 1e-9


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
        """Return how many pairs of a `unique` (N, M) matrix to score, at least 1; `drawn` counts the duplicates too."""
        n, m = unique
        drawn_n, drawn_m = drawn or unique
        wanted = drawn_n * drawn_m / self.rate(drawn_m)
        return max(1, min(int(wanted + _ROUNDING), n * m))

    def rate(self, columns: int) -> float:
        """Return the reduction rate that this budget amounts to with `columns` pseudo-references drawn."""
        return self.reduction if self.reduction is not None else max(1.0, columns / (self.scores_per_row or 1.0))

    def __str__(self) -> str:
        return f"r{self.reduction:g}" if self.reduction is not None else f"{self.scores_per_row:g}/row"


def budget_each(budgets: tuple[Budget, ...], guides: int) -> tuple[Budget, ...]:
    """Return the budget of every guide, from one for all or one for each."""
    if guides and len(budgets) not in (1, guides):
        raise ValueError(f"guide_budgets has {len(budgets)} budgets for {guides} guides: give one or one each")
    return budgets if len(budgets) == guides else budgets[:1] * guides


class Level(NamedTuple):
    """What a named recipe may spend and how closely it follows the paper.

    Args:
        target: the target's budget beside a guide.
        alone: the target's budget without one: twice as much.
        guide: the budget of a guide as cheap as BLEURT-20-D3; other known guides have their own.
        agreement: γ.
        name: the paper's level, for the rates of known guides.
        paper: to the letter: its AC-ALS, reduction rates, uniform masks, no centring, its tolerance.
        max_regret: where rounds may stop before their budget is spent; see `RoundsMBR`.
    """

    target: Budget
    alone: Budget
    guide: Budget
    agreement: float
    name: str
    paper: bool
    max_regret: str | None


def _budget(scores: float, paper: bool) -> Budget:
    return Budget(reduction=PAPER_SAMPLES / scores) if paper else Budget(scores_per_row=scores)


def _level(
    target: float, guide: float, agreement: float, name: str, *, paper: bool = False, max_regret: str | None = None
) -> Level:
    """Make a level from scores per row with 1,024 samples, of which the paper's budgets are reduction rates."""
    beside, alone, guides = (_budget(scores, paper) for scores in (target, 2 * target, guide))
    return Level(beside, alone, guides, agreement, name, paper, max_regret)


# As in the paper: target scores per row beside a guide, those of D3, and γ.
_LOW, _HIGH = (32, 512, 0.1, "low"), (1, 16, 1.0, "high")
NAMED = {
    "auto": _level(*_LOW, max_regret="auto"),
    "fast": _level(*_HIGH),
    "thorough": _level(*_LOW),
    "paper-low": _level(*_LOW, paper=True),
    "paper-high": _level(*_HIGH, paper=True),
}


def _number_or_auto(name: str, value: object) -> Any:
    """Accept a number of samples or "auto"."""
    if isinstance(value, str) and value == "auto":
        return value
    try:
        return integer(1)(name, value)
    except ValueError as error:
        raise ValueError(f'{error}; or "auto"') from None


def _beams(name: str, value: object) -> int:
    """Accept true, false or a number of beams."""
    return value if isinstance(value, bool) else integer(0)(name, value)


@dataclass(frozen=True)
class Sampling(Configured):
    """How candidates and pseudo-references come about."""

    num_candidates: int | str = setting(
        PAPER_SAMPLES,
        _number_or_auto,
        help='how many samples to draw; "auto" draws until the stated loss covers what more of them could gain.',
    )
    max_candidates: int = setting(
        PAPER_SAMPLES,
        integer(1),
        help='with num_candidates="auto", how many at most; the stated loss is against full MBR over them.',
        quiet=True,
    )
    sure: str = setting(
        ON_AVERAGE,
        one_of(ON_AVERAGE, EVERY_SENTENCE),
        help='with num_candidates="auto", what the stated loss bounds: the mean over sentences, or the loss of nearly '
        "every single one, which takes twice as many draws.",
        quiet=True,
    )
    num_references: int | None = setting(
        None,
        optional(integer(1)),
        help="how many separate pseudo-references to draw; None lets the candidates serve as both.",
    )
    sampler: Sampler = nested(
        SAMPLERS.check,
        lambda: SAMPLERS.get("auto")(),
        help="how they are drawn; the paper's is ε-sampling with ε = 0.02 and nothing else.",
    )
    references_sampler: Sampler | None = setting(
        None, optional(SAMPLERS.check), help="the same for pseudo-references drawn apart; None takes `sampler`."
    )
    add_beam: int = setting(
        0,
        _beams,
        help="add the model's own output to the candidates, counted once: true searches as many beams as the model's "
        "generation config says, else 5; a number that many, 1 is greedy, 0 adds nothing.",
        quiet=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        apart = [name for name in ("num_references", "references_sampler") if getattr(self, name) is not None]
        if self.num_candidates == "auto" and apart:
            raise ValueError(
                f"num_candidates='auto' draws candidates that are pseudo-references as well: leave {apart[0]} out, or "
                "give a number of candidates"
            )

    @property
    def fixed_number(self) -> int:
        """The number of candidates; refused if it is to be found while drawing."""
        if self.num_candidates == "auto":
            raise ValueError("references of your own need a number of candidates: num_candidates='auto' has none")
        return int(self.num_candidates)


@dataclass(frozen=True)
class Recipe(Configured):
    """Sampling, decoder, utilities and seed. Frozen, checked, saved as JSON."""

    decoder: Decoder = nested(
        DECODERS.check,
        lambda: DECODERS.get("acpmbr")(),
        help="with everything inside it: completer, observation, budgets (`hf_acpmbr.decoding`).",
    )
    sampling: Sampling = nested(Sampling.check, Sampling, help="how candidates come about.")
    target: UtilitySpec | None = setting(None, optional(UtilitySpec.check), help="the utility that decides.")
    distilled: tuple[UtilitySpec, ...] = setting(
        (), several(UtilitySpec.check, least=0), help="the cheaper utilities that guide it."
    )
    seed: int = setting(0, integer(0), help="same seed, same result.")

    @classmethod
    def named(
        cls,
        name: str = "auto",
        *,
        target: UtilityLike | None = None,
        distilled: UtilityLike | Sequence[UtilityLike] = (),
        seed: int = 0,
        **keywords: object,
    ) -> Recipe:
        """Make a recipe by name for these utilities, changed by keywords (those of `ACPMBR`).

        "fast": 1 target score per candidate and 16 of a guide of BLEURT-20-D3's cost, without a guide 2; "thorough": 32
        and 512, without a guide 64; "auto": at most what "thorough" spends, less where the choice is clear before
        (`max_regret`); "paper-low", "paper-high": the paper's two settings to the letter.
        """
        if name not in NAMED:
            raise ValueError(f"recipe {name!r} is unknown: {suggest(name, NAMED)}")
        decides, guides = utility_specs(target, distilled)
        level = NAMED[name]
        for partner in distilled_partners(decides.name) if decides is not None and guides else ():
            if [guide.name for guide in guides] == [partner.name]:
                level = level._replace(guide=_budget(PAPER_SAMPLES / getattr(partner, level.name), level.paper))
        # The one place where the default decoder is chosen: "rounds"; if the paper or a setting of a completer is asked
        # for, one that completes.
        given: Any = keywords.pop("decoder", None)
        stages = {stage: keywords.pop(stage) for stage in _STAGES_INSIDE if stage in keywords}
        chosen = {stage: value for stage, value in stages.items() if value is not None}
        if given is None:
            completes = any(KEYWORDS.get(name, ())[:2] in (_COMPLETER, _OBSERVATION) for name in (*keywords, *chosen))
            given = "rounds" if not (completes or level.paper) else "acpmbr" if guides else "pmbr"
        if isinstance(given, str):
            kind = DECODERS.get(given)
            own = {stage: chosen.pop(stage) for stage in tuple(chosen) if stage in kind.field_names()}
            given = kind.at(level, len(guides), **own)
        recipe = cls(given, Sampling(), decides, guides, seed)
        keywords |= chosen
        return recipe.changed(**keywords) if keywords else recipe

    def changed(self, **keywords: object) -> Recipe:
        """Return it with other settings, by `ACPMBR`'s keywords; a keyword that no stage here takes is refused."""
        for one, other in (("reduction", "scores_per_row"), ("distilled_reduction", "distilled_scores_per_row")):
            if one in keywords and other in keywords:
                raise ValueError(f"{one} and {other} are two ways to say one thing: give one of them")
        for keyword in keywords:
            if keyword in RENAMED:
                raise ValueError(f"{keyword}= is now {RENAMED[keyword]}=, which takes a GenerationConfig too")
            if keyword not in KEYWORDS:
                raise ValueError(f"{keyword!r} is not a setting: {suggest(keyword, KEYWORDS)}")
        recipe = self
        for keyword, path in KEYWORDS.items():
            if keyword in keywords:
                recipe = _replaced(recipe, path, keywords[keyword], keyword, "recipe")
        return recipe

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        try:
            values = parse_json(text)
        except ValueError as error:
            raise ValueError(f"a Recipe is JSON, and this is none that can be used: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"a Recipe is a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write `mbr_recipe.json` into a folder (made if need be), all or nothing."""
        return write_atomically(Path(folder) / RECIPE_NAME, self.to_json())

    @classmethod
    def from_pretrained(cls, name_or_folder: str | os.PathLike[str]) -> Recipe:
        """Read `mbr_recipe.json` from a folder or from a repository on the Hub, or a recipe's own file."""
        path = Path(name_or_folder)
        if path.is_dir():
            path = path / RECIPE_NAME
            if not path.is_file():
                raise FileNotFoundError(f"{path.parent} has no {RECIPE_NAME}: save one with Recipe.save_pretrained")
        elif not path.is_file():
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(str(name_or_folder), RECIPE_NAME))
        return cls.from_json(path.read_text(encoding="utf-8"))


def utility_specs(
    target: UtilityLike | None, distilled: UtilityLike | Sequence[UtilityLike]
) -> tuple[UtilitySpec | None, tuple[UtilitySpec, ...]]:
    """Return target and guides as settings; "auto" among the guides is the target's known distilled version."""
    decides = None if target is None else UtilitySpec.of(target)
    listed = [] if distilled is None else list(distilled) if isinstance(distilled, (list, tuple)) else [distilled]
    guides = [UtilitySpec.of(given) for given in listed]
    for k, guide in enumerate(guides):
        if guide.name == "auto":
            name = None if decides is None else decides.name
            known = distilled_partners(name or "")
            if not known:
                raise ValueError(f"distilled='auto' knows no distilled version of {name!r}: name one, or leave it out")
            guides[k] = UtilitySpec(known[0].name, guide.options)
    used = [spec for spec in (decides, *guides) if spec is not None]
    for k, spec in enumerate(used[1:], 1):
        if spec.scored_by in [other.scored_by for other in used[:k]]:
            raise ValueError(
                f"distilled has {spec.name!r}, which is used already: it would cost its calls again and tell nothing "
                "new; leave it out, or name a cheaper utility"
            )
    return decides, tuple(guides)


# ---------------------------------------------------------------------------------------------------
# Keywords

# Keywords that hold a stage of a decoder; None chooses none.
_STAGES_INSIDE = ("completer", "observation")
_SAMPLER, _COMPLETER, _OBSERVATION = ("sampling", "sampler"), ("decoder", "completer"), ("decoder", "observation")
# The path of each keyword into the recipe, in the order in which they apply.
KEYWORDS: dict[str, tuple[str, ...]] = {
    "num_candidates": ("sampling", "num_candidates"),
    "max_candidates": ("sampling", "max_candidates"),
    "sure": ("sampling", "sure"),
    "num_references": ("sampling", "num_references"),
    "sampler": _SAMPLER,
    "references_sampler": ("sampling", "references_sampler"),
    "add_beam": ("sampling", "add_beam"),
    "max_rows": (*_SAMPLER, "max_rows"),
    **{name: (*_SAMPLER, "truncation", name) for name in ("epsilon", "temperature", "top_k", "top_p", "min_p")},
    "decoder": ("decoder",),
    "completer": _COMPLETER,
    "observation": _OBSERVATION,
    "reduction": ("decoder", "budget", "reduction"),
    "scores_per_row": ("decoder", "budget", "scores_per_row"),
    "distilled_reduction": ("decoder", "guide_budgets", "reduction"),
    "distilled_scores_per_row": ("decoder", "guide_budgets", "scores_per_row"),
    "max_regret": ("decoder", "max_regret"),
    "confidence": ("decoder", "confidence"),
    "time_limit": ("decoder", "time_limit"),
    "logprob_weight": ("decoder", "logprob_weight"),
    **{name: (*_COMPLETER, name) for name in ("rank", "regularization", "agreement", "max_sweeps")},
    **{name: (*_COMPLETER, name) for name in ("tolerance", "absolute_tolerance", "center")},
}
# Keywords of earlier versions.
RENAMED = {"generation_config": "sampler", "references_config": "references_sampler"}


def _replaced(stage: C, path: Sequence[str], value: object, keyword: str, kind: str) -> C:
    """Return `stage` with the setting at the end of `path` replaced, all checks made anew."""
    first, *rest = path
    current = getattr(stage, first, None)
    if first not in stage.field_names():
        what = f"{kind} {getattr(stage, 'name', type(stage).__name__)!r}"
        tables: tuple[Registry[Any], ...] = (DECODERS, COMPLETERS, OBSERVATIONS, SAMPLERS)
        variants = [table.get(name) for table in tables if table.kind == kind for name in table]
        takers = [variant.name for variant in variants if first in variant.field_names()]
        remedy = f"{kind}s that take it: {', '.join(takers)}" if takers else "leave it out"
        raise ValueError(f"{keyword} is not a setting of {what}; {remedy}")
    if rest and isinstance(current, tuple):  # one value for all, or one each
        values = value if isinstance(value, (list, tuple)) else [value]
        value = tuple(Budget.from_dict({rest[0]: each}) for each in values)
    elif rest and isinstance(current, Budget):
        value = Budget.from_dict({rest[0]: value})
    elif rest and isinstance(current, Configured):
        value = _replaced(current, rest, value, keyword, first)
    elif first == "sampler" and isinstance(value, str) and isinstance(current, Configured):
        # Another way to draw from the same distribution.
        shared = {"truncation", "max_rows"} & {*SAMPLERS.get(value).field_names()} & {*current.field_names()}
        value = SAMPLERS.build(value, **{name: getattr(current, name) for name in shared})
    return dataclasses.replace(stage, **{first: value})
