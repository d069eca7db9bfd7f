from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr.decoding import MBR, QEFilterMBR, QERerank

from .worlds import World


@given(st.integers(0, 1000))
def test_rerank_takes_the_best_quality_with_one_call_a_candidate(seed):
    world = World.make(seed)
    quality = world.quality()
    got = QERerank().decode(world.drawn, target=quality)
    assert got.text == max(world.texts, key=quality.of_text)
    np.testing.assert_allclose(got.expected, [quality.of_text(text) for text in got.candidates.texts])
    assert got.calls == {"quality": 12}


@given(st.integers(0, 1000), st.integers(1, 12), st.booleans())
def test_filter_equals_mbr_over_the_draws_that_stay(seed, keep, both):
    world = World.make(seed)
    target, quality = world.target(), world.quality()
    kept = sorted(world.texts, key=lambda text: -quality.of_text(text))[:keep]
    references = [text for text in world.drawn if text in kept or not both]
    means = {h: sum(target.of_texts(h, r) for r in references) / len(references) for h in kept}
    got = QEFilterMBR(keep=keep, filter_references=both).decode(world.drawn, target=target, guides=quality)
    assert got.text == max(means, key=means.__getitem__)
    for text, value in zip(got.candidates.texts, got.expected, strict=True):
        assert value == pytest.approx(means[text]) if text in kept else np.isnan(value)
    assert got.calls == {"target": keep * len(set(references)), "quality": 12}


def test_pseudo_references_given_apart_are_not_filtered():
    world = World.make(4)
    apart = world.drawn[::-1]
    got = QEFilterMBR(keep=12).decode(world.drawn, references=apart, target=world.target(), guides=world.quality())
    full = MBR().decode(world.drawn, target=world.target())
    np.testing.assert_allclose(got.expected, full.expected)


def test_the_rest_follows_by_quality():
    world = World.make(6)
    quality = world.quality()
    best = sorted(world.texts, key=lambda text: -quality.of_text(text))
    got = QEFilterMBR(keep=3).decode(world.drawn, target=world.target(), guides=quality)
    assert [entry.text for entry in got.nbest()][3:] == best[3:]
    assert {got.candidates.texts[k] for k in got.shortlist} == set(best[:3])
    np.testing.assert_allclose(got.guide_gains, [quality.of_text(text) for text in got.candidates.texts])


def test_utilities_that_compare_with_references_are_refused():
    with pytest.raises(ValueError, match=r"qe needs a reference-free utility .* as its target, but 'chrf' compares"):
        QERerank().decode(["a", "b"], target="chrf")
    with pytest.raises(ValueError, match=r"qe-filter needs a reference-free utility .* first guide"):
        QEFilterMBR().decode(["a", "b"], target="chrf", guides="bleu")


@pytest.mark.parametrize("options", [{"keep": 0}, {"filter_references": "yes"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        QEFilterMBR(**options)


def test_a_kept_candidate_meets_all_pseudo_references_given_apart():
    world, other = World.make(4), World.make(9)
    both = World({**{f"other {t}": v for t, v in other.vectors.items()}, **world.vectors}, world.drawn, world.logprobs)
    apart = [f"other {text}" for text in other.drawn]
    target = both.target()
    got = QEFilterMBR(keep=3).decode(both.drawn, references=apart, target=target, guides=both.quality())
    for k in got.shortlist:
        mean = sum(target.of_texts(got.candidates.texts[k], reference) for reference in apart) / len(apart)
        assert got.expected[k] == pytest.approx(mean)
