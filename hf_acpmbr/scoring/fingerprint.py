"""What tells two utilities apart: their options as words of a signature, and digests of what is not a plain value."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from ..config import describe, suggest

_LONGEST = 40  # characters of a text in a signature; longer ones appear as a digest
_AMBIGUOUS = frozenset({"", "none", "true", "false"})
_CLASSES: WeakKeyDictionary[type, str] = WeakKeyDictionary()  # digests of classes, which many objects share
_PLAIN = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a text",
    "Path": "a path",
    "None": "none",
}
_DEPTH = 6  # of objects inside objects; beyond it only the type counts


def option_names(cls: type) -> list[str]:
    """List every option of a constructor, those that `**options` hands to its bases included."""
    return list(_option_types(cls))


def check_options(label: str, cls: type, options: Mapping[str, object]) -> None:
    """Refuse names that are not options of a class, and plain options of another type.

    Files and commands are not typed: what comes from them goes through the same check.
    """
    types = _option_types(cls)
    for name, value in options.items():
        if name not in types:
            raise ValueError(f"{name!r} is not an option of {label}: {suggest(name, types)}")
        kinds = types[name].split(" | ")
        if all(kind in _PLAIN for kind in kinds) and not any(_is_plain(value, kind) for kind in kinds):
            allowed = " or ".join(_PLAIN[kind] for kind in kinds)
            raise ValueError(f"{name} must be {allowed}, got {value!r}")


def _is_plain(value: object, kind: str) -> bool:
    if isinstance(value, bool) or kind == "bool":
        return isinstance(value, bool) and kind == "bool"
    kinds: dict[str, type] = {"int": Integral, "float": Real, "str": str, "Path": Path, "None": type(None)}
    return isinstance(value, kinds[kind])


@functools.cache
def _option_types(cls: type) -> Mapping[str, str]:
    """Map every option to its annotation, as it is written."""
    names: dict[str, str] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names |= {parameter.name: str(parameter.annotation) for parameter in parameters if parameter.kind in named}
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return names


def word(value: object) -> str:
    """Write an option as one word: plain values as they are, all else as a digest of its content."""
    if value is None or isinstance(value, (bool, int, float, np.number)):
        return describe(value.item() if isinstance(value, np.number) else value)
    if isinstance(value, Mapping) and not value:
        return "none"
    if isinstance(value, str) and len(value) <= _LONGEST and value not in _AMBIGUOUS:
        return describe(value)
    return digest(value)


def digest(value: object) -> str:
    """Return 12 hexadecimal digits from the content of a value.

    A function counts by its code, defaults and closure, an object by its class and attributes. What they look up
    elsewhere (global variables, files, networks) does not count.
    """
    state = hashlib.blake2b(digest_size=6)
    for part in _parts(value, 0):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def _parts(value: object, depth: int) -> Iterator[bytes]:
    """Yield the content of a value as byte strings that begin with its type."""
    yield type(value).__qualname__.encode()
    if depth > _DEPTH:
        return
    if value is None or isinstance(value, (bool, int, float, complex, str, Path)):
        yield str(value).encode("utf-8", "surrogatepass")
    elif isinstance(value, (bytes, bytearray)):
        yield bytes(value)
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        yield f"{array.dtype}{array.shape}".encode()
        if array.dtype.hasobject:
            yield from _each(array.ravel().tolist(), depth)
        else:
            yield np.ascontiguousarray(array).tobytes()
    elif isinstance(value, Mapping):
        by_key = sorted(value.items(), key=lambda pair: list(_parts(pair[0], depth)))
        yield from _each([item for pair in by_key for item in pair], depth)
    elif isinstance(value, Set):
        yield from _each(sorted(value, key=lambda item: list(_parts(item, depth + 1))), depth)
    elif isinstance(value, Sequence):
        yield from _each(value, depth)
    else:
        yield from _each(_inside(value), depth)


def _each(values: Sequence[object], depth: int) -> Iterator[bytes]:
    yield str(len(values)).encode()
    for value in values:
        yield from _parts(value, depth + 1)


def _inside(value: object) -> list[object]:
    """List what an object is made of."""
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_names, value.co_varnames, value.co_consts]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        return [value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, cells]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, type):
        methods = {name: item for name, item in vars(value).items() if isinstance(item, types.FunctionType)}
        return [value.__module__, value.__qualname__, methods]
    if isinstance(value, (types.BuiltinFunctionType, types.ModuleType)):
        return [value.__name__]
    return [_class_digest(type(value)), [dict(getattr(value, "__dict__", {}))]]


def _class_digest(cls: type) -> str:
    if cls not in _CLASSES:
        _CLASSES[cls] = cls.__qualname__  # where its own methods lead back to it
        _CLASSES[cls] = digest(cls)
    return _CLASSES[cls]
