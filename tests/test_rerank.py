from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import sacrebleu

from hf_acpmbr import ACPMBR, Recipe
from hf_acpmbr.decoding import MBR

CANDIDATES = ["the cat sat", "a cat sat", "the cat sat", "the cat sat down", "dogs run fast", "the cats sat"]


def test_few_candidates_are_decided_exactly_by_default():
    got = ACPMBR(target="chrf", distilled="bleu").rerank(CANDIDATES, nbest=2)
    full = MBR().decode(CANDIDATES, target="chrf")
    assert got.exact
    assert got.text == full.text
    assert [r.text for r in got.nbest()] == [r.text for r in full.nbest(2)]


def test_fast_uses_one_target_score_per_row():
    got = ACPMBR(target="chrf", distilled="bleu", recipe="fast").rerank(CANDIDATES)
    assert got.calls["chrf"] <= 6
    assert got.text == "the cat sat"


def test_without_a_distilled_utility_there_is_twice_as_much_to_spend():
    mbr = ACPMBR(target="chrf", recipe="fast")
    assert mbr.decoder.name == "rounds"
    assert mbr.decoder.budget.scores_per_row == 2
    mbr.rerank(CANDIDATES)


@pytest.mark.parametrize(("name", "low", "high"), [("d3", 2, 64), ("d6", 4, 128), ("d12", 8, 256)])
def test_known_partners_bring_the_papers_rate(name, low, high):
    for recipe, rate in (("paper-low", low), ("paper-high", high)):
        got = Recipe.named(recipe, target="bleurt-20", distilled=f"bleurt-20-{name}")
        assert got.decoder.guide_budgets[0].reduction == rate
    assert Recipe.named(target="bleurt-20", distilled="auto").distilled[0].name.startswith("bleurt-20-d")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"distilled": "bleu", "decoder": "acpmbr"}, "balanced"),
        ({"distilled": "bleu", "completer": "agreement-als"}, "balanced"),
        ({"distilled": "bleu", "observation": "balanced"}, "balanced"),
        ({"distilled": "bleu", "recipe": "paper-low"}, "uniform"),
        ({"decoder": "pmbr"}, "balanced"),
    ],
)
def test_a_decoder_that_completes_observes_a_balanced_mask_unless_it_is_the_papers(settings, name):
    assert ACPMBR(target="chrf", **settings).decoder.parts()["observation"] == name


def test_auto_without_a_known_partner_is_refused():
    with pytest.raises(ValueError, match="knows no distilled version of 'chrf'"):
        ACPMBR(target="chrf", distilled="auto")


def test_a_saved_config_gives_the_same_decision(tmp_path):
    first = ACPMBR(target="chrf", distilled="bleu", recipe="fast", seed=11)
    first.recipe.save_pretrained(tmp_path)
    second = ACPMBR(recipe=Recipe.from_pretrained(tmp_path))
    a, b = first.rerank(CANDIDATES), second.rerank(CANDIDATES)
    assert a.signature == b.signature
    np.testing.assert_array_equal(a.expected, b.expected)
    assert ACPMBR(recipe=first.recipe, seed=3).recipe.seed == 3


def test_a_typo_in_a_setting_is_refused():
    with pytest.raises(ValueError, match="did you mean 'num_candidates'"):
        ACPMBR(target="chrf", num_candidate=3)


def test_a_typo_in_the_decoders_options_is_refused():
    with pytest.raises(ValueError, match="'bugdet' is not a setting of 'halving': did you mean 'budget'"):
        ACPMBR(target="chrf", decoder={"name": "halving", "bugdet": 4})


def test_a_decoder_that_selects_several_lists_them():
    got = ACPMBR(target="chrf", decoder={"name": "diverse", "size": 3}).rerank(CANDIDATES)
    assert len(got.nbest()) == 3
    assert len(ACPMBR(target="chrf").rerank(CANDIDATES).nbest()) == 1


@pytest.mark.parametrize("nbest", [0, -1, 1.5, "2", True])
def test_a_number_of_results_that_is_none_is_refused(nbest):
    mbr = ACPMBR(target="chrf")
    with pytest.raises(ValueError, match="nbest must be"):
        mbr.rerank(["a", "b"], nbest=nbest)
    with pytest.raises(ValueError, match="nbest must be"):
        mbr.rerank(["a", "b"]).nbest(nbest)
    assert len(mbr.rerank(["a", "b"]).nbest(np.int64(2))) == 2


def test_a_source_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match="source is int, expected str"):
        ACPMBR(target="chrf").rerank(["a", "b"], source=5)


def test_own_utilities_get_the_source():
    class Copies:
        higher_is_better = True
        needs_source = True

        def score(self, hypotheses, references, sources=None):
            return [float(h in s) + 0.01 * (h == r) for h, r, s in zip(hypotheses, references, sources, strict=True)]

    got = ACPMBR(target=Copies()).rerank(["Hund", "Katze"], source="eine Katze")
    assert got.text == "Katze"


def test_pools_oracle_above_mbr_above_the_average_system(shared_data):
    """chrF against the real references, over real system outputs."""
    with gzip.open(shared_data / "pools" / "wmt22.en-de.jsonl.gz", "rt", encoding="utf-8") as lines:
        pools = [json.loads(line) for line, _ in zip(lines, range(60), strict=False)]
    mbr = ACPMBR(target="chrf", distilled="bleu")
    oracle = ACPMBR(target="chrf", decoder="oracle")
    chrf = sacrebleu.CHRF()
    chosen = {"oracle": [], "mbr": [], "average": []}
    for pool in pools:
        references = pool["references"]
        chosen["mbr"].append(chrf.sentence_score(mbr.rerank(pool["candidates"]).text, references).score)
        best = oracle.rerank(pool["candidates"], references=references).text
        chosen["oracle"].append(chrf.sentence_score(best, references).score)
        scores = [chrf.sentence_score(text, references).score for text in pool["candidates"]]
        chosen["average"].append(np.mean(scores))
    means = {name: np.mean(values) for name, values in chosen.items()}
    assert means["oracle"] > means["mbr"] > means["average"], means
