"""Read what other engines return, by the fields that they publish. No engine is imported here.

Each function takes the output for *one* source. Call them as `Candidates.from_vllm` and its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    import torch

    from .types import Tokenizer

T = TypeVar("T")

TokenIds: TypeAlias = tuple[int, ...]
Detokenizer: TypeAlias = "Callable[[list[str]], str]"


class EngineOutput(NamedTuple):
    """Texts in the order they were drawn, with duplicates; None for what the engine does not report."""

    texts: list[str]
    token_ids: list[TokenIds] | None = None
    logprobs: list[float] | None = None  # under the model
    sampling_logprobs: list[float] | None = None  # under the truncated distribution that they were drawn from


def read_vllm(output: object) -> EngineOutput:
    """Read a vLLM `RequestOutput`, or its `outputs`; log-probabilities if every text has one."""
    completions = _one_source(output, "outputs", "vLLM", "RequestOutput")
    texts = [_text(_field(item, "text", "vLLM", k), "vLLM", k) for k, item in enumerate(completions)]
    ids = [tuple(int(t) for t in _field(item, "token_ids", "vLLM", k)) for k, item in enumerate(completions)]
    known = [_field(item, "cumulative_logprob", "vLLM", k) for k, item in enumerate(completions)]
    return EngineOutput(texts, ids, _all_known(known))


def read_ctranslate2(
    result: object, tokenizer: Tokenizer | None, detokenize: Detokenizer | None, length_penalty: float
) -> EngineOutput:
    """Read a CTranslate2 `TranslationResult` (`hypotheses`) or `GenerationResult` (`sequences`).

    A score is the log-probability divided by length ** length_penalty, where the length counts the end token.
    """
    if (tokenizer is None) == (detokenize is None):
        raise ValueError("CTranslate2 gives tokens: pass either tokenizer= or detokenize=, which makes them a text")
    if isinstance(result, Sequence) and not isinstance(result, str):
        if len(result) != 1:
            raise ValueError(_several(len(result), "CTranslate2", "results"))
        result = result[0]
    name = "hypotheses" if hasattr(result, "hypotheses") else "sequences"
    rows = _not_empty([list(tokens) for tokens in _field(result, name, "CTranslate2")], "CTranslate2")
    texts: list[str] = []
    ids, end = None, None
    if detokenize is not None:
        texts = [_text(detokenize(tokens), "detokenize", k) for k, tokens in enumerate(rows)]
    elif tokenizer is not None:
        numbers = [cast("list[int]", tokenizer.convert_tokens_to_ids(tokens)) for tokens in rows]
        texts = tokenizer.batch_decode(numbers, skip_special_tokens=True)
        ids, end = [tuple(row) for row in numbers], tokenizer.eos_token
    scores = [float(score) for score in _field(result, "scores", "CTranslate2")]
    lengths = [len(tokens) + (not tokens or tokens[-1] != end) for tokens in rows]
    logprobs = [score * length**length_penalty for score, length in zip(scores, lengths, strict=bool(scores))]
    return EngineOutput(texts, ids, logprobs or None)


def read_openai(response: object) -> EngineOutput:
    """Read a completion or chat completion of OpenAI's API, or its `choices`, as objects or as JSON.

    Log-probabilities are known if the request asked for them.
    """
    texts, logprobs = [], []
    for k, choice in enumerate(_one_source(response, "choices", "OpenAI", "response")):
        message = _get(choice, "message")
        text = _get(choice, "text") if message is None else _get(message, "content")
        if text is None:
            reason = _get(choice, "finish_reason")
            raise ValueError(
                f"choices[{k}] of OpenAI has no text (finish_reason {reason!r}): leave it out, or look at its refusal"
            )
        texts.append(_text(text, "OpenAI", k))
        # Chat completions list tokens with their `logprob` in `content`; completions have `token_logprobs`.
        of_tokens = _get(choice, "logprobs")
        content = _get(of_tokens, "content")
        tokens = _get(of_tokens, "token_logprobs") if content is None else [_get(token, "logprob") for token in content]
        logprobs.append(None if tokens is None or None in tokens else float(sum(tokens)))
    return EngineOutput(texts, None, _all_known(logprobs))


def read_generate(
    output: object,
    tokenizer: Tokenizer,
    rows: slice | Sequence[int] | None,
    prompt_length: int | None,
    eos_token_id: int | Sequence[int] | None,
) -> EngineOutput:
    """Read what `model.generate` of transformers returned: token ids, or the output of return_dict_in_generate=True.

    `output_logits=True` gives log-probabilities under the model, `output_scores=True` of a sampling run those under the
    distribution it sampled from.
    """
    sequences = _field(output if not hasattr(output, "shape") else {"sequences": output}, "sequences", "generate")
    total, length = sequences.shape
    logits, scores, beams = (_get(output, name) for name in ("logits", "scores", "beam_indices"))
    steps = logits if logits is not None else scores
    start = prompt_length if steps is None else length - len(steps)
    if start is None:
        raise ValueError(
            "how much of each row is not generated cannot be seen from token ids alone: pass prompt_length= (of a "
            "decoder-only model inputs['input_ids'].shape[1], of an encoder-decoder 1), or output_logits=True"
        )
    if prompt_length is not None and start != prompt_length:
        raise ValueError(f"prompt_length={prompt_length}, but {len(steps)} of {length} tokens are new")
    chosen = list(range(total))[rows] if isinstance(rows, slice) else list(range(total) if rows is None else rows)
    if not chosen or min(chosen) < 0 or max(chosen) >= total:
        raise ValueError(f"rows={rows!r} names no rows, or rows beyond the {total} of the output")
    ends = tokenizer.eos_token_id if eos_token_id is None else eos_token_id
    ends = set(ends) if isinstance(ends, Sequence) else {ends}
    ids = [_generated(sequences[row, start:].tolist(), ends, tokenizer.pad_token_id) for row in chosen]
    # In a beam search every step of a sequence may come from another row.
    at = [[row] * length if beams is None else beams[row].tolist() for row in chosen]
    return EngineOutput(
        tokenizer.batch_decode([list(row) for row in ids], skip_special_tokens=True),
        ids,
        None if logits is None else _sums(logits, ids, at),
        None if scores is None or beams is not None else _sums(scores, ids, at),
    )


def _generated(ids: list[int], ends: set[int | None], pad: int | None) -> TokenIds:
    """Cut a row after its first end token, or before the padding of a row that has none."""
    for position, token in enumerate(ids):
        if token in ends:
            return tuple(ids[: position + 1])
    while ids and ids[-1] == pad:
        ids = ids[:-1]
    return tuple(ids)


def _sums(steps: Sequence[torch.Tensor], ids: Sequence[TokenIds], at: Sequence[Sequence[int]]) -> list[float]:
    """Sum the log-probabilities of sequences: row at[k][t] of step t belongs to sequence k."""
    normal = [step.float().log_softmax(-1) for step in steps]
    return [sum(float(normal[t][at[k][t], token]) for t, token in enumerate(row)) for k, row in enumerate(ids)]


def _one_source(given: object, name: str, engine: str, what: str) -> list[object]:
    """Return the completions of one source: from the engine's object for one request, or the list inside it."""
    if isinstance(given, (str, bytes)):
        raise TypeError(f"{engine} gives {what} objects, got a string: for texts use Candidates.from_texts")
    if not isinstance(given, Sequence):
        given = _field(given, name, engine)
    elif given and _get(given[0], name) is not None:
        if len(given) > 1:
            raise ValueError(_several(len(given), engine, f"{what} objects"))
        given = _field(given[0], name, engine)
    return _not_empty(list(cast("Sequence[object]", given)), engine)


def _several(number: int, engine: str, what: str) -> str:
    return f"{number} {engine} {what}, and Candidates belong to one source: make one of each"


def _not_empty(items: list[T], engine: str) -> list[T]:
    if not items:
        raise ValueError(f"{engine}'s output has no texts: ask it for at least one")
    return items


def _get(item: object, name: str) -> Any:
    """Return a field of an object or of JSON; None if it has no such field."""
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _field(item: object, name: str, engine: str, position: int | None = None) -> Any:
    """Return a field that the engine's output must have."""
    if not (name in item if isinstance(item, Mapping) else hasattr(item, name)):
        place = "" if position is None else f" at position {position}"
        raise TypeError(f"expected {engine}'s output, with a field {name!r}; got {type(item).__name__}{place}")
    return _get(item, name)


def _text(text: object, engine: str, position: int) -> str:
    if not isinstance(text, str):
        raise TypeError(f"the text at position {position} of {engine} is {type(text).__name__}, expected str")
    return text


def _all_known(values: Sequence[float | None]) -> list[float] | None:
    """Return log-probabilities if every text has one, else None."""
    known = [float(value) for value in values if value is not None]
    return known if len(known) == len(values) else None
