"""Checks of decoder options, and of what a decoder asks of a utility."""

from __future__ import annotations

from ..utilities import Scorer


def check_whole(name: str, value: object, minimum: int, meaning: str) -> None:
    """Refuse anything but a whole number of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum} ({meaning}), got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def check_number(name: str, value: object, low: float, high: float, meaning: str) -> None:
    """Refuse anything but a number strictly between `low` and `high`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low < value < high:
        raise ValueError(f"{name} must be a number between {low:g} and {high:g} ({meaning}), got {value!r}")


def check_reference_free(decoder: str, scorer: Scorer, role: str) -> None:
    """Refuse a utility that compares with references."""
    if scorer.utility.needs_reference:
        raise ValueError(
            f"{decoder} needs a reference-free utility (quality estimation) as its {role}, but "
            f"{scorer.utility.name!r} compares with a reference: give one such as 'cometkiwi', "
            "or set needs_reference = False on your own Utility"
        )
