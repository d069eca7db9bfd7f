"""What `model.generate(..., custom_generate=ACPMBR(...))` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers.utils.generic import ModelOutput

from ..candidates import Candidates, FloatArray
from ..decoding import Decision
from ..sampling import Request

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer

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
        references: S Candidates where pseudo-references were drawn or given apart, else None.
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
        """S matrices (unique candidates × unique pseudo-references) of the target's scores, NaN where not scored."""
        return [None if d.observed is None else d.observed.dense() for d in self.decisions or ()]

    def completed_scores(self) -> list[FloatArray | None]:
        """S matrices of the target's scores as the decision was made from, with the unscored ones filled in."""
        return [decision.completed_matrix for decision in self.decisions or ()]


def assemble(
    request: Request,
    tokenizer: Tokenizer,
    decisions: Sequence[Decision],
    references: Sequence[Candidates] | None,
    model_rows: int,
    sampling_seconds: float,
) -> MBROutput:
    """The chosen sequences, k of each source, and everything known about how they were chosen."""
    k = request.generation_config.num_return_sequences or 1
    chosen = [_exactly(k, decision) for decision in decisions]
    device = request.input_ids.device
    calls: dict[str, int] = {}
    seconds = {"sampling": sampling_seconds}
    for decision in decisions:
        for name, count in decision.calls.items():
            calls[name] = calls.get(name, 0) + count
        for name, spent in decision.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + spent
    return MBROutput(
        sequences=_padded(request, tokenizer, decisions, chosen),
        sequences_scores=torch.tensor(
            [float(d.expected[index]) for d, indices in zip(decisions, chosen, strict=True) for index in indices],
            device=device,
        ),
        texts=tuple(
            tuple(d.candidates.texts[index] for index in indices) for d, indices in zip(decisions, chosen, strict=True)
        ),
        decisions=tuple(decisions),
        candidates=tuple(decision.candidates for decision in decisions),
        references=None if references is None else tuple(references),
        calls=calls,
        model_rows=model_rows,
        seconds=seconds,
    )


def stream(streamer: BaseStreamer, output: MBROutput, prompt: int) -> None:
    """Hand the chosen sequence to the streamer of `generate`; a streamer takes one."""
    if output.sequences is None or len(output.sequences) != 1:
        raise ValueError("a streamer takes one source and one sequence: call generate for each source by itself")
    streamer.put(output.sequences[0, prompt:].cpu())


def _exactly(k: int, decision: Decision) -> list[int]:
    """The k best; where fewer distinct candidates exist the last is repeated, since a tensor has k rows a source."""
    best = [entry.index for entry in decision.nbest(k)]
    return best + best[-1:] * (k - len(best))


def _padded(
    request: Request, tokenizer: Tokenizer, decisions: Sequence[Decision], chosen: Sequence[Sequence[int]]
) -> torch.Tensor:
    prompts = request.input_ids
    rows = [
        (source, _ids(decision.candidates, index, tokenizer))
        for source, (decision, indices) in enumerate(zip(decisions, chosen, strict=True))
        for index in indices
    ]
    width = max(len(ids) for _, ids in rows)
    out = prompts.new_full((len(rows), prompts.shape[1] + width), _pad_id(request, tokenizer))
    for row, (source, ids) in enumerate(rows):
        out[row, : prompts.shape[1]] = prompts[source]
        out[row, prompts.shape[1] : prompts.shape[1] + len(ids)] = torch.tensor(ids, dtype=out.dtype)
    return out


def _ids(candidates: Candidates, index: int, tokenizer: Tokenizer) -> list[int]:
    if candidates.token_ids is not None:
        return list(candidates.token_ids[index])
    ids = list(tokenizer(candidates.texts[index], add_special_tokens=False)["input_ids"])
    return ids if tokenizer.eos_token_id is None else [*ids, tokenizer.eos_token_id]


def _pad_id(request: Request, tokenizer: Tokenizer) -> int:
    for value in (request.generation_config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id):
        if value is not None:
            return int(value)
    return 0
