"""The sampling distribution, against transformers' own configuration of it and by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from hf_acpmbr.sampling import Truncation
from hf_acpmbr.sampling.prefix_sharing.drawing import Step, Survivors, among_top, draw, on_host
from tests.models import tiny_model


def warped(truncation: Truncation, probabilities: list[float]) -> list[float]:
    scores = torch.tensor([probabilities]).log()
    q: torch.Tensor = truncation.warpers()(torch.zeros(1, 1, dtype=torch.long), scores).softmax(-1)
    return [round(float(value), 6) for value in q[0]]


def test_epsilon_cuts_by_the_probability_of_the_whole_vocabulary() -> None:
    flat = [0.021] * 40 + [0.016] * 10
    assert sum(value > 0 for value in warped(Truncation(), flat)) == 40
    assert warped(Truncation(), [0.9, 0.081, 0.019]) == [0.917431, 0.082569, 0.0]


def test_if_nothing_reaches_epsilon_the_most_probable_token_is_taken() -> None:
    assert warped(Truncation(epsilon=0.5), [0.3, 0.4, 0.3]) == [0, 1, 0]


def test_top_k_comes_first_and_loosens_epsilon() -> None:
    assert warped(Truncation(epsilon=0.35, top_k=2), [0.5, 0.3, 0.2]) == [0.625, 0.375, 0]
    assert warped(Truncation(epsilon=0.35), [0.5, 0.3, 0.2]) == [1, 0, 0]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7, "top_p": 0.8},
        {"top_k": 3, "epsilon_cutoff": 0.1},
        {"min_p": 0.2, "typical_p": 0.9, "eta_cutoff": 0.01},
    ],
)
def test_equals_the_warpers_that_generate_would_use(fields: dict[str, float]) -> None:
    config = GenerationConfig(do_sample=True, **{"top_k": 0, **fields})
    torch.manual_seed(0)
    scores, ids = 2 * torch.randn(20, 8), torch.zeros(20, 1, dtype=torch.long)
    expected = tiny_model("llama")._get_logits_processor(config)(ids, scores)
    assert torch.equal(Truncation.from_generation_config(config).warpers()(ids, scores), expected)


@pytest.mark.parametrize("find", [on_host, among_top])
@pytest.mark.parametrize("epsilon", [0.001, 0.02, 0.2, 0.9])
def test_epsilon_alone_keeps_the_tokens_that_the_warper_keeps(
    epsilon: float, find: Callable[[Step], Survivors | None]
) -> None:
    torch.manual_seed(0)
    scores, ids = 3 * torch.randn(200, 30), torch.zeros(200, 1, dtype=torch.long)
    scores[:20, 0] = -torch.inf
    scores[20:40] = -torch.inf
    scores[20:40, 5] = scores[20:40, 3] = 1.0  # no other, and equally probable
    expected = Truncation(epsilon=epsilon).warpers()(ids, scores) > -torch.inf
    warpers, left = Truncation(epsilon=epsilon).up_to_epsilon()
    assert (len(warpers), left) == (0, epsilon)
    found = find(Step(scores, scores, epsilon=left))
    if found is None:  # equally probable tokens do not fit among the 1 / ε that can reach ε: the sampler asks the host
        assert epsilon > 0.5
        found = on_host(Step(scores, scores, epsilon=left))
    assert np.array_equal(np.stack([found.rows, found.tokens], axis=1), expected.nonzero().numpy())
    q = scores.double().log_softmax(-1)[found.rows, found.tokens]
    np.testing.assert_allclose(found.logprobs, q, atol=1e-6)


def test_epsilon_is_left_to_the_end_only_where_it_is_the_end() -> None:
    warpers, epsilon = Truncation(temperature=0.5, top_k=3).up_to_epsilon()
    assert ([type(item).__name__ for item in warpers], epsilon) == (
        ["TemperatureLogitsWarper", "TopKLogitsWarper"],
        0.02,
    )
    warpers, epsilon = Truncation(eta=0.01).up_to_epsilon()
    assert [type(item).__name__ for item in warpers] == ["EpsilonLogitsWarper", "EtaLogitsWarper"]
    assert epsilon is None


def test_more_equal_tokens_than_could_reach_epsilon_are_all_drawn_on_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores, uniforms = torch.zeros(2, 400), (np.arange(400) + 0.5) / 400
    assert among_top(Step(scores, scores, epsilon=0.02)) is None
    monkeypatch.setattr("hf_acpmbr.sampling.prefix_sharing.drawing.reads_are_free", lambda device: False)
    children = draw(Step(scores, scores, epsilon=0.02), np.repeat([0, 1], 400), np.tile(uniforms, 2))
    assert children.tokens.tolist() == [*range(400), *range(400)]
    np.testing.assert_allclose(children.logprobs, -np.log(400), atol=1e-6)


def test_a_config_that_leaves_top_k_unset_has_none() -> None:
    assert Truncation.from_generation_config(GenerationConfig(do_sample=True)) == Truncation(epsilon=0.0)


@pytest.mark.parametrize(
    ("field", "value"), [("epsilon", 1.0), ("top_p", 0.0), ("temperature", 0.0), ("top_k", -1), ("min_p", -0.1)]
)
def test_wrong_values_name_the_field(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be .* got {value}"):
        Truncation(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [None, 0.001])
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("width", [3, 40])
def test_draw_inverts_the_cumulative_distribution_in_token_order(
    width: int, free: bool, epsilon: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_acpmbr.sampling.prefix_sharing.drawing.reads_are_free", lambda device: free)
    q = np.zeros((2, width))  # wide: most tokens are cut; narrow: most survive
    q[0, [0, 2]], q[1, :2] = (0.25, 0.75), (0.5, 0.5)
    with np.errstate(divide="ignore"):
        scores = torch.tensor(np.log(q), dtype=torch.float32)
    rows = np.array([0, 0, 0, 1, 1, 1])
    uniforms = np.array([0.0, 0.24999, 0.25001, 0.0, 0.49, np.nextafter(1, 0)])
    for entries in (1 << 22, 1):  # all rows at once, and row by row
        monkeypatch.setattr("hf_acpmbr.sampling.prefix_sharing.drawing._MAX_ENTRIES", entries)
        children = draw(Step(torch.zeros(2, width), scores, epsilon=epsilon), rows, uniforms)
        assert children.parents.tolist() == [0, 0, 1, 1]
        assert children.tokens.tolist() == [0, 2, 0, 1]
        assert children.child_of.tolist() == [0, 0, 1, 2, 2, 3]
        np.testing.assert_allclose(children.sampling_logprobs, np.log([0.25, 0.75, 0.5, 0.5]), atol=1e-6)
        np.testing.assert_allclose(children.logprobs, np.log(1 / width), atol=1e-6)


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    width=st.integers(1, 60),
    share=st.floats(0.0, 0.95),
    cuts=st.booleans(),
)
def test_draw_agrees_with_a_search_row_by_row(seed: int, rows: int, width: int, share: float, cuts: bool) -> None:
    random = np.random.default_rng(seed)
    scores = random.normal(size=(rows, width))
    banned = random.random((rows, width)) < share
    banned[np.arange(rows), random.integers(width, size=rows)] = False
    scores[banned] = -np.inf
    row_of = np.sort(random.integers(rows, size=30))
    uniforms = random.random(30)
    both = torch.tensor(scores)
    children = draw(Step(both, both, cuts=cuts), row_of, uniforms)
    for sample, child in enumerate(children.child_of.tolist()):
        q = np.exp(scores[row_of[sample]])
        q /= q.sum()
        assert children.parents[child] == row_of[sample]
        assert children.tokens[child] == np.searchsorted(np.cumsum(q), uniforms[sample], side="right")
        assert children.sampling_logprobs[child] == pytest.approx(np.log(q[children.tokens[child]]), abs=1e-9)
        assert children.logprobs[child] == pytest.approx(children.sampling_logprobs[child], abs=1e-9)
    assert sorted(set(children.child_of.tolist())) == list(range(len(children.tokens)))
