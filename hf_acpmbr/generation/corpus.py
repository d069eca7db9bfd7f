"""ACPMBR over many sources: one batch of texts, and the function that `datasets.Dataset.map` applies to every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..config import integer
from .preferences import COLUMNS, Preferences, preference_rows
from .prompts import Prompting, has_text

if TYPE_CHECKING:
    from ..decoding import Decision
    from ..mbr import ACPMBR
    from ..types import GenerativeModel


class Decided(NamedTuple):
    """One Decision per source, None for a blank one that was left out, and the decoder rows spent."""

    decisions: tuple[Decision | None, ...]
    model_rows: int


def decide_texts(
    mbr: ACPMBR,
    model: GenerativeModel,
    sources: Sequence[object],
    *,
    prompting: Prompting | None = None,
    keep_blank: bool = False,
    generate: Mapping[str, object] | None = None,
    first_row: int = 0,
) -> Decided:
    """Translate or continue a batch of texts.

    Args:
        prompting: how a source becomes what the model reads.
        keep_blank: ask the model about sources without any text, too.
        generate: further arguments of `model.generate`.
        first_row: the number of the first source, for messages.
    """
    asked: dict[int, str] = {}
    for row, source in enumerate(sources, first_row):
        if not isinstance(source, str):
            raise ValueError(f"row {row} has no text: got {source!r}; fill it, or leave the row out")
        if any("\ud800" <= letter <= "\udfff" for letter in source):
            raise ValueError(f"row {row} has half of a surrogate pair, which is not text: {source!r}; remove it")
        if keep_blank or has_text(source):
            asked[row - first_row] = source
    decisions: list[Decision | None] = [None] * len(sources)
    if not asked:
        return Decided(tuple(decisions), 0)
    texts, options, room = list(asked.values()), dict(generate or {}), 0
    if options.get("max_new_tokens") is not None:
        room = integer(1)("max_new_tokens", options["max_new_tokens"])
        # Beside a max_length of the model's own, `generate` would warn of two lengths in every batch.
        options.setdefault("max_length", None)
    inputs = (prompting or Prompting()).encode(mbr.generation_tokenizer, texts, model, max_new_tokens=room)
    output = model.generate(**inputs, custom_generate=mbr, sources=texts, return_dict_in_generate=True, **options)
    for k, decision in zip(asked, output.decisions, strict=True):
        decisions[k] = decision
    return Decided(tuple(decisions), int(output.model_rows))


def prediction_columns(name: str, decisions: Sequence[Decision | None], nbest: int) -> dict[str, list[object]]:
    """Return columns with the chosen texts and their utilities ("" and NaN without a decision), and the n best."""
    lists = [[] if decision is None else decision.nbest(nbest) for decision in decisions]
    columns: dict[str, list[object]] = {
        name: [entries[0].text if entries else "" for entries in lists],
        f"{name}_utility": [entries[0].expected if entries else float("nan") for entries in lists],
    }
    if nbest > 1:
        columns[f"{name}_nbest"] = [[entry.text for entry in entries] for entries in lists]
        columns[f"{name}_nbest_utility"] = [[entry.expected for entry in entries] for entries in lists]
    return columns


def _leave_threads_of_the_parent() -> None:
    """One thread in a process forked by `map(num_proc=...)`: OpenMP would wait for threads that only its parent has."""
    import multiprocess  # what datasets forks with
    import torch

    if multiprocess.parent_process() is not None and multiprocess.get_start_method() == "fork":
        torch.set_num_threads(1)


@dataclass(frozen=True)
class MapFunction:
    """`ds.map(mbr.map_fn(model), batched=True, batch_size=8)` adds the chosen text and its expected utility.

    The samples of a source depend on its content and the seed alone, so rows come out the same for any batch size and
    number of processes. It can be pickled when the utilities can.

    Args:
        source_column: where the text to translate or continue is.
        prediction_column: where the chosen text goes; its expected utility goes to `<prediction_column>_utility`.
        nbest: with more than 1, the n best texts and utilities are added as lists (`<prediction_column>_nbest`, …).
        prompt, chat: how a source becomes what the model reads, see `hf_acpmbr.generation.prompts.Prompting`.
        too_long: "cut" sources at the model's limit, with a warning, or "refuse" them.
        keep_blank: ask the model about blank sources, too; by default they give an empty text and utility NaN.
        generate: further arguments of `model.generate` (max_new_tokens, forced_bos_token_id, …).
        preferences: True, the name of the pairs, or a `generation.preferences.Preferences`: adds TRL's `prompt`,
            `chosen`, `rejected` with expected utilities and margin. There is then a row for each pair: sources without
            one (ties, near-duplicates) are left out, those with several are repeated.
    """

    mbr: ACPMBR
    model: GenerativeModel
    source_column: str = "source"
    prediction_column: str = "prediction"
    nbest: int = 1
    prompt: str = "{source}"
    chat: bool = False
    too_long: str = "cut"
    keep_blank: bool = False
    generate: dict[str, object] = field(default_factory=dict)
    preferences: bool | str | Mapping[str, object] | Preferences | None = None

    def __post_init__(self) -> None:
        Prompting(self.prompt, self.chat, self.too_long)
        # Some tokenizers (Marian's) note how they decoded last, which would make a second map another one.
        if self.mbr.tokenizer is not None:
            self.mbr.tokenizer.decode([], skip_special_tokens=True)
        # The fingerprint of a map must not change when a network is loaded, but must when a checkpoint is replaced.
        for utility in (self.mbr.target, *self.mbr.guides):
            if utility is not None:
                _ = utility.signature
        integer(1)("nbest", self.nbest)
        object.__setattr__(self, "preferences", Preferences.of(self.preferences))

    def __call__(self, batch: Mapping[str, Sequence[object]]) -> dict[str, list[object]]:
        _leave_threads_of_the_parent()
        if self.source_column not in batch:
            raise ValueError(f"no column {self.source_column!r} in the dataset: name it by source_column=")
        sources = batch[self.source_column]
        if isinstance(sources, str) or sources is None:
            raise ValueError("map_fn works on batches of rows: call ds.map(mbr.map_fn(model), batched=True)")
        if self.preferences and (taken := sorted((set(batch) & set(COLUMNS)) - {self.source_column})):
            raise ValueError(f"the dataset has columns {taken} already: rename them, or leave preferences out")
        decided = decide_texts(
            self.mbr,
            self.model,
            list(sources),
            prompting=Prompting(self.prompt, self.chat, self.too_long),
            keep_blank=self.keep_blank,
            generate=self.generate,
        )
        added = prediction_columns(self.prediction_column, decided.decisions, self.nbest)
        if not isinstance(self.preferences, Preferences):
            return added
        # `map` takes another number of rows if it is given every column.
        columns = {**{name: batch[name] for name in batch}, **added}
        texts = [str(source) for source in sources]
        prompts = [self.prompt.replace("{source}", text) for text in texts]
        return preference_rows(
            self.preferences, columns, decided.decisions, texts, prompts, self.mbr.target, conversational=self.chat
        )
