"""Claims of the prefix-sharing sampler, each against an oracle that shares no code with it."""

from __future__ import annotations

import copy
import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from hf_acpmbr.sampling import Samples, Truncation, source_key
from hf_acpmbr.sampling.loops import Chunked
from hf_acpmbr.sampling.prefix_sharing import PrefixSharing, Stopping
from hf_acpmbr.sampling.randomness import Uniforms
from tests.models import DECODER_ONLY, ENCODER_DECODER, EOS, tiny_model
from tests.sampling.enumeration import enumerate_sequences, next_distributions
from tests.sampling.requests import SOURCES, request

ALL = ENCODER_DECODER + DECODER_ONLY
FLAT = Truncation(epsilon=0.0)


def draw(kind: str, sources: list[list[int]] = SOURCES, n: int = 200, **options: Any) -> list[Samples]:
    settings = {name: options.pop(name) for name in ("truncation", "max_rows") if name in options}
    seed = options.pop("seed", 0)
    asked = request(tiny_model(kind), sources, **{"max_new_tokens": 4, **options})
    return PrefixSharing(**settings).sample(asked, n, seed)


def same(left: Samples, right: Samples) -> bool:
    return (
        left.token_ids == right.token_ids
        and np.array_equal(left.counts, right.counts)
        and np.allclose(left.logprobs, right.logprobs, atol=1e-4)
        and np.allclose(left.sampling_logprobs, right.sampling_logprobs, atol=1e-4)
        and np.array_equal(left.finished, right.finished)
    )


def chi_square_p(observed: dict[tuple[int, ...], int], expected: dict[tuple[int, ...], float], n: int) -> float:
    """p-value of the counts, with cells below 8 expected draws merged into one."""
    assert set(observed) <= set(expected), "a sequence was drawn that has no probability"
    cells: list[list[float]] = [[0.0, 0.0]]
    for sequence, probability in expected.items():
        cell = [float(observed.get(sequence, 0)), n * probability]
        if cell[1] < 8:
            cells[0] = [cells[0][0] + cell[0], cells[0][1] + cell[1]]
        else:
            cells.append(cell)
    if cells[0][1] < 8:
        rest = cells.pop(0)
        cells[0] = [cells[0][0] + rest[0], cells[0][1] + rest[1]]
    counts, means = np.array(cells).T
    return float(stats.chisquare(counts, means * counts.sum() / means.sum()).pvalue)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("kind", ALL)
def test_counts_follow_the_enumerated_distribution(kind: str, epsilon: float) -> None:
    n = 20_000
    drawn = draw(kind, n=n, truncation=Truncation(epsilon=epsilon), max_new_tokens=3)
    for source, samples in zip(SOURCES, drawn, strict=True):
        oracle = enumerate_sequences(kind, tuple(source), 3, epsilon)
        assert samples.total == n
        observed = dict(zip(samples.token_ids, samples.counts.tolist(), strict=True))
        assert chi_square_p(observed, {y: q for y, (_, q) in oracle.items()}, n) > 1e-4


@pytest.mark.parametrize("kind", ALL)
def test_log_probabilities_equal_those_of_full_forward_passes(kind: str) -> None:
    for source, samples in zip(SOURCES, draw(kind, truncation=Truncation(epsilon=0.1)), strict=True):
        oracle = enumerate_sequences(kind, tuple(source), 4, 0.1)
        expected = np.array([oracle[ids] for ids in samples.token_ids])
        np.testing.assert_allclose(samples.logprobs, expected[:, 0], atol=2e-4)
        np.testing.assert_allclose(samples.sampling_logprobs, np.log(expected[:, 1]), atol=2e-4)
        assert [ids[-1] == EOS for ids in samples.token_ids] == samples.finished.tolist()


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_each_sample_is_the_one_a_lonely_run_with_its_random_numbers_gives(kind: str) -> None:
    source, n, seed = SOURCES[0], 40, 3
    uniforms = Uniforms(seed, [source_key(source)], n)
    lonely: dict[tuple[int, ...], int] = {}
    for sample in range(n):
        prefix: tuple[int, ...] = ()
        while len(prefix) < 4 and (not prefix or prefix[-1] != EOS):
            _, q = next_distributions(tiny_model(kind), source, [prefix], 0.1)
            u = uniforms.step(len(prefix))[sample]
            prefix += (int(np.searchsorted(np.cumsum(q[0]), u, side="right")),)
        lonely[prefix] = lonely.get(prefix, 0) + 1
    (samples,) = draw(kind, [source], n=n, seed=seed, truncation=Truncation(epsilon=0.1))
    assert dict(zip(samples.token_ids, samples.counts.tolist(), strict=True)) == lonely
    assert list(lonely) == list(samples.token_ids), "the order is that of first appearance"


def test_counts_have_the_variance_of_independent_samples() -> None:
    source, n, repeats = SOURCES[0], 50, 200
    oracle = enumerate_sequences("llama", tuple(source), 2)
    sequence, (_, q) = max(oracle.items(), key=lambda item: item[1][1])
    counts = []
    asked = request(tiny_model("llama"), [source], max_new_tokens=2, use_cache=False)
    for seed in range(repeats):
        (samples,) = PrefixSharing(truncation=FLAT).sample(asked, n, seed)
        counts.append(dict(zip(samples.token_ids, samples.counts.tolist(), strict=True)).get(sequence, 0))
    expected = n * q * (1 - q)
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], repeats - 1) * expected / (repeats - 1)
    assert low < np.var(counts, ddof=1) < high
    assert abs(np.mean(counts) - n * q) < 4 * np.sqrt(expected / repeats)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("max_rows", [1, 30])
def test_max_rows_changes_nothing(kind: str, max_rows: int) -> None:
    n = 20 if max_rows == 1 else 200
    whole, parts = (draw(kind, n=n, truncation=FLAT, max_rows=rows) for rows in (10_000, max_rows))
    assert all(same(a, b) and a.model_rows == b.model_rows for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("kind", ALL)
def test_a_batch_equals_its_sources_one_by_one_in_any_order(kind: str) -> None:
    together = draw(kind, truncation=FLAT)
    backwards = draw(kind, SOURCES[::-1], truncation=FLAT)[::-1]
    for source, a, b in zip(SOURCES, together, backwards, strict=True):
        (alone,) = draw(kind, [source], truncation=FLAT)
        assert same(a, alone)
        assert same(b, alone)


def test_the_first_n_of_more_samples_are_the_n_samples() -> None:
    few, many = (draw("m2m100", [SOURCES[0]], n=n, truncation=FLAT)[0] for n in (100, 1000))
    assert few.token_ids == many.token_ids[: len(few)]


def test_seed_and_source_change_the_samples() -> None:
    first, other = (draw("llama", seed=seed, truncation=FLAT)[0] for seed in (0, 1))
    assert first.token_ids != other.token_ids
    repeated = draw("llama", [SOURCES[0], SOURCES[0]], truncation=FLAT)
    assert same(*repeated), "equal sources have equal samples, wherever they stand"


def test_rows_are_the_distinct_live_prefixes() -> None:
    for samples in draw("qwen2", truncation=FLAT, n=400):
        prefixes = {ids[:t] for ids in samples.token_ids for t in range(len(ids))}
        assert samples.model_rows == len(prefixes)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3", "m2m100"])
def test_static_cache_gives_the_same(kind: str) -> None:
    dynamic = draw(kind, truncation=FLAT, max_rows=40)
    static = draw(kind, truncation=FLAT, max_rows=40, cache_implementation="static")
    assert all(map(same, dynamic, static))


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_no_cache_gives_the_same(kind: str) -> None:
    assert all(map(same, draw(kind, max_rows=40), draw(kind, max_rows=40, use_cache=False)))


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_sliding_window_shorter_than_the_sequence(kind: str) -> None:
    assert tiny_model(kind).config.sliding_window == 3
    for source, samples in zip(SOURCES, draw(kind, max_new_tokens=6, n=60, max_rows=10), strict=True):
        for ids, log_p in list(zip(samples.token_ids, samples.logprobs, strict=True))[:4]:
            steps = [
                next_distributions(tiny_model(kind), source, [ids[:t]], 0.0)[0][0, ids[t]] for t in range(len(ids))
            ]
            assert np.log(steps).sum() == pytest.approx(log_p, abs=2e-4)


def test_eos_at_the_first_step_ends_at_once() -> None:
    model = copy.deepcopy(tiny_model("llama"))
    asked = request(model, SOURCES, max_new_tokens=5, suppress_tokens=[t for t in range(8) if t != EOS])
    for samples in PrefixSharing().sample(asked, 100):
        assert samples.token_ids == ((EOS,),)
        assert samples.counts.tolist() == [100]
        assert samples.finished.all()
        assert samples.model_rows == 1


def test_max_length_cuts_and_says_so() -> None:
    for samples in draw("llama", max_new_tokens=2, suppress_tokens=[EOS], truncation=FLAT):
        assert {len(ids) for ids in samples.token_ids} == {2}
        assert not samples.finished.any()


def test_constraining_processors_hold() -> None:
    settings = {"forced_bos_token_id": 5, "bad_words_ids": [[6]], "no_repeat_ngram_size": 2, "min_new_tokens": 3}
    for samples in draw("m2m100", truncation=FLAT, max_new_tokens=6, **settings):
        for ids in samples.token_ids:
            assert ids[0] == 5
            assert 6 not in ids
            pairs = list(itertools.pairwise(ids))
            assert len(set(pairs)) == len(pairs)
            assert EOS not in ids[:3]


@pytest.mark.parametrize("sampler", [PrefixSharing(truncation=FLAT), Chunked(truncation=FLAT, max_rows=7)])
def test_the_repetition_penalty_of_padded_prompts_is_that_of_each_alone(sampler: PrefixSharing | Chunked) -> None:
    settings = {"max_new_tokens": 4, "repetition_penalty": 3.0}
    together = sampler.sample(request(tiny_model("llama"), SOURCES, **settings), 60)
    for source, samples in zip(SOURCES, together, strict=True):
        (alone,) = sampler.sample(request(tiny_model("llama"), [source], **settings), 60)
        assert same(samples, alone)


def test_processors_that_write_in_place_do_not_touch_the_model_log_probabilities() -> None:
    oracle = enumerate_sequences("llama", tuple(SOURCES[0]), 4)
    (free,) = draw("llama", [SOURCES[0]], truncation=FLAT)
    often: dict[int, int] = {}
    for ids, count in zip(free.token_ids, free.counts.tolist(), strict=True):
        often[ids[0]] = often.get(ids[0], 0) + count
    banned = max(often.keys() - {EOS}, key=often.__getitem__)  # its probability would be missing in the others'

    class Ban(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            scores[:, banned] = -torch.inf
            return scores

    (samples,) = draw("llama", [SOURCES[0]], logits_processor=LogitsProcessorList([Ban()]), truncation=FLAT)
    np.testing.assert_allclose(samples.logprobs, [oracle[ids][0] for ids in samples.token_ids], atol=2e-4)
    assert all(banned not in ids for ids in samples.token_ids)


def test_own_stopping_criteria_end_single_rows() -> None:
    class After(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            return input_ids[:, -1] == 3

    for samples in draw("llama", stopping_criteria=StoppingCriteriaList([After()]), truncation=FLAT, max_new_tokens=6):
        assert all(3 not in ids[:-1] for ids in samples.token_ids)
        assert any(ids[-1] == 3 for ids in samples.token_ids)
        assert not any(done for ids, done in zip(samples.token_ids, samples.finished, strict=True) if ids[-1] == 3)


def test_half_precision_models_are_sampled_in_float32() -> None:
    model = copy.deepcopy(tiny_model("llama")).to(torch.bfloat16)
    (samples,) = PrefixSharing().sample(request(model, SOURCES[:1], max_new_tokens=3), 200)
    assert samples.total == 200
    assert (samples.sampling_logprobs <= 1e-9).all()


def test_nan_logits_are_an_error_that_says_so() -> None:
    model = copy.deepcopy(tiny_model("llama"))
    model.get_output_embeddings().weight.data.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"hold NaN or \+inf: run the model in float32"):
        PrefixSharing().sample(request(model, SOURCES, max_new_tokens=3), 10)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="max_rows must be at least 1, got 0"):
        PrefixSharing(max_rows=0)
    with pytest.raises(ValueError, match="number of samples must be at least 1, got 0"):
        draw("llama", n=0)


def test_uniforms_of_a_step_are_the_same_in_any_order_of_steps_and_by_a_generator_of_its_own() -> None:
    key = source_key([5, 6, 7])
    material = hashlib.blake2b(b"3:0:" + key, digest_size=16).digest()
    uniforms = Uniforms(3, [b"another", key], 9)
    for step in (4, 0, 7, 4, 1):
        philox = np.random.Philox(key=np.frombuffer(material, dtype="<u8"), counter=step << 64)
        np.testing.assert_array_equal(uniforms.step(step)[9:], np.random.Generator(philox).random(9))


def test_of_several_longest_lengths_the_shortest_holds() -> None:
    for lengths in ((4, 7), (7, 4)):
        criteria = StoppingCriteriaList([MaxLengthCriteria(length) for length in lengths])
        stopping = Stopping(criteria, torch.zeros((1, 1), dtype=torch.long))
        ends = [bool(stopping(np.array([0]), np.zeros((1, new), dtype=np.int64))[0]) for new in range(1, 6)]
        assert ends == [False, False, True, True, True]


def test_rows_of_draws_taken_later_are_added() -> None:
    (first,) = PrefixSharing().sample(request(tiny_model("llama"), SOURCES[:1], max_new_tokens=3), 10)
    both = first.plus(first)
    assert (both.model_rows, both.total) == (2 * first.model_rows, 20)
