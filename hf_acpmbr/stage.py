"""What every stage is: a frozen dataclass that checks itself and has a JSON form; and the tables of stages."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from .foreign import JSON

_SEPARATING = re.compile(r"[\s|%]")
T = TypeVar("T")
S = TypeVar("S")
C = TypeVar("C", bound="Configured")
# A stage as users give it: its name, {"name": ..., its settings} as in JSON, or the object.
StageLike: TypeAlias = str | Mapping[str, object] | S


def setting(default: T, check: Callable[[str, object], T], help: str = "") -> T:
    """Make a field whose every value goes through `check`.

    `help` is what the class's docstring, the command line and the documentation say about it.
    """
    field: T = dataclasses.field(default=default, metadata={"check": check, "help": help})
    return field


def nested(check: Callable[[str, object], S], default: Callable[[], S], help: str = "") -> S:
    """Make a field whose default is built by `default`, such as another stage; the rest is as in `setting`."""
    metadata = {"check": check, "help": help}
    field: S = dataclasses.field(default_factory=default, metadata=metadata)
    return field


@dataclass(frozen=True, eq=False, repr=False)
class Configured:
    """Base of frozen dataclasses of settings: values are checked, JSON is a dict of the fields.

    The docstring of a subclass ends with an "Args:" section made of its fields' `help`, those of its
    bases included, unless it has written such a section itself.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        # `@dataclass` has not run yet: the own fields are still plain attributes of the class.
        fields = {
            name: field
            for base in reversed(cls.__mro__[1:])
            for name, field in base.__dict__.get("__dataclass_fields__", {}).items()
        }
        fields |= {name: f for name, f in vars(cls).items() if isinstance(f, dataclasses.Field)}
        helps = {name: help for name, f in fields.items() if (help := f.metadata.get("help"))}
        if helps and cls.__doc__ and "Args:\n" not in cls.__doc__:  # no docstrings under `python -OO`
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\nArgs:\n{_arguments(helps)}\n"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (check := field.metadata.get("check")) is not None:
                object.__setattr__(self, field.name, check(field.name, getattr(self, field.name)))

    @classmethod
    def field_names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def label(cls) -> str:
        """What messages call it."""
        return cls.__name__

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, object]) -> C:
        """From a mapping of the fields; a name that is not one of them is refused."""
        for name in values:
            if name not in cls.field_names():
                raise ValueError(f"{name!r} is not a setting of {cls.label()}: {suggest(name, cls.field_names())}")
        return cls(**values)

    @classmethod
    def check(cls: type[C], name: str, value: object) -> C:
        """The check of a field that holds such settings, or a dict of them as in JSON."""
        if isinstance(value, Mapping):
            return cls.from_dict(value)
        if not isinstance(value, cls):
            raise ValueError(f"{name} must be a {cls.__name__} or a dict of its settings, got {value!r}")
        return value

    def to_dict(self) -> dict[str, JSON]:
        """The fields, with everything inside as plain JSON values."""
        return {name: plain(name, getattr(self, name)) for name in self.field_names()}

    def parts(self) -> dict[str, str]:
        """Every field as one word, for signatures."""
        return {name: describe(getattr(self, name)) for name in self.field_names()}

    def __str__(self) -> str:
        return f"({self._fields()})"

    def _fields(self) -> str:
        return ",".join(f"{name}={text}" for name, text in self.parts().items())


@dataclass(frozen=True, eq=False, repr=False)
class Stage(Configured):
    """A variant of a stage, known by its name: {"name": ..., its fields}."""

    name: ClassVar[str]

    @classmethod
    def label(cls) -> str:
        return repr(cls.name)

    def to_dict(self) -> dict[str, JSON]:
        return {"name": self.name, **super().to_dict()}

    def __str__(self) -> str:
        return f"{self.name}({self._fields()})" if self.field_names() else self.name


class Registry(Generic[S]):
    """The variants of one kind of stage by name, imported when they are asked for.

    Args:
        kind: what they are, for messages.
        entries: name → "module:Class", the module inside hf_acpmbr.
    """

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def get(self, name: str) -> type[S]:
        """The class of a variant."""
        if name not in self._entries:
            raise ValueError(f"{self.kind} {name!r} is unknown: {suggest(name, self)}")
        module, attribute = self._entries[name].split(":")
        found: type[S] = getattr(importlib.import_module(f".{module}", __package__), attribute)
        return found

    def field_names(self, name: str) -> list[str]:
        """The settings of a variant."""
        return self._stage(name).field_names()

    def build(self, given: StageLike[S], **options: object) -> S:
        """A stage from its name, from {"name": ..., its fields}, or as it is."""
        if isinstance(given, str):
            return cast(S, self._stage(given).from_dict(options))
        if isinstance(given, Mapping):
            values = {**options, **given}
            name = values.pop("name", None)
            if not isinstance(name, str):
                raise ValueError(f'a {self.kind} is {{"name": ..., its settings}}, got {dict(given)!r}')
            return self.build(name, **values)
        if given is None or isinstance(given, (bool, int, float, list, tuple)):
            raise ValueError(f"{self.kind} must be a name, a dict with a name, or an object, got {given!r}")
        return given

    def check(self, name: str, value: object) -> S:
        """The check of a field that holds a stage of this kind."""
        return self.build(cast("StageLike[S]", value))

    def having(self, field: str) -> list[str]:
        """Names of the variants that have a field."""
        return [name for name in self if field in self.field_names(name)]

    def _stage(self, name: str) -> type[Stage]:
        """The class by what all variants have in common."""
        return cast("type[Stage]", self.get(name))


class FieldHelp(NamedTuple):
    """A setting as `--help` and tables show it: its name, its default as one word, its help."""

    name: str
    default: str
    help: str


def describe_fields(settings: type[Configured]) -> list[FieldHelp]:
    """List the settings of a class with their defaults and what they mean."""
    found = []
    for field in dataclasses.fields(settings):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        text = "required" if default is dataclasses.MISSING else describe(default)
        found.append(FieldHelp(field.name, text, field.metadata.get("help", "")))
    return found


def _arguments(helps: Mapping[str, str]) -> str:
    """The lines of an "Args:" section."""
    return "\n".join(
        textwrap.fill(f"{name}: {help}", 96, initial_indent=" " * 4, subsequent_indent=" " * 8)
        for name, help in helps.items()
    )


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names) or '(there are none)'}"


def describe(value: object) -> str:
    """A setting as one word of a signature: no white space and no bar, which separates its parts."""
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return "+".join(map(describe, value))
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _SEPARATING.sub(lambda match: f"%{ord(match.group()):02x}", text)


def plain(name: str, value: object) -> JSON:
    """A setting as JSON can hold it."""
    if isinstance(value, Configured):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [plain(name, item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(str(key), item) for key, item in value.items()}
    raise ValueError(
        f"{name} is a {type(value).__name__} object, which cannot be written as JSON: give it by name, or as a Stage"
    )
