"""Sources decided together: the same decisions as one by one, fewer batches, errors in the order of the sources."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hf_acpmbr import ACPMBR
from hf_acpmbr.decoding import Decision
from hf_acpmbr.scoring import Meter, Source, Statistics, Utility, as_utility, decide_together, load_utility

from ..metrics.checkpoints import SENTENCES, write_bleurt, write_comet

WORDS = ["the", "a", "old", "clock", "train", "bird", "stops", "leaves", "sings", "today", "late", "here", "never"]


def pool(seed: int, drawn: int = 24, unique: int = 12) -> list[str]:
    """Texts of different lengths, some drawn several times, different for every seed."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 12))) for _ in range(unique)]
    return [texts[k] for k in rng.integers(0, unique, drawn)]


POOLS = [pool(seed) for seed in range(7)]
SOURCES = [f"source {k}" for k in range(len(POOLS))]


def overlap(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> list[float]:
    """Shared words and a little of the source, so that a pair scored with another's source shows."""
    return [
        len(set(h.split()) & set(r.split())) / len(set(h.split()) | set(r.split())) + 0.01 * int(s.split()[1])
        for h, r, s in zip(hypotheses, references, sources, strict=True)
    ]


def lengths(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    return [1.0 / (1 + abs(len(h) - len(r))) for h, r in zip(hypotheses, references, strict=True)]


def assert_same(one: Decision, other: Decision) -> None:
    np.testing.assert_array_equal(one.expected, other.expected)
    np.testing.assert_array_equal(one.ranking, other.ranking)
    assert (one.calls, one.signature, one.status) == (other.calls, other.signature, other.status)


@pytest.mark.parametrize("size", [2, 5, 7])
@pytest.mark.parametrize("decoder", ["rounds", "mbr", "acpmbr", "ensemble"])
def test_decisions_of_any_batch_size_are_those_one_by_one(decoder: str, size: int) -> None:
    guides = () if decoder == "mbr" else (lengths,)
    settings = {} if decoder in ("mbr", "ensemble") else {"scores_per_row": 2, "distilled_scores_per_row": 4}
    if decoder == "acpmbr":
        settings |= {"completer": "agreement-als", "observation": "balanced"}
    mbr = ACPMBR(target=overlap, distilled=guides, decoder=decoder, **settings)
    alone = [mbr.rerank(texts, source) for texts, source in zip(POOLS, SOURCES, strict=True)]
    for start in range(0, len(POOLS), size):
        part = slice(start, start + size)
        for one, other in zip(mbr.rerank_many(POOLS[part], SOURCES[part]), alone[part], strict=True):
            assert_same(one, other)


def test_pairs_of_all_sources_are_scored_in_one_call_in_the_order_of_the_sources() -> None:
    calls: list[list[str]] = []

    def record(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> list[float]:
        calls.append(list(sources))
        return overlap(hypotheses, references, sources)

    ACPMBR(target=record, decoder="mbr").rerank_many(POOLS, SOURCES)
    groups = [SOURCES[0::2], SOURCES[1::2]]  # two, so that one can complete while the other is scored
    assert sorted([list(dict.fromkeys(call)) for call in calls]) == sorted(groups)
    assert sum(map(len, calls)) == sum(len(set(texts)) ** 2 for texts in POOLS)


def test_what_is_scored_together_does_not_depend_on_how_fast_scoring_is() -> None:
    def calls(delays: Sequence[float]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        made = []

        def record(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
            time.sleep(delays[len(made) % len(delays)])
            made.append((tuple(hypotheses), tuple(references)))
            return lengths(hypotheses, references)

        ACPMBR(target=record, decoder="rounds", scores_per_row=3).rerank_many(POOLS)
        return made

    first = calls([0.0])
    assert len(first) > 4  # rounds
    for seed in range(3):
        assert calls(np.random.default_rng(seed).uniform(0, 0.02, len(POOLS)).tolist()) == first


def test_one_half_computes_while_the_other_is_scored() -> None:
    threads: list[int] = []

    def record(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        threads.append(threading.get_ident())
        return lengths(hypotheses, references)

    ACPMBR(target=record, decoder="mbr").rerank_many(POOLS)
    assert threading.get_ident() not in threads  # so this thread is free for the decoders
    threads.clear()
    ACPMBR(target=record, decoder="mbr").rerank_many(POOLS[:3])
    assert set(threads) == {threading.get_ident()}  # one full batch; a second thread would only cost


@pytest.fixture(scope="module")
def bleurt(tmp_path_factory: pytest.TempPathFactory) -> Utility:
    return load_utility(str(write_bleurt(tmp_path_factory.mktemp("bleurt"))), batch_tokens=16384)


def test_networks_see_fewer_and_fuller_batches_and_choose_the_same(bleurt: Utility) -> None:
    decoder = ACPMBR(target=bleurt, scores_per_row=2).decoder
    one_by_one, shared = _Watched(bleurt), _Watched(bleurt)
    alone = [decoder.decode(texts, target=one_by_one) for texts in POOLS]
    together = decide_together([decoder.start(texts, target=shared) for texts in POOLS])
    assert 2 * sum(kept.batches for kept in shared.kept) <= sum(kept.batches for kept in one_by_one.kept)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.expected, other.expected, atol=1e-5)
        assert (one.text, one.calls) == (other.text, other.calls)


class _Watched(Utility):
    """A utility whose kernels' statistics are kept."""

    joins_sources = True

    def __init__(self, inner: Utility) -> None:
        super().__init__()
        self.inner, self.kept, self.name = inner, list[Statistics](), inner.name

    def kernel(self, table, statistics):
        self.kept.append(statistics)
        return self.inner.kernel(table, statistics)


def test_each_pair_keeps_its_own_source_in_a_network_that_reads_it(tmp_path: Path) -> None:
    comet = load_utility(str(write_comet(tmp_path, 6, class_identifier="regression_metric")))
    mbr = ACPMBR(target=comet, decoder="mbr")
    sources = SENTENCES[: len(POOLS)]
    for one, texts, source in zip(mbr.rerank_many(POOLS, sources), POOLS, sources, strict=True):
        np.testing.assert_allclose(one.expected, mbr.rerank(texts, source).expected, atol=1e-6)


def test_a_text_that_sources_share_is_encoded_and_counted_once_in_all_rounds(tmp_path: Path) -> None:
    comet = load_utility(str(write_comet(tmp_path, 6, class_identifier="regression_metric")))
    pools = [[*pool, "the same in all"] for pool in POOLS[:3]]
    mbr = ACPMBR(target=comet, decoder="halving", scores_per_row=4)
    decisions = mbr.rerank_many(pools, SENTENCES[:3])
    assert min(decision.calls[comet.name] for decision in decisions) > 0
    texts = {text for pool in pools for text in pool}
    assert sum(decision.encodings[comet.name] for decision in decisions) == len(texts) + 3, "and their sources"


def test_a_source_that_only_some_have_is_not_given_to_the_others() -> None:
    def either(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] = ()) -> list[float]:
        return overlap(hypotheses, references, sources or [SOURCES[6]] * len(hypotheses))

    mbr = ACPMBR(target=either, decoder="mbr")
    sources = [None, SOURCES[1], SOURCES[2], None]
    for one, texts, source in zip(mbr.rerank_many(POOLS[:4], sources), POOLS, sources, strict=False):
        assert_same(one, mbr.rerank(texts, source))
    for one, texts, source in zip(mbr.rerank_many(POOLS[:2], sources[:2]), POOLS, sources, strict=False):
        assert_same(one, mbr.rerank(texts, source))


def test_after_the_first_sources_error_nothing_more_is_asked() -> None:
    calls: list[set[str]] = []

    def shaky(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> list[float]:
        calls.append(set(sources))
        if SOURCES[0] in sources:
            raise ValueError("source 0 cannot be scored")
        return overlap(hypotheses, references, sources)

    mbr = ACPMBR(target=shaky, decoder="halving", scores_per_row=4)
    mbr.rerank_many(POOLS[1:3], SOURCES[1:3])
    assert len(calls) > 1, "rounds"
    calls.clear()
    with pytest.raises(ValueError, match="source 0 cannot be scored"):
        mbr.rerank_many(POOLS[:3], SOURCES[:3])
    # All at once, then one by one for the one that is to blame.
    assert [sorted(call) for call in calls] == [SOURCES[:3], *([source] for source in SOURCES[:3])]


def test_target_and_guide_of_one_source_are_served_in_one_go() -> None:
    waiting: list[str] = []

    def watched(name: str, score: Callable[..., list[float]]) -> Callable[..., list[float]]:
        def call(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
            waiting.append(name)
            return score(hypotheses, references)

        return call

    target, guide = as_utility(watched("target", lengths), name="t"), as_utility(watched("guide", lengths), name="g")
    mbr = ACPMBR(
        target=target, distilled=guide, decoder="acpmbr", observation="balanced", scores_per_row=2,
        distilled_scores_per_row=4,
    )  # fmt: skip
    mbr.rerank_many(POOLS[:3])
    assert sorted(waiting) == ["guide", "target"]


def test_the_error_of_one_source_is_raised_and_no_thread_stays() -> None:
    def shaky(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        return [float("nan") if h == "bad" else 1.0 for h in hypotheses]

    before = threading.active_count()
    pools = [[*POOLS[k], "bad"] if k == 3 else POOLS[k] for k in range(len(POOLS))]
    with pytest.raises(ValueError, match=r"NaN or infinity .* for hypothesis 'bad'"):
        ACPMBR(target=shaky, decoder="mbr").rerank_many(pools)
    assert threading.active_count() == before


def test_a_function_that_fails_for_one_source_only_fails_for_that_one() -> None:
    def picky(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        if "bad" in hypotheses:
            raise ValueError("this text cannot be scored: bad")
        return lengths(hypotheses, references)

    decoder = ACPMBR(target=picky, decoder="mbr").decoder
    utility = as_utility(picky)
    sources = [decoder.start(["bad", "x"] if k == 1 else POOLS[k], target=utility) for k in range(3)]
    with pytest.raises(ValueError, match="this text cannot be scored: bad"):
        decide_together(sources)
    assert sources[0].result is not None
    assert sources[0].result.text == decoder.decode(POOLS[0], target=utility).text


@pytest.mark.parametrize("count", [3, 7])
def test_of_several_errors_the_first_sources_is_raised_whichever_came_first(count: int) -> None:
    """The last source fails in its first round, the second one in its last."""

    last, failed = f"source {count - 1}", []

    def shaky(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> list[float]:
        for source in dict.fromkeys(sources):
            left = {h for h, s in zip(hypotheses, sources, strict=True) if s == source}
            if source == last or (source == "source 1" and len(left) <= 3):
                failed.append(source)
                raise ValueError(f"{source} cannot be scored")
        return overlap(hypotheses, references, sources)

    with pytest.raises(ValueError, match="source 1 cannot be scored"):
        ACPMBR(target=shaky, decoder="halving", scores_per_row=4).rerank_many(POOLS[:count], SOURCES[:count])
    assert failed[0] == last
    assert failed[-1] == "source 1"


def test_progress_counts_decided_sources_and_what_it_raises_cancels_the_run() -> None:
    calls: list[int] = []

    def counted(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        calls.append(len(hypotheses))
        return lengths(hypotheses, references)

    utility = as_utility(counted)
    decoder = ACPMBR(target=utility, decoder="halving", scores_per_row=4).decoder

    def sources() -> list[Source[Decision]]:
        return [decoder.start(texts, target=utility) for texts in POOLS]

    seen: list[int] = []
    decide_together(sources(), progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == len(POOLS)
    every = len(calls)
    calls.clear()

    def cancel(decided: int) -> None:
        if calls:
            raise TimeoutError("cancelled")

    started = sources()
    with pytest.raises(TimeoutError, match="cancelled"):
        decide_together(started, progress=cancel)
    assert 0 < len(calls) <= 2 < every  # what was being scored is finished, nothing more is asked
    assert all(inspect.getgeneratorstate(source.steps) == inspect.GEN_CLOSED for source in started)


def test_an_interrupt_while_scoring_ends_all_threads() -> None:
    def interrupted(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        ACPMBR(target=interrupted, decoder="mbr").rerank_many(POOLS)
    assert threading.active_count() == before


def test_seconds_are_each_sources_own_share_and_not_its_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def slow(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        nonlocal now
        now += 6.0
        return lengths(hypotheses, references)

    monkeypatch.setattr(time, "perf_counter", lambda: now)  # a clock that only scoring moves
    pools = POOLS[:3]  # scored in one call, for which all of them wait
    decisions = ACPMBR(target=slow, decoder="mbr").rerank_many(pools)
    assert now == 6.0
    pairs = np.array([len(set(texts)) ** 2 for texts in pools])
    seconds = [sum(decision.seconds.values()) for decision in decisions]
    np.testing.assert_allclose(seconds, 6.0 * pairs / pairs.sum())


def test_a_share_of_the_limit_affords_what_fits_into_it_at_the_last_pace() -> None:
    one, other = (load_utility("chrf").prepare(["a"], ["b"]) for _ in range(2))
    meter = Meter(limit=10.0, scoring={one: 3.0, other: 1.0}, pace={one: 0.5})
    assert meter.affords(one, 100) == 12
    assert meter.affords(one, 100, share=0.5) == 2
    assert meter.affords(one, 1) == 1
    assert meter.affords(one, 100, share=0.3) == 0, "that is over"
    assert meter.affords(other, 100) == 100, "nobody knows yet how long it takes"


def test_lists_and_sources_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="sources must have one entry for each of the 7 lists"):
        ACPMBR(target="chrf").rerank_many(POOLS, SOURCES[:2])
    assert ACPMBR(target="chrf").rerank_many([]) == []
