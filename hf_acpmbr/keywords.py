"""The convenience keywords of `ACPMBR` and `Recipe.named`: each is a path into the Recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from .budget import Budget
from .config import C, Configured
from .registry import COMPLETERS, DECODERS, OBSERVATIONS, SAMPLERS

# In the order in which they apply.
_SAMPLER, _COMPLETER = ("sampling", "sampler"), ("decoder", "completer")
KEYWORDS: dict[str, tuple[str, ...]] = {
    "num_candidates": ("sampling", "num_candidates"),
    "num_references": ("sampling", "num_references"),
    "sampler": _SAMPLER,
    "references_sampler": ("sampling", "references_sampler"),
    "max_rows": (*_SAMPLER, "max_rows"),
    **{name: (*_SAMPLER, "truncation", name) for name in ("epsilon", "temperature", "top_k", "top_p", "min_p")},
    "decoder": ("decoder",),
    "completer": _COMPLETER,
    "observation": ("decoder", "observation"),
    "reduction": ("decoder", "budget", "reduction"),
    "scores_per_row": ("decoder", "budget", "scores_per_row"),
    "distilled_reduction": ("decoder", "guide_budgets", "reduction"),
    "distilled_scores_per_row": ("decoder", "guide_budgets", "scores_per_row"),
    "max_regret": ("decoder", "max_regret"),
    "confidence": ("decoder", "confidence"),
    "time_limit": ("decoder", "time_limit"),
    **{name: (*_COMPLETER, name) for name in ("rank", "regularization", "agreement", "max_sweeps")},
    **{name: (*_COMPLETER, name) for name in ("tolerance", "absolute_tolerance", "center")},
}
# Keywords of earlier versions.
RENAMED = {"generation_config": "sampler", "references_config": "references_sampler"}
_TAKERS = {
    "decoder": DECODERS.having,
    "completer": COMPLETERS.having,
    "observation": OBSERVATIONS.having,
    "sampler": SAMPLERS.having,
}


def set_completer(keywords: Iterable[str]) -> bool:
    """Whether any of the keywords is a setting of a completer."""
    return any(KEYWORDS.get(keyword, ())[:2] == _COMPLETER for keyword in keywords)


def replaced(stage: C, path: tuple[str, ...], value: object, keyword: str, kind: str = "recipe") -> C:
    """`stage` with the setting at the end of `path` replaced, all checks made anew."""
    first, *rest = path
    if first not in stage.field_names():
        raise ValueError(_misplaced(stage, first, keyword, kind))
    current = getattr(stage, first)
    if rest and isinstance(current, tuple):  # one value for all, or one each
        values = value if isinstance(value, (list, tuple)) else [value]
        value = tuple(Budget.from_dict({rest[0]: each}) for each in values)
    elif rest and isinstance(current, Budget):
        value = Budget.from_dict({rest[0]: value})
    elif rest and isinstance(current, Configured):
        value = replaced(current, tuple(rest), value, keyword, first)
    elif rest:
        raise ValueError(_misplaced(current, rest[0], keyword, first))
    elif first == "sampler" and isinstance(value, str):  # another way to draw from the same distribution
        shared = {"truncation", "max_rows"} & set(SAMPLERS.field_names(value))
        shared &= set(current.field_names() if isinstance(current, Configured) else ())
        value = SAMPLERS.build(value, **{name: getattr(current, name) for name in shared})
    return dataclasses.replace(stage, **{first: value})


def _misplaced(stage: object, field: str, keyword: str, kind: str) -> str:
    what = f"{kind} {getattr(stage, 'name', type(stage).__name__)!r}"
    takers = _TAKERS[kind](field) if kind in _TAKERS else []
    remedy = f"{kind}s that take it: {', '.join(takers)}" if takers else "leave it out"
    return f"{keyword} is not a setting of {what}; {remedy}"
