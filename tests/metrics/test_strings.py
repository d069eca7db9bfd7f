"""chrF, chrF++, BLEU and TER: sacrebleu's sentence values, for any text and any subset of pairs."""

from __future__ import annotations

from pathlib import Path

import fastchrf
import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.metrics.ter import MAX_WORDS
from hf_acpmbr.scoring import load_utility

from .checkpoints import SENTENCES

ORACLES = {
    "chrf": lambda h, r: sacrebleu.sentence_chrf(h, [r]).score,
    "chrf++": lambda h, r: sacrebleu.sentence_chrf(h, [r], word_order=2).score,
    "bleu": lambda h, r: sacrebleu.sentence_bleu(h, [r]).score,
    "ter": lambda h, r: sacrebleu.sentence_ter(h, [r]).score,
}
ODD = [
    "",
    " ",
    "a",
    "aa",
    "aaaaaaaaaa",
    "(hi)",
    "hi!",
    "!",
    "ab\tab ab\n",
    "日本語 テスト。",
    "naïve café",
    "A a A a A",
    "\u00a0x",
]
TEXTS = [*SENTENCES[:6], *ODD, "the the the cat", "the cat the cat the"]


@pytest.mark.parametrize("name", ORACLES)
def test_equal_to_sacrebleu_on_every_pair(name: str) -> None:
    check_every_pair(name, {}, ORACLES[name])


@pytest.mark.parametrize("name", ["chrf", "chrf++", "bleu", "ter"])
@given(st.lists(st.text(alphabet="ab .,!é", max_size=20), min_size=2, max_size=6, unique=True))
def test_equal_to_sacrebleu_on_any_text(name: str, texts: list[str]) -> None:
    half = len(texts) // 2
    hypotheses = texts[:half] * 2
    references = (texts[half:] * 2)[: len(hypotheses)]
    scores = load_utility(name).score(hypotheses, references)
    expected = [ORACLES[name](h, r) for h, r in zip(hypotheses, references, strict=True)]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "oracle"),
    [
        (
            {"lowercase": True, "beta": 1},
            lambda h, r: sacrebleu.CHRF(lowercase=True, beta=1).sentence_score(h, [r]).score,
        ),
        ({"whitespace": True}, lambda h, r: sacrebleu.CHRF(whitespace=True).sentence_score(h, [r]).score),
        ({"char_order": 3, "word_order": 1}, lambda h, r: sacrebleu.CHRF(3, 1).sentence_score(h, [r]).score),
        *(
            (
                {"eps_smoothing": True, "word_order": order},
                lambda h, r, o=order: sacrebleu.CHRF(word_order=o, eps_smoothing=True).sentence_score(h, [r]).score,
            )
            for order in (0, 2)
        ),
    ],
)
def test_chrf_options(options: dict, oracle) -> None:
    check_every_pair("chrf", options, oracle)


@pytest.mark.parametrize(
    "options",
    [
        {"tokenize": "char", "lowercase": True},
        {"smooth_method": "floor"},
        {"smooth_method": "floor", "smooth_value": 0.01},
        {"smooth_method": "floor", "smooth_value": 0},
        {"smooth_method": "add-k"},
        {"smooth_method": "add-k", "smooth_value": 0.5},
        {"smooth_method": "none"},
    ],
)
def test_bleu_options(options: dict) -> None:
    oracle = sacrebleu.BLEU(effective_order=True, **options)
    check_every_pair("bleu", options, lambda h, r: oracle.sentence_score(h, [r]).score)


def test_a_smoothing_that_does_not_exist_or_has_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="smooth_method must be one of none, floor, add-k, exp, got 'flor'"):
        load_utility("bleu", smooth_method="flor")
    with pytest.raises(ValueError, match=r"smooth_value=0\.1 has no effect with smooth_method='exp'"):
        load_utility("bleu", smooth_value=0.1)
    with pytest.raises(ValueError, match="smooth_value must be at least 0"):
        load_utility("bleu", smooth_method="floor", smooth_value=-1)


def check_every_pair(name: str, options: dict, oracle) -> None:
    rows, columns = np.divmod(np.arange(len(TEXTS) ** 2), len(TEXTS))
    scores = load_utility(name, **options).prepare(TEXTS, TEXTS)(rows, columns)
    expected = [oracle(TEXTS[i], TEXTS[j]) for i, j in zip(rows, columns, strict=True)]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_chrf_equals_fastchrf_on_real_texts(shared_data: Path) -> None:
    import gzip
    import json

    with gzip.open(shared_data / "pools" / "wmt22.en-de.jsonl.gz", "rt") as file:
        texts = list(dict.fromkeys(json.loads(next(file))["candidates"]))[:60]
    rows, columns = np.divmod(np.arange(len(texts) ** 2), len(texts))
    scores = load_utility("chrf").prepare(texts, texts)(rows, columns).reshape(len(texts), -1)
    np.testing.assert_allclose(scores, fastchrf.pairwise_chrf([texts], [texts])[0], atol=1e-4)


def test_any_subset_in_any_order_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    for name in ORACLES:
        scorer = load_utility(name).prepare(TEXTS[:8], TEXTS[4:14])
        rows, columns = np.divmod(np.arange(80), 10)
        matrix = load_utility(name).prepare(TEXTS[:8], TEXTS[4:14])(rows, columns)
        for _ in range(3):
            some = rng.integers(0, 80, 30)
            np.testing.assert_array_equal(scorer(rows[some], columns[some]), matrix[some])


@pytest.mark.parametrize("name", ["chrf++", "bleu"])
def test_all_ways_of_counting_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = np.divmod(np.arange(len(TEXTS) ** 2), len(TEXTS))
    results = []
    for way in ("dense", "sparse", "pairs", "grid"):
        monkeypatch.setattr("hf_acpmbr.metrics.ngrams._cheapest", lambda *_, way=way: way)
        monkeypatch.setattr("hf_acpmbr.metrics.ngrams._BLOCK", 50)
        monkeypatch.setattr("hf_acpmbr.metrics.ngrams._SMALL_GRID", 1 << 30 if way == "grid" else -1)
        results.append(load_utility(name).prepare(TEXTS, TEXTS)(rows, columns))
    for result in results[1:]:
        np.testing.assert_array_equal(results[0], result)


def test_one_long_text_does_not_widen_all_others() -> None:
    """Memory follows the characters there are, not the longest text times the number of texts."""
    import tracemalloc

    rng = np.random.default_rng(0)
    words = [f"wort{k}" for k in range(2000)]
    texts = [" ".join(rng.choice(words, 6)) for _ in range(2000)] + [" ".join(rng.choice(words, 1200))]
    tracemalloc.start()
    scores = load_utility("chrf").score(texts, texts[::-1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(texts[-1]) > 9000
    assert peak < 150e6, f"{peak / 1e6:.0f} MB"
    for k in (0, 17, 2000):
        assert scores[k] == pytest.approx(ORACLES["chrf"](texts[k], texts[-1 - k]), abs=1e-9)


def test_ter_tokenises_each_text_once() -> None:
    """sacrebleu tokenises references twice, so that this text is not equal to itself (docs/utilities.md)."""
    utility, oracle = load_utility("ter", normalized=True), sacrebleu.TER(normalized=True)
    assert utility.score(["..1"], ["..1"])[0] == 0.0
    assert oracle.sentence_score("..1", ["..1"]).score > 0
    expected = [oracle.sentence_score(h, [r]).score for h, r in zip(SENTENCES[:6], SENTENCES[6:], strict=True)]
    np.testing.assert_allclose(utility.score(SENTENCES[:6], SENTENCES[6:]), expected, atol=1e-6)


@pytest.mark.parametrize("side", ["hypothesis", "reference"])
def test_ter_refuses_texts_whose_search_would_not_end(side: str) -> None:
    utility = load_utility("ter")
    longest, longer = " ".join(["a"] * MAX_WORDS), " ".join(["a"] * (MAX_WORDS + 1))
    assert utility.score([longest], ["a"]) == 100 * (MAX_WORDS - 1)
    pair = ([longer], ["a"]) if side == "hypothesis" else (["a"], [longer])
    with pytest.raises(ValueError, match=f"at most {MAX_WORDS} words, and 'a a .* has {MAX_WORDS + 1}"):
        utility.score(*pair)


def test_chrf_against_mean_counts() -> None:
    """Aggregated references by definition: counts averaged, matches clipped, totals averaged."""
    from collections import Counter

    hypotheses, references = SENTENCES[:3], SENTENCES[3:7]
    weights = np.array([[0.4, 0.3, 0.2, 0.1], [0.0, 1.0, 0.0, 0.0]])
    scorer = load_utility("chrf").prepare(hypotheses, references)
    scores = scorer.aggregate_scores(np.array([2, 0, 0]), weights)

    def counts(text: str, n: int) -> Counter:
        text = "".join(text.split())
        return Counter(text[i : i + n] for i in range(len(text) - n + 1))

    precision = recall = 0.0
    for n in range(1, 7):
        mean: Counter = Counter()
        for weight, reference in zip(weights[0], references, strict=True):
            for gram, count in counts(reference, n).items():
                mean[gram] += weight * count
        own = counts(hypotheses[2], n)
        match = sum(min(count, mean[gram]) for gram, count in own.items())
        precision, recall = precision + match / sum(own.values()) / 6, recall + match / sum(mean.values()) / 6
    assert scores[0, 0] == pytest.approx(100 * 5 * precision * recall / (4 * precision + recall), abs=1e-9)
    assert scores[1, 1] == pytest.approx(sacrebleu.sentence_chrf(hypotheses[0], [references[1]]).score, abs=1e-9)
    np.testing.assert_array_equal(scores[1], scores[2])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chrf", {"char_order": 0}, "char_order must be at least 1"),
        ("chrf", {"beta": 0}, "beta must be above 0"),
        ("bleu", {"tokenize": "13b"}, "tokenize must be one of 13a, .*, got '13b'"),
        ("bleu", {"max_ngram_order": 0}, "max_ngram_order must be at least 1"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_utility(name, **options)
