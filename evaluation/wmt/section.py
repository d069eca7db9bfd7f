"""Sections of a configuration, and the checks of their values: every message begins with the key at fault."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from hf_acpmbr import Recipe, available_utilities
from hf_acpmbr.config import Configured, several, suggest
from hf_acpmbr.keywords import KEYWORDS

T = TypeVar("T")
S = TypeVar("S", bound="Section")
Check = Callable[[str, object], T]
Keywords = Mapping[str, Any]


class Section(Configured):
    """A part of the configuration; messages begin with the key at fault, so that callers can put its path before it."""

    @classmethod
    def from_dict(cls: type[S], values: Mapping[str, Any]) -> S:
        names = cls.field_names()
        for name in values:
            if name not in names:
                raise ValueError(f"{name} is not a setting: {suggest(str(name), names)}")
        for entry in dataclasses.fields(cls):
            required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
            if required and entry.name not in values:
                raise ValueError(f"{entry.name} is missing")
        return cls(**values)

    @classmethod
    def check(cls: type[S], name: str, value: object) -> S:
        """The check of a field that holds this section."""
        if isinstance(value, cls):
            return value
        try:
            return cls.from_dict(mapping(anything)(name, value))
        except ValueError as error:
            raise ValueError(error if str(error).startswith(name) else f"{name}.{error}") from None


def required(check: Check[T]) -> T:
    """A field without a default."""
    made: T = field(metadata={"check": check})
    return made


def anything(name: str, value: object) -> Any:
    return value


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {value!r}")
    return value


def texts(name: str, value: object) -> tuple[str, ...]:
    return several(text, least=0)(name, [value] if isinstance(value, str) else value)


def file_name(name: str, value: object) -> str:
    """A text that names a file or folder beside others, and cannot lead elsewhere."""
    given = text(name, value)
    if not re.fullmatch(r"[^./\\\0][^/\\\0]*", given):
        raise ValueError(f"{name} becomes the name of a folder, so it has no slash and no dot in front: got {given!r}")
    return given


def language_pairs(name: str, value: object) -> tuple[str, ...]:
    pairs = texts(name, value)
    for pair in pairs:
        if not re.fullmatch(r"\w+-\w+", pair):
            raise ValueError(f"{name}: a language pair is written like en-de, got {pair!r}")
    if not pairs or len(set(pairs)) < len(pairs):
        raise ValueError(f"{name} must name at least one language pair, each once: got {', '.join(pairs) or 'none'}")
    return pairs


def mapping(check: Check[T]) -> Check[dict[str, T]]:
    def check_all(name: str, value: object) -> dict[str, T]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must hold keys and values, got {value!r}")
        return {str(key): check(f"{name}.{key}", item) for key, item in value.items()}

    return check_all


def known(names: Callable[[], list[str]], also: Callable[[str], bool] = lambda name: False) -> Check[str]:
    """One of some names, or another text that `also` accepts."""

    def check(name: str, value: object) -> str:
        given = text(name, value)
        if given not in names() and not also(given):
            raise ValueError(f"{name} {given!r} is unknown: {suggest(given, names())}")
        return given

    return check


def keywords(part: str) -> Check[Keywords]:
    """Keywords of `Recipe.named` that belong to one part of a recipe; their values are checked where one is built."""
    own = {"decoder", "num_references", "references_sampler"}  # rows choose them: candidates serve as references
    names = [name for name, path in KEYWORDS.items() if path[0] == part and name not in own]

    def check(name: str, value: object) -> Keywords:
        given = mapping(anything)(name, value)
        for key in given:
            if key not in names:
                raise ValueError(f"{name}.{key} is not a setting: {suggest(key, names)}")
        return given

    return check


def sampling(name: str, value: object) -> Keywords:
    given = keywords("sampling")(name, value)
    try:
        Recipe.named(**given)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from None
    return given


def generation(name: str, value: object) -> Keywords:
    from transformers import GenerationConfig

    given = mapping(anything)(name, value)
    empty: Any = GenerationConfig
    names = list(empty().to_dict()) if given else []
    for key in given:
        if key not in names:
            raise ValueError(f"{name}.{key} is not a setting of generate: {suggest(key, names)}")
    return given


def elsewhere(name: str) -> bool:
    """A file, a folder or an id on the Hub."""
    return "/" in name or name.endswith((".jsonl", ".jsonl.gz"))


utility = known(lambda: list(available_utilities()), elsewhere)


def utilities(name: str, value: object) -> tuple[str, ...]:
    return tuple(utility(f"{name}[{k}]", item) for k, item in enumerate(texts(name, value)))
