"""What `model.generate(..., custom_generate=ACPMBR(...))` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers.utils.generic import ModelOutput

from ..candidates import Candidates, FloatArray
from ..decoding import Decision
from ..sampling import Request

if TYPE_CHECKING:
    from ..types import Tokenizer


@dataclass
class MBROutput(ModelOutput):
    """The choices for S sources, k of each (`num_return_sequences`), best first.

    Args:
        sequences: (S·k, length) token ids, padded; with the prompt for decoder-only models, as `generate` gives them.
        sequences_scores: (S·k,) expected utility of each.
        texts: S lists of k texts.
        decisions: S Decisions: n-best, expected utilities of all candidates, observed scores, completed matrix, calls.
        candidates: S Candidates: unique texts, counts, token ids, log-probabilities.
        references: S Candidates if pseudo-references were drawn or given apart, else None.
        calls: scored pairs of each utility, over all sources.
        model_rows: decoder rows spent on sampling, over all sources.
        seconds: wall-clock time of each stage, over all sources.
    """

    sequences: torch.Tensor | None = None
    sequences_scores: torch.Tensor | None = None
    texts: tuple[tuple[str, ...], ...] | None = None
    decisions: tuple[Decision, ...] | None = None
    candidates: tuple[Candidates, ...] | None = None
    references: tuple[Candidates, ...] | None = None
    calls: Mapping[str, int] | None = None
    model_rows: int | None = None
    seconds: Mapping[str, float] | None = None

    def observed_scores(self) -> list[FloatArray | None]:
        """Return S matrices (unique candidates × pseudo-references) of the target's scores, NaN if not scored."""
        return [None if d.observed is None else d.observed.dense() for d in self.decisions or ()]

    def completed_scores(self) -> list[FloatArray | None]:
        """Return S matrices of the target's scores as the decision was made from, with the unscored ones filled in."""
        return [decision.completed_matrix for decision in self.decisions or ()]


def assemble(
    request: Request,
    tokenizer: Tokenizer,
    decisions: Sequence[Decision],
    references: Sequence[Candidates] | None,
    k: int,
    model_rows: int,
    sampling_seconds: float,
) -> MBROutput:
    """Return the chosen sequences, k of each source, and everything known about how they were chosen."""
    config, prompts = request.generation_config, request.input_ids
    calls: Counter[str] = Counter()
    seconds: Counter[str] = Counter({"sampling": sampling_seconds})
    rows: list[list[int]] = []
    scores: list[float] = []
    texts: list[tuple[str, ...]] = []
    for decision in decisions:
        calls.update(decision.calls)
        seconds.update(decision.seconds)
        best = decision.nbest(k)
        best += best[-1:] * (k - len(best))  # a tensor has k rows per source, distinct candidates may be fewer
        texts.append(tuple(entry.text for entry in best))
        scores += [entry.expected for entry in best]
        for entry in best:
            if decision.candidates.token_ids is not None:
                rows.append(list(decision.candidates.token_ids[entry.index]))
            else:
                ids = list(tokenizer(entry.text, add_special_tokens=False)["input_ids"])
                rows.append(ids if tokenizer.eos_token_id is None else [*ids, tokenizer.eos_token_id])
    pads = (config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    pad = next(int(value) for value in pads if value is not None)
    width = max(map(len, rows))
    chosen = torch.tensor([ids + [pad] * (width - len(ids)) for ids in rows], dtype=prompts.dtype)
    return MBROutput(
        sequences=torch.cat([prompts.repeat_interleave(k, dim=0), chosen.to(prompts.device)], dim=1),
        sequences_scores=torch.tensor(scores, device=prompts.device),
        texts=tuple(texts),
        decisions=tuple(decisions),
        candidates=tuple(decision.candidates for decision in decisions),
        references=None if references is None else tuple(references),
        calls=dict(calls),
        model_rows=model_rows,
        seconds=dict(seconds),
    )
