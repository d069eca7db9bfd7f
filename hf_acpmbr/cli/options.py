"""Options of the form KEY=VALUE."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..files import parse_json


def key_value(text: str) -> tuple[str, object]:
    """Read KEY=VALUE; the value as JSON if it is JSON (8, 0.5, true, {"name": ...}), else as plain text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.replace("-", "_"), json_or_text(value)


def json_or_text(text: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        if text.startswith(("{", "[")):
            message = f"{text!r:.80} starts like JSON, but is not valid JSON ({error})"
            raise argparse.ArgumentTypeError(message) from None
        return text


def stage(text: str) -> object:
    """Read a name, or a JSON object with a name and settings."""
    value = json_or_text(text)
    if not isinstance(value, (str, dict)):
        raise argparse.ArgumentTypeError(f'{text!r} is neither a name nor {{"name": ..., settings}}')
    return value


def named(text: str) -> dict[str, object]:
    """Read a utility's name, as the dict that its options join."""
    return {"name": text}


def add_key_values(group: argparse._ActionsContainer, option: str, help: str, *, joins: str | None = None) -> None:
    """Add an option that takes KEY=VALUE [KEY=VALUE ...], repeatable; with `joins`, for the last dict of that list."""
    group.add_argument(
        option,
        nargs="+",
        type=key_value,
        action=KeyValues,
        metavar="KEY=VALUE",
        dest=joins or option.removeprefix("--").replace("-", "_"),
        default=[] if joins else {},
        help=help,
    )


class KeyValues(argparse.Action):
    """Collects pairs in the dict in `dest`, or in the last dict of the list there; a key given twice is refused."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[tuple[str, object]] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        if before == []:
            raise argparse.ArgumentError(self, f"give --{self.dest} NAME first: the options belong to the one before")
        merged = dict(before[-1] if isinstance(before, list) else before)
        for key, value in () if values is None or isinstance(values, str) else values:
            if key in merged:
                raise argparse.ArgumentError(self, f"{key} is given twice")
            merged[key] = value
        setattr(namespace, self.dest, [*before[:-1], merged] if isinstance(before, list) else merged)
