"""How often the sampler waits for the device: once per step, or twice, counted at the real sampler's own calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

import hf_acpmbr.sampling
from hf_acpmbr.sampling import Samples, Truncation
from hf_acpmbr.sampling.prefix_sharing import PrefixSharing, Stopping
from tests.models import tiny_model
from tests.sampling.requests import SOURCES, request
from tests.sampling.test_prefix_sharing import same

SAMPLER = str(Path(hf_acpmbr.sampling.__file__).parent)
WAITING = {
    "cpu", "item", "tolist", "numpy", "nonzero", "unique", "masked_select", "bincount", "equal", "allclose",
    "__bool__", "__int__", "__float__", "__index__", "__array__", "__iter__", "__contains__",
}  # fmt: skip


class Reads(TorchFunctionMode):
    """Counts, for each step, the calls by which the sampler would wait for an accelerator."""

    def __init__(self) -> None:
        self.per_step = [0]
        self._read: list[Any] = []

    def step(self, *_: object) -> None:
        self.per_step.append(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._waits(func.__name__, args) and _called_by_sampler():
            self.per_step[-1] += 1
            self._read.append(result)
        return result

    def _waits(self, name: str, args: tuple[Any, ...]) -> bool:
        if name in ("__getitem__", "__setitem__"):  # by a mask: its size must be known first
            return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in args[1:])
        if name == "to":
            return "cpu" in args[1:]
        return name in WAITING and not any(args[0] is result for result in self._read)  # read already


def _called_by_sampler() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None and ("torch" in frame.f_globals.get("__name__", "").split(".")):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(SAMPLER)


def counted(kind: str, settings: dict[str, Any], truncation: Truncation) -> tuple[list[Samples], list[int]]:
    model = tiny_model(kind, vocabulary=64)
    asked = request(model, SOURCES, max_new_tokens=5, **settings)
    reads = Reads()
    hook = model.register_forward_pre_hook(reads.step)
    try:
        with reads:
            drawn = PrefixSharing(truncation=truncation, max_rows=60).sample(asked, 100)
    finally:
        hook.remove()
    return drawn, reads.per_step[1:]


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
@pytest.mark.parametrize(
    "truncation",
    [
        Truncation(epsilon=0.05),
        Truncation(epsilon=0.0),
        Truncation(epsilon=0.0, top_p=0.8),
        Truncation(temperature=0.8),
    ],
    ids=["epsilon", "none", "top_p", "temperature"],
)
@pytest.mark.parametrize(
    "settings", [{}, {"bad_words_ids": [[5], [6]]}, {"repetition_penalty": 1.3}], ids=["plain", "banned", "repetition"]
)
def test_a_step_on_an_accelerator_waits_once_and_draws_the_same(
    kind: str, truncation: Truncation, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = counted(kind, settings, truncation)
    monkeypatch.setattr("hf_acpmbr.sampling.prefix_sharing.drawing.reads_are_free", lambda device: False)
    drawn, reads = counted(kind, settings, truncation)
    assert len(reads) > 4
    assert reads[0] == 2, "what was drawn, and once per call what the masks hide"
    assert max(reads[1:]) == 1, "what was drawn; what has ended is known on the host"
    assert all(map(same, drawn, expected))


def test_the_count_sees_what_waits() -> None:
    source = "def wait(x):\n    int(x.sum()); x.tolist(); x[x > 0]; x.nonzero(); bool(x.any()); x.cpu().numpy()\n"
    scope: dict[str, Any] = {"__name__": "hf_acpmbr.sampling.example"}
    exec(compile(source, f"{SAMPLER}/example.py", "exec"), scope)
    with Reads() as reads:
        scope["wait"](torch.ones(3))
    assert reads.per_step == [6]


def test_criteria_that_look_at_more_than_length_and_last_token_cost_a_second_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hf_acpmbr.sampling.prefix_sharing.drawing.reads_are_free", lambda device: False)
    drawn, reads = counted("m2m100", {"stopping_criteria": [RepeatedToken()]}, Truncation(epsilon=0.05))
    assert max(reads[1:]) == 2
    assert any(
        not ended and len(ids) < 5 for each in drawn for ids, ended in zip(each.token_ids, each.finished, strict=True)
    )


class RepeatedToken(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] == input_ids[:, -2]


@pytest.mark.parametrize("length", [4, 5, 6])
def test_what_has_ended_is_what_the_criteria_say(length: int) -> None:
    criteria = StoppingCriteriaList(
        [
            MaxLengthCriteria(6),
            MaxLengthCriteria(5, max_position_embeddings=3),
            EosTokenCriteria([2, 7]),
            RepeatedToken(),
        ]
    )
    random = np.random.default_rng(0)
    prompts, sources = random.integers(0, 9, size=(3, 2)), np.repeat([0, 1, 2], 70)
    tokens = random.integers(0, 9, size=(210, length - 2))
    expected = criteria(torch.from_numpy(np.hstack([prompts[sources], tokens])), None).numpy()
    assert (Stopping(criteria, torch.from_numpy(prompts))(sources, tokens) == expected).all()
    assert 0 < expected.mean() < 1 or length > 4
