"""A utility as a setting: its name and options, from which it can be loaded again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ..config import Configured, describe, plain
from .base import Utility
from .load import as_utility, load_with

if TYPE_CHECKING:
    from ..foreign import JSON, EvaluateModule, ScoreObject

# What users may hand over; a mapping is {"name": ..., options}.
UtilityLike: TypeAlias = (
    "str | Mapping[str, object] | Utility | UtilitySpec | ScoreObject | EvaluateModule | Callable[..., object]"
)


@dataclass(frozen=True)
class UtilitySpec(Configured):
    """What makes a utility: a name for `load_utility` with its options, or a ready object.

    Args:
        name: as `load_utility` takes it: a name, hub id or path.
        options: of the utility.
        ready: the object itself, where it was given as one; such a spec cannot be written as JSON unless the object was
            made by `load_utility`.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    ready: Utility | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, utility: object) -> UtilitySpec:
        """From whatever users have. A name is not loaded yet."""
        if isinstance(utility, UtilitySpec):
            return utility
        if isinstance(utility, str):
            return cls(utility)
        if isinstance(utility, Mapping):
            options = dict(utility)
            name = options.pop("name", None)
            if not isinstance(name, str):
                raise ValueError(f'a utility is a name or {{"name": ..., its options}}, got {utility!r}')
            return cls(name, options)
        ready = as_utility(utility)
        if ready.loaded_as is None:
            return cls(ready.name, {}, ready)
        return cls(*ready.loaded_as, ready)

    @classmethod
    def check(cls, name: str, value: object) -> UtilitySpec:
        """The check of a field that holds a utility."""
        return cls.of(value)

    def load(self) -> Utility:
        """The utility."""
        return self.ready if self.ready is not None else load_with(self.name, self.options)

    def to_dict(self) -> dict[str, JSON]:
        if self.ready is not None and self.ready.loaded_as is None:
            raise ValueError(
                f"the utility {self.name!r} is a Python object, which cannot be written as JSON: give it by name, hub "
                "id or path, with its options"
            )
        return {"name": self.name, **{key: plain(key, value) for key, value in self.options.items()}}

    def __str__(self) -> str:
        options = ",".join(f"{key}={describe(value)}" for key, value in sorted(self.options.items()))
        return f"{self.name}({options})" if options else self.name
