"""Settings: frozen dataclasses that check and explain themselves, the checks, and tables of variants by name.

@dataclass(frozen=True)
class Halving(Decoder):
    rounds: int = setting(4, integer(1), help="at most this number of rounds.")

    name: ClassVar[str] = "my-halving"

DECODERS.add("my-halving", "my_package.halving:Halving")
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from .completion.base import Completer
    from .completion.observation import Observation
    from .decoding.base import Decoder
    from .sampling.base import Sampler
    from .types import JSON

T = TypeVar("T")
S = TypeVar("S", bound="Stage")
C = TypeVar("C", bound="Configured")
# A stage as users give it: its name, {"name": ..., its settings} as in JSON, or the object.
StageLike: TypeAlias = str | Mapping[str, object] | S
# A check takes a setting's name and value, and returns the value in its own type or raises.
Check: TypeAlias = Callable[[str, object], T]

_SEPARATING = re.compile(r"[\s|%]")  # what separates the parts of a signature, and the escape itself
_EXACT_INTEGERS = 1e15  # below, a float that is an integer has all its digits
_DOC_WIDTH = 96  # with the indent that `help()` adds it fits into 100 columns


# ---------------------------------------------------------------------------------------------------
# Checks


def integer(low: int = 0) -> Check[int]:
    """Accept an integer of at least `low`; 8.0 and numpy's integers count as the integers they are."""

    def check(name: str, value: object) -> int:
        whole = isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
        if isinstance(value, bool) or not isinstance(value, Real) or not whole:
            raise ValueError(f"{name} must be an integer, got {value!r}")
        number = int(value) if isinstance(value, Integral) else int(float(value))
        if number < low:
            raise ValueError(f"{name} must be at least {low}, got {number}")
        return number

    return check


def number(
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: bool = False,
    below: bool = False,
    note: str = "",
) -> Check[float]:
    """Accept a number from `low` to `high`; `above` and `below` exclude the ends themselves."""

    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a number, got {value!r}")
        given = int(value) if isinstance(value, Integral) else float(value)
        inside = (given > low if above else given >= low) and (given < high if below else given <= high)
        if not (inside and abs(given) <= sys.float_info.max):
            limits = [f"{'above' if above else 'at least'} {low:g}"] if low > -math.inf else []
            limits += [f"{'below' if below else 'at most'} {high:g}"] if high < math.inf else ["finite"]
            raise ValueError(f"{name} must be {' and '.join(limits)}, got {given}{note and f'; {note}'}")
        return given

    return check


def flag(name: str, value: object) -> bool:
    """Accept True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value


def one_of(*names: str) -> Check[str]:
    """Accept one of a few words."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"{name} must be one of {', '.join(names)}, got {value!r}")
        return value

    return check


def optional(check: Check[T]) -> Check[T | None]:
    """Accept None, or what `check` accepts."""
    return lambda name, value: None if value is None else check(name, value)


def several(check: Check[T], least: int = 1) -> Check[tuple[T, ...]]:
    """Accept a list or tuple of at least `least` items that `check` accepts."""

    def check_all(name: str, value: object) -> tuple[T, ...]:
        if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
            raise ValueError(f"{name} must be a list, got {value!r}")
        items = tuple(check(f"{name}[{k}]", item) for k, item in enumerate(value))
        if len(items) < least:
            raise ValueError(f"{name} must have at least {least} entries, got {len(items)}")
        return items

    return check_all


# ---------------------------------------------------------------------------------------------------
# Settings and stages


def setting(default: T, check: Check[T], help: str = "", *, quiet: bool = False) -> T:
    """Make a field whose every value goes through `check`.

    Args:
        help: what the class's docstring, the command line and the documentation say about it.
        quiet: leave it out of JSON and signatures at its default: for a setting that came later, which changes nothing
            where it is not used.
    """
    field: T = dataclasses.field(default=default, metadata={"check": check, "help": help, "quiet": quiet})
    return field


def nested(check: Check[T], default: Callable[[], T], help: str = "") -> T:
    """Make a field as `setting` does, whose default is built anew, such as another stage."""
    field: T = dataclasses.field(default_factory=default, metadata={"check": check, "help": help})
    return field


@dataclass(frozen=True, eq=False, repr=False)
class Configured:
    """Base of frozen dataclasses of settings: values are checked, JSON is a dict of the fields.

    The docstring of a subclass gets an "Args:" section made of the `help` of its fields, inherited
    ones included, unless it has such a section already.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # `@dataclass` runs after this: the class's own fields are still plain attributes.
        bases = [base for base in cls.__mro__[:0:-1] if dataclasses.is_dataclass(base)]
        fields = {field.name: field for base in bases for field in dataclasses.fields(base)}
        fields |= {name: own for name, own in vars(cls).items() if isinstance(own, dataclasses.Field)}
        helps = {name: help for name, field in fields.items() if (help := field.metadata.get("help"))}
        if helps and cls.__doc__ and "Args:\n" not in cls.__doc__:  # python -OO leaves no docstring
            lines = (
                textwrap.fill(f"{name}: {help}", _DOC_WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
                for name, help in helps.items()
            )
            cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__), "", "Args:", *lines])

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, check = getattr(self, field.name), field.metadata.get("check")
            if check is not None and value is not field.default:
                object.__setattr__(self, field.name, check(field.name, value))

    @classmethod
    def field_names(cls) -> list[str]:
        """List the names of the settings."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, object]) -> C:
        """Build it from a mapping of its fields; a name that is not one of them is refused."""
        known = cls.field_names()
        for name in values:
            if name not in known:
                label = repr(cls.name) if issubclass(cls, Stage) else cls.__name__
                raise ValueError(f"{name!r} is not a setting of {label}: {suggest(name, known)}")
        return cls(**values)

    @classmethod
    def check(cls: type[C], name: str, value: object) -> C:
        """Accept such settings, or a dict of them as in JSON: the check of a field that holds them."""
        if isinstance(value, Mapping):
            return cls.from_dict(value)
        if not isinstance(value, cls):
            raise ValueError(f"{name} must be a {cls.__name__} or a dict of its settings, got {value!r}")
        return value

    def values(self) -> dict[str, object]:
        """Return the fields, without quiet ones at their defaults."""
        fields = {field.name: field for field in dataclasses.fields(self)}
        values = {name: getattr(self, name) for name in fields}
        return {
            name: value
            for name, value in values.items()
            if not fields[name].metadata.get("quiet") or value != fields[name].default
        }

    def to_dict(self) -> dict[str, JSON]:
        """Return the fields, with everything inside as plain JSON values."""
        return {name: plain(name, value) for name, value in self.values().items()}

    def parts(self) -> dict[str, str]:
        """Return every field as one word, for signatures."""
        return {name: describe(value) for name, value in self.values().items()}

    def __str__(self) -> str:
        fields = ",".join(f"{name}={text}" for name, text in self.parts().items())
        return f"({fields})"


@dataclass(frozen=True, eq=False, repr=False)
class Stage(Configured):
    """A variant of a stage, known by its name: {"name": ..., its fields}."""

    name: ClassVar[str]

    @classmethod
    def from_object(cls, given: object) -> object:
        """Return a stage of this kind, or its dict, for an object that users have instead of one.

        By default there is no such object, and `given` comes back as it is.
        """
        return given

    def to_dict(self) -> dict[str, JSON]:
        return {"name": self.name, **super().to_dict()}

    def __str__(self) -> str:
        return f"{self.name}{super().__str__()}" if self.values() else self.name


# ---------------------------------------------------------------------------------------------------
# Words for messages, signatures and JSON


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name."""
    names = list(known)
    if close := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {close[0]!r}?"
    return f"choose one of {', '.join(names) or '(there are none)'}"


def describe(value: object) -> str:
    """Return a setting as one word of a signature: no white space, and no bar, which separates its parts."""
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return "+".join(map(describe, value))
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < _EXACT_INTEGERS else repr(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _SEPARATING.sub(lambda match: f"%{ord(match.group()):02x}", text)


def plain(name: str, value: object) -> JSON:
    """Return a setting as JSON can hold it."""
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


# ---------------------------------------------------------------------------------------------------
# Tables of stages


class Registry(Generic[S]):
    """The variants of one kind of stage by name, imported when they are asked for.

    Args:
        kind: what they are, for messages.
        base: "module:Class" of the abstract class that all of them extend.
        entries: name → "module:Class"; modules, also that of `base`, are inside hf_acpmbr.
    """

    def __init__(self, kind: str, base: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._base = f"{__package__}.{base}"
        self._entries = {name: f"{__package__}.{place}" for name, place in entries.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    @cached_property
    def base(self) -> type[S]:
        """The abstract class of this kind of stage."""
        found: type[S] = pkgutil.resolve_name(self._base)
        return found

    def add(self, name: str, place: str) -> None:
        """Add a variant: `place` is "module:Class" of any module that can be imported."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} exists already ({self._entries[name]}): choose another name")
        if place.count(":") != 1:
            raise ValueError(f'{self.kind} {name!r} is at "module:Class", got {place!r}')
        self._entries[name] = place

    def get(self, name: str) -> type[S]:
        """Return the class of a variant."""
        if name not in self._entries:
            raise ValueError(f"{self.kind} {name!r} is unknown: {suggest(name, self)}")
        found = pkgutil.resolve_name(self._entries[name])
        if not (isinstance(found, type) and issubclass(found, self.base) and found.__dict__.get("name") == name):
            base = self._base.replace(":", ".")
            raise ValueError(f"{self._entries[name]} must be a subclass of {base} with name = {name!r}, got {found!r}")
        return found

    def build(self, given: StageLike[S], **options: object) -> S:
        """Build a stage from its name, from {"name": ..., its fields}, or return it as it is."""
        return self.check(self.kind, given, **options)

    def check(self, label: str, given: object, /, **options: object) -> S:
        """Build a stage from what users give: the check of a field that holds one of this kind.

        Args:
            label: what messages call it.
            options: settings that a name or a dict leaves open.
        """
        if isinstance(given, str):
            return self.get(given).from_dict(options)
        if isinstance(given, Mapping):
            values = {**options, **given}
            variant = values.pop("name", None)
            if not isinstance(variant, str):
                raise ValueError(f'a {self.kind} is {{"name": ..., its settings}}, got {dict(given)!r}')
            return self.get(variant).from_dict(values)
        if isinstance(given, self.base):
            return given
        other = self.base.from_object(given)
        if other is given:
            base = self._base.replace(":", ".")
            raise ValueError(
                f'{label} must be a name ({", ".join(self)}), {{"name": ..., its settings}} '
                f"or an object of a subclass of {base}, got {given!r}"
            )
        return self.check(label, other, **options)


# One line per variant. Utilities have their own table (`scoring/load.py`).
SAMPLERS: Registry[Sampler] = Registry(
    "sampler",
    "sampling.base:Sampler",
    {
        "auto": "sampling.base:Automatic",
        "prefix-sharing": "sampling.prefix_sharing:PrefixSharing",
        "chunked": "sampling.loops:Chunked",
        "beam-search": "sampling.loops:BeamSearch",
    },
)
OBSERVATIONS: Registry[Observation] = Registry(
    "observation",
    "completion.observation:Observation",
    {"balanced": "completion.observation:Balanced", "uniform": "completion.observation:Uniform"},
)
COMPLETERS: Registry[Completer] = Registry(
    "completer",
    "completion.base:Completer",
    {
        "als": "completion.als:ALS",
        "agreement-als": "completion.als:AgreementALS",
        "transfer": "completion.transfer:Transfer",
    },
)
DECODERS: Registry[Decoder] = Registry(
    "decoder",
    "decoding.base:Decoder",
    {
        "rounds": "decoding.rounds.decoder:RoundsMBR",
        "acpmbr": "decoding.pmbr:AgreementPMBR",
        "mbr": "decoding.exact:MBR",
        "pmbr": "decoding.pmbr:PMBR",
        "distilled-mbr": "decoding.exact:DistilledMBR",
        "map": "decoding.exact:MAP",
        "oracle": "decoding.exact:Oracle",
        "n-by-s": "decoding.exact:NByS",
        "pruning": "decoding.pruning:PruningMBR",
        "halving": "decoding.halving:HalvingMBR",
        "aggregation": "decoding.aggregation:AggregationMBR",
        "centroid": "decoding.aggregation:CentroidMBR",
        "model-based": "decoding.exact:ModelBasedMBR",
        "coarse-to-fine": "decoding.shortlist:CoarseToFine",
        "qe": "decoding.shortlist:QERerank",
        "qe-filter": "decoding.shortlist:QEFilterMBR",
        "diverse": "decoding.diverse:DiverseMBR",
        "ensemble": "decoding.ensemble:EnsembleMBR",
    },
)
