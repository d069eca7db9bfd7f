"""Options of the form KEY=VALUE."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any


def key_value(text: str) -> tuple[str, Any]:
    """KEY=VALUE; the value is read as JSON if it is JSON (8, 0.5, true, {"name": ...}), otherwise as plain text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.replace("-", "_"), json_or_text(value)


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if text.startswith(("{", "[")):
            raise argparse.ArgumentTypeError(f"{text!r} starts like JSON, but is not valid JSON") from None
        return text


def named(text: str) -> dict[str, Any]:
    """A utility's name as the dict that its options join."""
    return {"name": text}


def add_key_values(parser: Any, option: str, help: str, **more: Any) -> None:
    """An option that takes KEY=VALUE [KEY=VALUE ...] and may be repeated; see `KeyValues`."""
    settings: dict[str, Any] = {"default": {}, **more}
    parser.add_argument(option, nargs="+", type=key_value, action=KeyValues, metavar="KEY=VALUE", help=help, **settings)


class KeyValues(argparse.Action):
    """Collects pairs in the dict in `dest`, or in the last dict of the list there; a key given twice is refused."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        if before == []:
            raise argparse.ArgumentError(self, f"give --{self.dest} NAME first: the options belong to the one before")
        merged = dict(before[-1] if isinstance(before, list) else before)
        pairs: Any = values
        for key, value in pairs:
            if key in merged:
                raise argparse.ArgumentError(self, f"{key} is given twice")
            merged[key] = value
        setattr(namespace, self.dest, [*before[:-1], merged] if isinstance(before, list) else merged)
