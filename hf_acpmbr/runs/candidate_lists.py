"""Lists of candidates from files: JSON lines, plain lines, and the n-best lists of Marian and fairseq."""

from __future__ import annotations

import argparse
import difflib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from ..candidates import Candidates
from .formats import OUTPUT_FIELDS
from .inputs import Entries, Input, Lines, json_of, open_lines, shown, text_of

LIST_FORMATS = ("jsonl", "lines", "nbest")
_LISTS = ("candidates", "counts", "logprobs", "references")
_FIELDS = (*_LISTS, "source")
_SHORT = {"src": "source", "ref": "references", "hyp": "candidates", "candidate": "candidates"}
_ALIKE = 0.88  # "reference" and "souce", but neither "source_id" nor "resource"


@dataclass(frozen=True, eq=False)
class CandidateList:
    """The candidates of one source."""

    candidates: Candidates
    source: str | None = None
    references: Candidates | None = None  # separate pseudo-references
    fields: dict[str, object] = field(default_factory=dict)  # that the output repeats: the source, the user's own


def candidate_input(args: argparse.Namespace) -> Input[CandidateList]:
    """Open the input that the options of `rerank` name."""
    size, sources = args.candidates_per_source, args.sources
    format = args.input_format or ("jsonl" if size is None else "lines")
    if (format == "lines") != (size is not None):
        raise ValueError("--input-format lines and --candidates-per-source N go together: give both or neither")
    if size is not None and size < 1:
        raise ValueError(f"--candidates-per-source must be at least 1, got {size}")
    if args.nbest_logprobs and format != "nbest":
        raise ValueError("--nbest-logprobs is for --input-format nbest: leave it out")
    if args.input.endswith(".parquet") and format != "jsonl":
        raise ValueError(f"--input {args.input} is a table with columns of its own: leave out --input-format {format}")
    if sources == "-" == args.input:
        raise ValueError("--input and --sources cannot both be standard input")
    lines = open_lines(args.input)
    entries: Callable[[], Entries] = lines.__iter__
    if format == "lines":
        entries = partial(_blocks, lines, size)
    elif format == "nbest":
        numbered = "with --sources ids are line numbers" if sources is not None else ""
        if args.format == "text":
            numbered = numbered or "a text has one line per id; --format jsonl has the ids"
        entries = partial(_nbest_lists, lines, args.nbest_logprobs, numbered)
    reserved = () if args.format in ("text", "preferences") else OUTPUT_FIELDS
    if sources is None:
        return Input([lines], entries, partial(_list_of, reserved))
    texts = Lines(sources, "--sources")
    return Input([lines, texts], partial(_with_sources, entries, texts), partial(_list_with_source, reserved))


def _with_sources(entries: Callable[[], Entries], texts: Lines) -> Entries:
    sources, count = iter(texts), 0
    for where, entry in entries():
        if (line := next(sources, None)) is None:
            raise ValueError(f"{texts.name} has {count} lines, and there are more lists of candidates ({where})")
        count += 1
        yield where, (entry, line[1])
    if (line := next(sources, None)) is not None:
        raise ValueError(f"{line[0]} has no list of candidates: there are only {count}")


def _blocks(lines: Lines, size: int) -> Entries:
    """Yield blocks of plain lines as the objects that JSON lines would have."""
    placed, count = iter(lines), 0
    while block := list(itertools.islice(placed, size)):
        count += len(block)
        if len(block) < size:
            raise ValueError(f"{lines.name} has {count} lines, which --candidates-per-source {size} does not divide")
        yield block[0][0], {"candidates": [text for _, text in block]}


def _nbest_lists(lines: Lines, logprobs: bool, numbered: str) -> Entries:
    """Yield lines `id ||| text ||| …`, grouped by id, as the objects that JSON lines would have.

    Ids ascend; with a reason in `numbered` they must be 0, 1, 2, …
    """
    parsed = ((where, *_nbest_line(where, text, logprobs)) for where, text in lines)
    last = -1
    for count, (identity, group) in enumerate(itertools.groupby(parsed, key=lambda entry: entry[1])):
        places, _, texts, scores = zip(*group, strict=True)
        if identity <= last:
            raise ValueError(f"{places[0]}: id {identity} comes after id {last}: sort the list by id")
        if numbered and identity != count:
            raise ValueError(f"{places[0]}: id {identity} where {count} was expected: {numbered}")
        last = identity
        entry = {"candidates": list(texts), "id": identity}
        yield places[0], {**entry, "logprobs": list(scores)} if logprobs else entry


def _nbest_line(where: str, line: str, logprobs: bool) -> tuple[int, str, float]:
    parts = [part.strip() for part in line.split("|||")]
    if len(parts) < 2 or not parts[0].isdecimal():
        raise ValueError(f"{where} is not 'id ||| text ||| ...' with an integer as id")
    try:
        return int(parts[0]), parts[1], float(parts[-1]) if logprobs else 0.0
    except ValueError:
        raise ValueError(
            f"{where}: its last field {parts[-1]!r} is not a log-probability: leave out --nbest-logprobs"
        ) from None


def _list_with_source(reserved: Sequence[str], where: str, given: tuple[Any, str]) -> CandidateList:
    entry, source = _object(where, given[0]), given[1]
    if entry.get("source") is not None:
        raise ValueError(f"{where} has a source of its own, and --sources gives another: use one of them")
    return _list_of(reserved, where, {**entry, "source": source})


def _list_of(reserved: Sequence[str], where: str, given: Any) -> CandidateList:
    """Build the list of an object, or of a line of JSON; the output has `reserved` fields of its own."""
    entry = _object(where, given)
    for name in ("counts", "logprobs"):
        if not isinstance(entry.get(name, []), (list, type(None))):
            raise ValueError(f"{where}: {name!r} must be a list with one number for each candidate")
    counts, logprobs = (cast("list[object] | None", entry.get(name)) for name in ("counts", "logprobs"))
    if counts is not None and isinstance(entry["candidates"], dict):
        raise ValueError(f"{where}: 'candidates' has counts of its own: leave 'counts' out")
    texts, own = _texts(entry["candidates"], "candidates", where)
    candidates = _built(where, texts, own if counts is None else counts, logprobs)
    references = None
    if (given := entry.get("references")) is not None:
        references = _built(where, *_texts(given, "references", where), None)
    source = entry.get("source")
    kept = {name: value for name, value in entry.items() if name not in _LISTS}
    if hidden := [name for name in reserved if name in kept]:
        raise ValueError(f"{where}: field {hidden[0]!r} is one of the output's own: rename it, or use --format text")
    return CandidateList(candidates, None if source is None else text_of(source, "source", where), references, kept)


def _object(where: str, line: str | dict[str, object]) -> dict[str, object]:
    if isinstance(line, dict):
        return line
    if not line.strip():
        raise ValueError(f"{where} is blank: remove it, or give candidates")
    otherwise = "use --candidates-per-source for plain lines, --input-format nbest for n-best lists"
    value = json_of(where, line, otherwise)
    entry = {"candidates": value} if isinstance(value, list) else value
    if not isinstance(entry, dict) or not entry.get("candidates"):
        raise ValueError(f'{where} has no candidates: give a list of texts or {{"candidates": [...]}}')
    for name in sorted(entry.keys() - set(_FIELDS)):
        # Other fields go through, but a misspelt one would silently not count.
        if isinstance(entry[name], (str, list, dict)):
            alike = difflib.get_close_matches(name.lower(), _FIELDS, n=1, cutoff=_ALIKE)
            if meant := _SHORT.get(name.lower().rstrip("s")) or next(iter(alike), None):
                raise ValueError(f"{where}: field {name!r} is unknown, did you mean {meant!r}? Else rename it")
    return entry


def _texts(value: object, field: str, where: str) -> tuple[list[str], list[object] | None]:
    """Read a list of texts, or an object text → count with its counts."""
    if not isinstance(value, (list, dict)) or not value:
        raise ValueError(f"{where}: {field!r} must be a list of texts or an object text → count, got {shown(value)}")
    texts = [text_of(text, f"{field}[{position}]", where) for position, text in enumerate(value)]
    return texts, list(value.values()) if isinstance(value, dict) else None


def _built(
    where: str, texts: list[str], counts: Sequence[object] | None, logprobs: Sequence[object] | None
) -> Candidates:
    for position, value in enumerate(logprobs or ()):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{where}: logprobs[{position}] must be a number, got {shown(value)}")
    try:
        return Candidates.from_texts(texts, counts=cast("list[int]", counts), logprobs=cast("list[float]", logprobs))
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from None
