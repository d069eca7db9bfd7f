"""An LLM as the judge: a causal model is asked about two texts, and the probabilities of its answers are the score.

Judges as MBR utilities: Wu et al. 2024, https://arxiv.org/abs/2410.02902. Models favour a place in the prompt, so both
orders are asked and averaged.
"""

from __future__ import annotations

import string
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..candidates import FloatArray, IntArray
from ..config import one_of
from ..scoring.checkpoints import naming
from ..scoring.utility import Kernel, Statistics, TextTable
from .network import NetworkUtility

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from ..types import Tokenizer

_TASK = "{source}\n\nFirst answer:\n{first}\n\nSecond answer:\n{second}\n\n"
_ASKED = {
    "agreement": (
        _TASK + "How well do the two answers agree in meaning? Reply with one digit from 1 (they contradict each "
        "other) to 5 (they say the same).",
        {"1": 0.0, "2": 0.25, "3": 0.5, "4": 0.75, "5": 1.0},
    ),
    "preference": (
        _TASK + "Which of the two answers is better? Reply with one letter: A for the first, B for the second.",
        {"A": 1.0, "B": 0.0},
    ),
}
_PLACES = ("source", "first", "second")
# Below this share of the probability for all answers together, a judge mostly says something else.
_LEAST_SHARE = 0.5


class LLMJudge(NetworkUtility["PreTrainedModel"]):
    """What a causal model answers about a hypothesis and a reference, as the mean of the answers' values.

    Args:
        checkpoint: hub id or folder of a causal model with its tokenizer.
        question: "agreement" asks how well the two agree, and is symmetric; "preference" asks which is better, so that
            the expected utility is the share of the pool that a candidate beats.
        prompt: what is asked, with {first}, {second} and, where the source matters, {source}; default: the question's.
        answers: answer → its value; the probabilities of their first tokens decide, renormalised among them. For
            "preference" the value is how far the first text is better, from 0 to 1. Default: the question's. A judge
            that mostly says something else is warned of: its scores mean little.
        both_orders: ask with either text first and average; False asks once, with the hypothesis first.
        chat: put the prompt into the tokenizer's chat template; default: if it has one.
        options: see `NetworkUtility`.
    """

    half = "bfloat16"
    files = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt", "*.jinja")

    def __init__(
        self,
        checkpoint: str,
        *,
        question: str = "agreement",
        prompt: str | None = None,
        answers: Mapping[str, float] | None = None,
        both_orders: bool = True,
        chat: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(checkpoint, **options)
        self.question = one_of(*_ASKED)("question", question)
        self.both_orders, self.chat = both_orders, chat
        self.prompt = _ASKED[question][0] if prompt is None else prompt
        self.answers = dict(_ASKED[question][1] if answers is None else answers)
        _check(self.prompt, self.answers)
        prefers = question == "preference"
        if prefers and not all(0 <= value <= 1 for value in self.answers.values()):
            raise ValueError(f"answers of a preference are from 0 (second text) to 1 (first), got {self.answers}")
        # The default prompts do without the source; one of the caller's that names it needs it.
        self.needs_source = prompt is not None and "{source}" in prompt
        self.takes_source = "{source}" in self.prompt
        self.symmetric = both_orders and not prefers
        self.scale = 1.0 if prefers else max(self.answers.values()) - min(self.answers.values())
        self._warned = False

    def prices(self) -> tuple[float, float]:
        return float(self.parameters * (2 if self.both_orders else 1)), 0.0

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from transformers import AutoTokenizer

        with naming(self.folder):
            return cast("Tokenizer", AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False))

    def load(self) -> PreTrainedModel:
        from transformers import AutoModelForCausalLM

        options = {"dtype": "float32", "trust_remote_code": False}
        with naming(self.folder):
            return cast("PreTrainedModel", AutoModelForCausalLM.from_pretrained(self.folder, **options))

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Find the answers' tokens; each call asks its questions in batches."""
        tokens, owners = self.answer_tokens()
        values = np.array(list(self.answers.values()))[owners]

        def answers(first: IntArray, second: IntArray, sources: IntArray) -> FloatArray:
            known = [table.sources[s] for s in sources] if table.sources else [""] * first.size
            pairs = zip(known, first.tolist(), second.tolist(), strict=True)
            rows = [self.ask(source, table.texts[a], table.texts[b]) for source, a, b in pairs]
            out = np.empty((len(rows), 2))
            lengths = np.array([len(row) for row in rows], dtype=np.int64)
            forward = lambda batch: self._forward([rows[k] for k in batch], tokens, values)  # noqa: E731
            self.encode(lengths, forward, out.__setitem__, statistics)
            if (share := out[:, 1].mean()) < _LEAST_SHARE and not self._warned:
                self._warned = True
                warnings.warn(
                    f"the judge {self.checkpoint_name!r} gives its answers ({', '.join(self.answers)}) only "
                    f"{share:.1%} of the probability, so it mostly says something else: choose another model, "
                    "prompt= or answers=",
                    stacklevel=2,
                )
            return out[:, 0]

        def scores(hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
            asked = answers(hypotheses, references, sources)
            if not self.both_orders:
                return asked
            swapped = answers(references, hypotheses, sources)
            return np.asarray((asked + (1.0 - swapped if self.question == "preference" else swapped)) / 2)

        return scores

    def ask(self, source: str, first: str, second: str) -> list[int]:
        """Return the token ids of one question."""
        values = {"source": source, "first": first, "second": second}
        # In one pass, so that braces in a text stay as they are.
        asked = "".join(
            literal + (values[name] if name else "") for literal, name, _, _ in string.Formatter().parse(self.prompt)
        ).strip()
        if self.chat if self.chat is not None else self.tokenizer.chat_template is not None:
            turn = [{"role": "user", "content": asked}]
            asked = str(self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))
            return list(self.tokenizer(asked, add_special_tokens=False)["input_ids"])
        return list(self.tokenizer(asked + "\nAnswer:")["input_ids"])

    def answer_tokens(self) -> tuple[list[int], list[int]]:
        """Return the tokens that an answer can begin with, and the answer that each belongs to."""
        owners: dict[int, set[int]] = {}
        for k, answer in enumerate(self.answers):
            for spelled in (answer, f" {answer}"):
                ids = self.tokenizer(spelled, add_special_tokens=False)["input_ids"]
                if ids and ids[0] != self.tokenizer.unk_token_id:
                    owners.setdefault(int(ids[0]), set()).add(k)
        own = {token: next(iter(answers)) for token, answers in owners.items() if len(answers) == 1}
        if silent := [answer for k, answer in enumerate(self.answers) if k not in own.values()]:
            raise ValueError(
                f"answers {silent} have no first token of their own in {self.checkpoint_name!r}: choose answers that "
                "begin with different tokens of its vocabulary"
            )
        return list(own), list(own.values())

    def _forward(self, rows: Sequence[Sequence[int]], tokens: Sequence[int], values: FloatArray) -> FloatArray:
        """Return (B, 2) mean values of the answers, and their share of the probability.

        Padded on the left, so that the last place is every row's next token.
        """
        import torch

        width = max(map(len, rows))
        filled = [[0] * (width - len(row)) + list(row) for row in rows]
        ids, mask = torch.tensor(
            [filled, [[0] * (width - len(row)) + [1] * len(row) for row in rows]], device=self.device
        )
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        output = self.network(
            input_ids=ids, attention_mask=mask, position_ids=places, logits_to_keep=1, use_cache=False
        )
        logits: torch.Tensor = output.logits[:, -1].cpu().double()
        answers = logits[:, list(tokens)]
        share = (answers.logsumexp(-1) - logits.logsumexp(-1)).exp()
        return np.column_stack([answers.softmax(-1).numpy() @ values, share.numpy()])


def _check(prompt: str, answers: Mapping[str, float]) -> None:
    try:
        places = [place[1:] for place in string.Formatter().parse(prompt) if place[1] is not None]
    except ValueError as error:
        raise ValueError(f"prompt is not a template ({error}): write {{{{ and }}}} for braces") from error
    if unknown := [name for name, *more in places if name not in _PLACES or any(more)]:
        raise ValueError(f"prompt has {{{unknown[0]}…}}: its places are {{first}}, {{second}} and {{source}}")
    if not {"first", "second"} <= {name for name, *_ in places}:
        raise ValueError(f"prompt must have {{first}} and {{second}} where the two texts go, got {prompt!r}")
    if len(set(answers.values())) < 2:
        raise ValueError(f"answers must have at least two answers of different value, got {dict(answers)}")
    for answer, value in answers.items():
        if not answer.strip() or not np.isfinite(value):
            raise ValueError(f"answers maps texts to finite numbers, got {answer!r}: {value!r}")
