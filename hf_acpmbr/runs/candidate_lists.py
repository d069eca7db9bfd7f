"""Lists of candidates from files: JSON lines, plain lines, and the n-best lists of Marian and fairseq."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

from ..candidates import Candidates
from .inputs import Input, Lines, Parsed, open_lines

FORMATS = ("jsonl", "lines", "nbest")
_LISTS = ("candidates", "counts", "logprobs", "references")
_FIELDS = (*_LISTS, "source")
N = TypeVar("N", bound=float)


@dataclass(frozen=True, eq=False)
class CandidateList:
    """The candidates of one source.

    Args:
        references: pseudo-references of their own, else None.
        fields: what the output repeats: the source and fields that are not of this program, such as ids.
    """

    candidates: Candidates
    source: str | None = None
    references: Candidates | None = None
    fields: dict[str, object] = field(default_factory=dict)


Lists: TypeAlias = "Parsed[CandidateList]"


def candidate_input(
    path: str, format: str, *, size: int | None, sources: str | None, logprobs: bool, reserved: Sequence[str] = ()
) -> Input[CandidateList]:
    """The input of `rerank`.

    Args:
        path, format: the file and what is in it, one of FORMATS.
        size: lines per source, for plain lines.
        sources: a file with one source text per list.
        logprobs: the last field of an n-best list is the log-probability.
        reserved: fields that the output has itself, so the input must not.
    """
    lines = open_lines(path)
    parse: Callable[[], Lists]
    if format == "jsonl":
        parse = lambda: _from_json(lines, reserved)  # noqa: E731
    elif format == "lines":
        parse = lambda: _from_blocks(lines, size or 1)  # noqa: E731
    else:
        parse = lambda: _from_nbest(lines, logprobs, numbered=sources is not None)  # noqa: E731
    if sources is None:
        return Input([lines], parse)
    texts = Lines(sources, "--sources")
    return Input([lines, texts], lambda: _with_sources(parse(), texts))


def _with_sources(lists: Lists, texts: Lines) -> Lists:
    numbered = iter(texts)
    count = 0
    for where, make in lists:
        count += 1
        line = next(numbered, None)
        if line is None:
            raise ValueError(f"{texts.name} has {count - 1} lines, and there are more lists of candidates ({where})")
        yield where, partial(_with_source, make, line[1], where)
    if (line := next(numbered, None)) is not None:
        raise ValueError(f"{texts.where(line[0])} has no list of candidates: there are only {count}")


def _with_source(make: Callable[[], CandidateList], source: str, where: str) -> CandidateList:
    item = make()
    if item.source is not None:
        raise ValueError(f"{where} has a source of its own, and --sources gives another: use one of them")
    return CandidateList(item.candidates, source, item.references, {**item.fields, "source": source})


def _from_blocks(lines: Lines, size: int) -> Lists:
    numbered = iter(lines)
    while block := list(itertools.islice(numbered, size)):
        where = lines.where(block[0][0])
        if len(block) < size:
            raise ValueError(
                f"{lines.name} has {block[-1][0]} lines, which --candidates-per-source {size} does not divide"
            )
        yield where, partial(_of_texts, where, [text for _, text in block])


def _of_texts(
    where: str, texts: list[str], logprobs: Sequence[object] | None = None, **fields: object
) -> CandidateList:
    return CandidateList(_built(where, texts, None, logprobs), fields=fields)


def _from_nbest(lines: Lines, logprobs: bool, numbered: bool) -> Lists:
    """`id ||| text ||| …`: lines of one id after another, ids ascending; with sources, 0, 1, 2, …"""
    parsed = (_nbest_line(lines, number, text, logprobs) for number, text in lines)
    last = -1
    for count, (identity, group) in enumerate(itertools.groupby(parsed, key=lambda entry: entry[1])):
        entries = list(group)
        where = lines.where(entries[0][0])
        if identity <= last:
            raise ValueError(f"{where}: id {identity} comes after id {last}: sort the list by id")
        if numbered and identity != count:
            raise ValueError(f"{where}: id {identity} where {count} was expected: with --sources ids are line numbers")
        last = identity
        scores = [score for _, _, _, score in entries] if logprobs else None
        yield where, partial(_of_texts, where, [text for _, _, text, _ in entries], scores, id=identity)


def _nbest_line(lines: Lines, number: int, text: str, logprobs: bool) -> tuple[int, int, str, float]:
    parts = [part.strip() for part in text.split("|||")]
    if len(parts) < 2 or not parts[0].isdecimal():
        raise ValueError(f"{lines.where(number)} is not 'id ||| text ||| ...' with an integer as id")
    if not logprobs:
        return number, int(parts[0]), parts[1], 0.0
    try:
        return number, int(parts[0]), parts[1], float(parts[-1])
    except ValueError:
        raise ValueError(
            f"{lines.where(number)}: its last field {parts[-1]!r} is not a log-probability: leave out --nbest-logprobs"
        ) from None


def _from_json(lines: Lines, reserved: Sequence[str]) -> Lists:
    for number, line in lines:
        where = lines.where(number)
        yield where, partial(_of_json, line, where, reserved)


def _of_json(line: str, where: str, reserved: Sequence[str]) -> CandidateList:
    entry = _json_entry(line, where)
    texts = entry["candidates"]
    counts = _given(entry, "counts", where)
    if isinstance(texts, dict):
        if counts is not None:
            raise ValueError(f"{where}: 'candidates' has counts of its own: leave 'counts' out")
        counts = list(texts.values())
    candidates = _built(where, _texts(texts, "candidates", where), counts, _given(entry, "logprobs", where))
    references = entry.get("references")
    if references is not None:
        own = list(references.values()) if isinstance(references, dict) else None
        references = _built(where, _texts(references, "references", where), own, None)
    source = entry.get("source")
    kept = {name: value for name, value in entry.items() if name not in _LISTS}
    if hidden := [name for name in reserved if name in kept]:
        raise ValueError(f"{where}: field {hidden[0]!r} is one of the output's own: rename it, or use --format text")
    checked = None if source is None else _text(source, "source", where)
    return CandidateList(candidates, checked, references, kept)


def _json_entry(line: str, where: str) -> dict[str, object]:
    if not line.strip():
        raise ValueError(f"{where} is blank: remove it, or give candidates")
    try:
        value = json.loads(line, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where} is not JSON ({error}): use --candidates-per-source for plain lines, --input-format nbest for "
            "n-best lists"
        ) from None
    entry = {"candidates": value} if isinstance(value, list) else value
    if not isinstance(entry, dict) or not entry.get("candidates"):
        raise ValueError(f'{where} has no candidates: give a list of texts or {{"candidates": [...]}}')
    for name in entry.keys() - set(_FIELDS):
        # Other fields go through, but a misspelt list would silently not count.
        if isinstance(entry[name], list) and (close := difflib.get_close_matches(name, _LISTS, n=1, cutoff=0.8)):
            raise ValueError(f"{where}: field {name!r} is unknown, did you mean {close[0]!r}? Else rename it")
    return entry


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return values


def _texts(value: object, field: str, where: str) -> list[str]:
    if not isinstance(value, (list, dict)) or not value:
        raise ValueError(f"{where}: {field!r} must be a list of texts or an object text → count, got {_shown(value)}")
    return [_text(text, f"{field}[{position}]", where) for position, text in enumerate(value)]


def _text(value: object, field: str, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {field} must be text, got {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {field} has half of a surrogate pair ({value[error.start]!r}), which is not text: remove it"
        ) from None
    return value


def _given(entry: dict[str, object], field: str, where: str) -> list[object] | None:
    value = entry.get(field)
    if value is None or isinstance(value, list):
        return value
    raise ValueError(f"{where}: {field!r} must be a list with one number for each candidate, got {_shown(value)}")


def _built(
    where: str, texts: list[str], counts: Sequence[object] | None, logprobs: Sequence[object] | None
) -> Candidates:
    drawn = None if counts is None else _numbers(where, "counts", counts, len(texts), (int,))
    scores = None if logprobs is None else _numbers(where, "logprobs", logprobs, len(texts), (int, float))
    try:
        return Candidates.from_texts(texts, counts=drawn, logprobs=scores)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from None


def _numbers(where: str, name: str, values: Sequence[object], size: int, kinds: tuple[type[N], ...]) -> list[N]:
    """The values, if there is one number of these kinds for each of `size` texts."""
    if len(values) != size:
        raise ValueError(f"{where}: {name!r} has {len(values)} numbers for {size} texts")
    numbers: list[N] = []
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, kinds):
            wanted = "a number" if float in kinds else "an integer"
            raise ValueError(f"{where}: {name}[{position}] must be {wanted}, got {_shown(value)}")
        numbers.append(value)
    return numbers


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
