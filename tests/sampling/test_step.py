"""Between logits and draw: what is left out of the processors changes nothing, and nothing is overwritten unseen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as lp

from hf_acpmbr.sampling import Truncation
from hf_acpmbr.sampling.prefix_sharing.drawing import Children, Scoring, draw
from hf_acpmbr.sampling.processors import split_bans, writes_into_scores
from hf_acpmbr.sampling.rows import Rows
from tests.models import EOS

WIDTH, ROWS = 40, 12
CPU = torch.device("cpu")


class Lift(LogitsProcessor):
    """Writes into what it is given."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 7] += 3
        return scores


def bans() -> lp.NoBadWordsLogitsProcessor:
    return lp.NoBadWordsLogitsProcessor([[5], [6]], eos_token_id=EOS)


LISTS: dict[str, list[Any]] = {
    "none": [],
    "bad words": [bans()],
    "longer bad words": [lp.NoBadWordsLogitsProcessor([[5], [3, 6]], eos_token_id=EOS)],
    "suppressed": [bans(), lp.SuppressTokensLogitsProcessor([8, 9])],
    "beyond the vocabulary": [lp.SuppressTokensLogitsProcessor([8, WIDTH, WIDTH + 7])],
    "as Marian": [bans(), lp.ForcedEOSTokenLogitsProcessor(9, EOS), lp.LogitNormalization()],
    "forced": [bans(), lp.ForcedEOSTokenLogitsProcessor(5, EOS), lp.LogitNormalization()],
    "forced and banned": [lp.SuppressTokensLogitsProcessor([EOS, 8]), lp.ForcedEOSTokenLogitsProcessor(5, EOS)],
    "repetition": [lp.RepetitionPenaltyLogitsProcessor(2.0), bans()],
    "own": [bans(), Lift()],
}


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize(
    "truncation",
    [Truncation(), Truncation(epsilon=0.0), Truncation(top_k=9, temperature=0.6), Truncation(epsilon=0.0, min_p=0.05)],
    ids=["epsilon", "none", "warped", "min_p"],
)
@pytest.mark.parametrize("name", LISTS)
def test_the_draw_is_that_of_the_processors_as_they_stand(
    name: str, truncation: Truncation, free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_acpmbr.sampling.prefix_sharing.drawing.reads_are_free", lambda device: free)
    random = np.random.default_rng(0)
    logits = torch.tensor(2 * random.normal(size=(ROWS, WIDTH)), dtype=torch.float32)
    logits[:, 5] += 6  # a ban that takes most of the probability away
    ids = torch.tensor(random.integers(3, WIDTH, size=(ROWS, 4)))
    row_of, uniforms = np.repeat(np.arange(ROWS), 50), random.random(50 * ROWS)
    processors = LogitsProcessorList(LISTS[name])
    q = truncation.warpers()(ids, processors(ids, logits.clone())).double().softmax(-1).numpy()  # type: ignore[arg-type]
    log_p = logits.double().log_softmax(-1).numpy()
    children = draw(
        Scoring(processors, truncation, CPU)(ids, logits.clone(), Rows(np.zeros(ROWS, dtype=np.int64))),
        row_of,
        uniforms,
    )
    check(children, row_of, uniforms, q, log_p)


def check(children: Children, row_of: Any, uniforms: Any, q: Any, log_p: Any) -> None:
    expected = [
        int(np.searchsorted(np.cumsum(q[row]), u, side="right")) for row, u in zip(row_of, uniforms, strict=True)
    ]
    assert children.tokens[children.child_of].tolist() == expected
    assert np.array_equal(children.parents[children.child_of], row_of)
    at = children.parents, children.tokens
    np.testing.assert_allclose(children.logprobs, log_p[at], atol=1e-5)
    np.testing.assert_allclose(children.sampling_logprobs, np.log(q[at]), atol=1e-5)


def test_only_constant_bans_at_the_beginning_are_taken_out() -> None:
    def split(name: str) -> tuple[list[int], list[str]]:
        banned, left = split_bans(LogitsProcessorList(LISTS[name]))
        return banned, [type(item).__name__ for item in left]

    assert split("suppressed") == ([5, 6, 8, 9], [])
    assert split("longer bad words") == ([], ["NoBadWordsLogitsProcessor"])
    assert split("repetition") == ([], ["RepetitionPenaltyLogitsProcessor", "NoBadWordsLogitsProcessor"])
    assert split("forced and banned")[0] == [], "the forced token has the model's own log-probability"
    assert split("own")[0] == [], "a processor that we do not know may allow a token again"


def test_logits_are_copied_only_for_processors_that_are_not_transformers_own() -> None:
    ids, logits = torch.full((2, 4), 3), torch.zeros(2, WIDTH)
    assert writes_into_scores(Lift())
    assert Scoring(LogitsProcessorList(LISTS["as Marian"]), Truncation(), CPU)(
        ids, logits, Rows(np.zeros(2, dtype=np.int64))
    ).unchanged
    step = Scoring(LogitsProcessorList(LISTS["own"]), Truncation(), CPU)(ids, logits, Rows(np.zeros(2, dtype=np.int64)))
    assert (float(step.logits[0, 7]), float(step.scores[0, 7])) == (0.0, 3.0)


TRANSFORMERS_OWN = [
    bans(),
    lp.NoBadWordsLogitsProcessor([[5], [3, 6]], eos_token_id=EOS),
    lp.SequenceBiasLogitsProcessor({(3,): 1.0, (3, 4): -2.0}),
    lp.SuppressTokensLogitsProcessor([4]),
    lp.SuppressTokensAtBeginLogitsProcessor([4], 4),
    lp.RepetitionPenaltyLogitsProcessor(1.5),
    lp.NoRepeatNGramLogitsProcessor(2),
    lp.MinLengthLogitsProcessor(9, EOS),
    lp.MinNewTokensLengthLogitsProcessor(2, 9, EOS),
    lp.ForcedBOSTokenLogitsProcessor(3),
    lp.ForcedEOSTokenLogitsProcessor(5, EOS),
    lp.InfNanRemoveLogitsProcessor(),
    lp.ExponentialDecayLengthPenalty((1, 1.1), EOS, 1),
    lp.LogitNormalization(),
    lp.TemperatureLogitsWarper(0.5),
    lp.TopPLogitsWarper(0.5),
    lp.TopKLogitsWarper(3),
    lp.MinPLogitsWarper(0.1),
    lp.TypicalLogitsWarper(0.5),
    lp.EtaLogitsWarper(0.1),
]


@pytest.mark.parametrize("item", TRANSFORMERS_OWN, ids=lambda item: type(item).__name__)
def test_transformers_own_processors_leave_what_they_are_given(item: Any) -> None:
    for length in (1, 4):
        ids, logits = torch.full((3, length), 3), torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))
        before = logits.clone()
        item(ids, logits)
        assert torch.equal(logits, before)
    assert not writes_into_scores(item)


@pytest.mark.parametrize("truncation", [Truncation(), Truncation(epsilon=0.0), Truncation(top_k=5)])
@pytest.mark.parametrize("free", [True, False])
def test_rows_without_a_token_and_broken_rows_are_told_apart(
    truncation: Truncation, free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_acpmbr.sampling.prefix_sharing.drawing.reads_are_free", lambda device: free)
    scoring = Scoring(LogitsProcessorList(), truncation, CPU)
    for value, message in ((-torch.inf, "no token to draw for 1 "), (torch.nan, "of 1 prefixes hold NaN")):
        logits = torch.zeros(3, WIDTH)
        logits[1] = value
        with pytest.raises(ValueError, match=message):
            draw(scoring(torch.ones(3, 2, dtype=torch.long), logits, Rows(np.arange(3))), np.arange(3), np.full(3, 0.5))
