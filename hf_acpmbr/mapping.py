"""ACPMBR over a corpus: the function that `datasets.Dataset.map` applies to every batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .inputs import encode

if TYPE_CHECKING:
    from .generate import ACPMBR


@dataclass(frozen=True)
class MapFunction:
    """`ds.map(mbr.map_fn(model), batched=True, batch_size=8)` adds the chosen text and its expected utility.

    The samples of a source depend on its content and the seed alone, so rows come out the same for any batch size and
    number of processes. It can be pickled when the utilities can.

    Args:
        source_column: where the text to translate or continue is.
        prediction_column: where the chosen text goes; its expected utility goes to `<prediction_column>_utility`.
        nbest: with more than 1, the n best texts and utilities are added as lists (`<prediction_column>_nbest`, …).
        prompt, chat: how a source becomes what the model reads, see `hf_acpmbr.inputs.encode`.
        generate: further arguments of `model.generate` (max_new_tokens, forced_bos_token_id, …).
    """

    mbr: ACPMBR
    model: Any
    source_column: str = "source"
    prediction_column: str = "prediction"
    nbest: int = 1
    prompt: str = "{source}"
    chat: bool = False
    generate: dict[str, Any] = field(default_factory=dict)

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if self.source_column not in batch:
            raise ValueError(f"no column {self.source_column!r} in the dataset: name it by source_column=")
        sources = list(batch[self.source_column])
        inputs = encode(self.mbr.tokenizer, sources, self.model, prompt=self.prompt, chat=self.chat)
        output = self.model.generate(
            **inputs, custom_generate=self.mbr, sources=sources, return_dict_in_generate=True, **self.generate
        )
        lists = [decision.nbest(self.nbest) for decision in output.decisions]
        name = self.prediction_column
        added: dict[str, list[Any]] = {
            name: [entries[0].text for entries in lists],
            f"{name}_utility": [entries[0].expected for entries in lists],
        }
        if self.nbest > 1:
            added[f"{name}_nbest"] = [[entry.text for entry in entries] for entries in lists]
            added[f"{name}_nbest_utility"] = [[entry.expected for entry in entries] for entries in lists]
        return added
