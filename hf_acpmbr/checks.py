"""Checks of single settings: each takes a name and a value, and gives the value back in its own type or raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import TypeVar

T = TypeVar("T")
Check = Callable[[str, object], object]


def integer(low: int = 0) -> Callable[[str, object], int]:
    """An integer of at least `low`. 8.0 and numpy's integers are taken as the integers they are."""

    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, Real) or not float(value).is_integer():
            raise ValueError(f"{name} must be an integer, got {value!r}")
        number = int(value) if isinstance(value, Integral) else int(float(value))
        if number < low:
            raise ValueError(f"{name} must be at least {low}, got {number}")
        return number

    return check


def number(
    low: float = -math.inf, high: float = math.inf, *, above: bool = False, below: bool = False, note: str = ""
) -> Callable[[str, object], float]:
    """A number from `low` to `high`; with `above` and `below` the ends themselves are excluded."""

    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a number, got {value!r}")
        given = int(value) if isinstance(value, Integral) else float(value)
        inside = (given > low if above else given >= low) and (given < high if below else given <= high)
        if not (inside and math.isfinite(given)):
            limits = [f"{'above' if above else 'at least'} {low:g}"] if low > -math.inf else []
            limits += [f"{'below' if below else 'at most'} {high:g}"] if high < math.inf else ["finite"]
            raise ValueError(f"{name} must be {' and '.join(limits)}, got {given}{note and f'; {note}'}")
        return given

    return check


def flag(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value


def one_of(*names: str) -> Callable[[str, object], str]:
    """One of a few words."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"{name} must be one of {', '.join(names)}, got {value!r}")
        return value

    return check


def optional(check: Callable[[str, object], T]) -> Callable[[str, object], T | None]:
    """None, or what `check` takes."""
    return lambda name, value: None if value is None else check(name, value)


def several(check: Callable[[str, object], T], least: int = 1) -> Callable[[str, object], tuple[T, ...]]:
    """A list or tuple of what `check` takes."""

    def check_all(name: str, value: object) -> tuple[T, ...]:
        if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
            raise ValueError(f"{name} must be a list, got {value!r}")
        items = tuple(check(f"{name}[{k}]", item) for k, item in enumerate(value))
        if len(items) < least:
            raise ValueError(f"{name} must have at least {least} entries, got {len(items)}")
        return items

    return check_all
